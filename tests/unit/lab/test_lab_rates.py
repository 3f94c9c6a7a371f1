"""Rates as people write them, and the numbers of the shaper."""

import pytest

from gradwire.errors import LabError
from gradwire.lab.rates import format_rate, parse_rate, shape_host, shape_port

SUPER_PACKET_BYTES = 65536 + 14


@pytest.mark.parametrize(
    ("text", "bits_per_second"),
    [
        ("1gbit", 10**9),
        ("2.5gbit", 2_500_000_000),
        ("100mbit", 10**8),
        ("500kbit", 500_000),
        ("1000000", 10**6),
        ("1000000bit", 10**6),
        ("1Gbit", 10**9),
        (" 10 mbit ", 10**7),
        (".5gbit", 500_000_000),
        (10**8, 10**8),
        (2.5e9, 2_500_000_000),
    ],
)
def test_rate_is_read(text, bits_per_second):
    assert parse_rate(text) == bits_per_second


@pytest.mark.parametrize(
    "text", ["", "fast", "1 gbyte", "1gb", "-1gbit", "1gbit/s", "nan", "1e9x"]
)
def test_unreadable_rate_names_the_rule_the_value_and_an_example(text):
    with pytest.raises(LabError, match="a rate must be a number") as raised:
        parse_rate(text)
    assert repr(text) in str(raised.value)
    assert "100mbit" in str(raised.value)


@pytest.mark.parametrize("text", ["0", "1kbit", "401gbit", "9" * 400, 0])
def test_rate_out_of_range_names_the_range(text):
    with pytest.raises(LabError, match="must be from 10kbit to 400gbit"):
        parse_rate(text)


@pytest.mark.parametrize(
    ("bits_per_second", "text"),
    [(10**9, "1 gbit"), (941_200_000, "941.2 mbit"), (500_000, "500 kbit"), (12, "12 bit")],
)
def test_rate_is_written(bits_per_second, text):
    assert format_rate(bits_per_second) == text


@pytest.mark.parametrize("text", ["10mbit", "99mbit", "100mbit", "1gbit", "10gbit", "400gbit"])
def test_full_frames_flow_as_on_ethernet(text):
    rate = parse_rate(text)
    payload_share = shape_port(rate).bits_per_second / rate * 1448 / 1514
    assert payload_share == pytest.approx(1448 / 1538, abs=1e-4)


@pytest.mark.parametrize("text", ["100mbit", "200mbit", "500mbit", "1gbit", "25gbit"])
def test_super_packets_pass_whole_from_100_mbit_on(text):
    assert shape_port(parse_rate(text)).burst_bytes >= SUPER_PACKET_BYTES


@pytest.mark.parametrize("text", ["10kbit", "1mbit", "10mbit", "99mbit"])
def test_small_messages_are_not_free_on_slow_links(text):
    rate = parse_rate(text)
    assert shape_port(rate).burst_bytes <= max(rate / 8 * 0.001, 2 * 1514)


@pytest.mark.parametrize("text", ["10mbit", "1gbit", "10gbit", "400gbit"])
def test_queues_are_bounded_and_a_burst_fits(text):
    port, host = shape_port(parse_rate(text)), shape_host(parse_rate(text))
    assert 64 * 1024 <= port.queue_bytes <= 32 * 1024 * 1024
    assert port.queue_bytes / (port.bits_per_second / 8) <= 0.1 or port.queue_bytes == 64 * 1024
    assert host.queue_bytes >= max(port.queue_bytes, 4 * 1024 * 1024)
    assert host.bits_per_second == port.bits_per_second


def test_shaper_is_written_for_tc():
    port = shape_port(10**9)
    assert port.arguments() == "tbf rate 984395318bit burst 125000 limit 12304941"

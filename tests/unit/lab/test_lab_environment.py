"""The environment variables of a rank, without any cluster."""

import pytest

from gradwire.lab import network
from gradwire.lab.addresses import host_address
from gradwire.lab.environment import Layout, rank_environment

LAYOUT = Layout(range(2), 3, "eth0", addresses=["10.77.0.1", "10.77.0.2"])


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch):
    for name in ("OMP_NUM_THREADS", "PYTHONUNBUFFERED", "MALLOC_TRIM_THRESHOLD_"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("rank", "local_rank", "host"), [(0, 0, 0), (2, 2, 0), (3, 0, 1), (5, 2, 1)]
)
def test_ranks_are_counted_host_by_host(rank, local_rank, host):
    seen = rank_environment(LAYOUT, rank, 29500)
    assert seen["RANK"] == str(rank)
    assert seen["LOCAL_RANK"] == str(local_rank)
    assert seen["GROUP_RANK"] == str(host)
    assert seen["WORLD_SIZE"] == "6"
    assert seen["LOCAL_WORLD_SIZE"] == "3"


def test_rendezvous_and_interface_are_set():
    seen = rank_environment(LAYOUT, 4, 29501)
    assert (seen["MASTER_ADDR"], seen["MASTER_PORT"]) == ("10.77.0.1", "29501")
    assert seen["GLOO_SOCKET_IFNAME"] == seen["GRADWIRE_LAB_INTERFACE"] == "eth0"
    assert seen["GRADWIRE_LAB"] == "1"


def test_threads_default_to_one_but_the_user_wins(monkeypatch):
    assert rank_environment(LAYOUT, 0, 1)["OMP_NUM_THREADS"] == "1"
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert rank_environment(LAYOUT, 0, 1)["OMP_NUM_THREADS"] == "3"
    assert rank_environment(LAYOUT, 0, 1, {"OMP_NUM_THREADS": "2"})["OMP_NUM_THREADS"] == "2"


def test_callers_variables_reach_the_rank_but_cannot_change_its_rank(monkeypatch):
    monkeypatch.setenv("RANK", "17")
    monkeypatch.setenv("MINE", "outer")
    seen = rank_environment(LAYOUT, 1, 1, {"MINE": "inner", "WORLD_SIZE": "99"})
    assert (seen["RANK"], seen["WORLD_SIZE"], seen["MINE"]) == ("1", "6", "inner")


def test_memory_thresholds_are_raised():
    assert int(rank_environment(LAYOUT, 0, 1)["MALLOC_TRIM_THRESHOLD_"]) >= 1 << 27


def test_addresses_are_distinct_and_never_network_or_broadcast():
    addresses = [host_address(number) for number in range(256)]
    assert len(set(addresses)) == 256
    assert addresses[0] == "10.77.0.1"
    assert addresses[255] == "10.77.1.0"


def test_ranks_fill_hosts_in_the_order_asked_for():
    layout = Layout([2, 0, 1], 2, "eth0", ["a", "b", "c"], [["a0", "a1"], ["b0", "b1"], ["c0"]])
    seen = [rank_environment(layout, rank, 1) for rank in range(6)]
    assert [own["GRADWIRE_HOST"] for own in seen] == list("220011")
    assert [own["GROUP_RANK"] for own in seen] == list("001122")
    assert [own["GRADWIRE_PLANES"] for own in seen[::2]] == ["c0", "a0,a1", "b0,b1"]
    assert {own["MASTER_ADDR"] for own in seen} == {"c"}


def test_without_planes_none_are_named():
    assert "GRADWIRE_PLANES" not in rank_environment(LAYOUT, 0, 1)


def test_names_of_hosts_follow_those_of_the_machine_in_any_encoding(monkeypatch, tmp_path):
    own, shown = tmp_path / "hosts", list[bytes]()
    own.write_bytes("127.0.0.1 localhost # Büro\n".encode("latin-1"))
    monkeypatch.setattr(network, "_HOSTS_FILE", own)
    monkeypatch.setattr(network.syscalls, "cover_file", lambda path, text: shown.append(text))
    network._name_hosts(["10.77.0.1"])
    assert shown[0].startswith(own.read_bytes())
    assert b"10.77.0.1 host0\n" in shown[0]

"""How much a probe sends, and how long it may take."""

import pytest

from gradwire.lab import Cluster
from gradwire.lab.probe import timeout_seconds
from gradwire.lab.probe_worker import stream_bytes
from gradwire.lab.rates import shape_host


@pytest.mark.parametrize("rate", ["10kbit", "50kbit", "100kbit", "1mbit", "1gbit"])
def test_streams_fit_the_time_and_are_more_than_a_burst(rate):
    cluster = Cluster(2, rate)
    bits, sent = cluster.bits_per_second, stream_bytes(cluster.bits_per_second)
    assert 2 * 8 * sent / bits < timeout_seconds(cluster) / 4, "one stream, and incast"
    assert sent > 10 * shape_host(bits).burst_bytes

"""Measures what the emulated links really deliver."""

import json
import math
import os
import sys
from dataclasses import asdict, dataclass

from gradwire.errors import LabError
from gradwire.lab.cluster import Cluster
from gradwire.lab.distance import Distance
from gradwire.lab.forwarding import Forwarded
from gradwire.lab.guarded import with_package_on_path
from gradwire.lab.job import print_prefixed
from gradwire.lab.rates import format_rate
from gradwire.progress import Progress, silent

_TIMEOUT_SECONDS, _SLOW_BITS_PER_SECOND = 180.0, 100_000
_WORKER = "gradwire.lab.probe_worker"
_SEGMENT_BYTES = 1448


@dataclass(frozen=True)
class ProbeReport:
    """One cluster's links, measured with TCP alone and with Gloo's all-reduce.

    `all_reduce_bits_per_second` counts 2(n−1)/n bytes per byte reduced, as a ring puts on each
    link. `incast_bits_per_second` is what rank 0 receives when all others send to it at once.
    `latency_seconds` is half a round trip of one byte. `bytes_sent` and `segments_resent` are over
    all hosts and all large all-reduces. `distance` was asked for; `forwarded` is what the switch
    has done for it, None if the kernel forwards.
    """

    hosts: int
    loopback: bool
    asked_bits_per_second: int
    latency_seconds: float
    stream_bits_per_second: float
    incast_bits_per_second: float
    small_all_reduce_seconds: float
    all_reduce_bytes: int
    all_reduce_seconds: float
    all_reduce_bits_per_second: float
    bytes_sent: int
    segments_resent: int
    distance: Distance
    forwarded: Forwarded | None

    @property
    def delivered_percent(self) -> float | None:
        """The all-reduce's bandwidth as a percentage of the requested rate; None if unshaped."""
        if self.loopback:
            return None
        return round(100 * self.all_reduce_bits_per_second / self.asked_bits_per_second, 2)

    def as_json(self) -> dict[str, object]:
        """Return the fields and the percentage as JSON values."""
        forwarded = None if self.forwarded is None else self.forwarded._asdict()
        found = {**asdict(self), "forwarded": forwarded}
        return {**found, "delivered_percent": self.delivered_percent}

    def as_text(self) -> str:
        """Return a few lines for people."""
        rate = format_rate(self.asked_bits_per_second)
        asked = "nothing (unshaped)" if self.loopback else f"{rate}/s"
        percent = "" if self.loopback else f", {self.delivered_percent:.1f} % of what was asked"
        far = f", {self.distance}" if self.distance else ""
        switch = [f"  switch       {self.forwarded}"] if self.forwarded else []
        lines = [
            f"{self.hosts} hosts, asked of each link: {asked}{far}",
            f"  all-reduce   {format_rate(self.all_reduce_bits_per_second)}/s each way{percent}",
            f"               {self.all_reduce_bytes / 1e6:.3g} MB in "
            f"{self.all_reduce_seconds:.3f} s; {self.segments_resent} segments resent",
            f"  one stream   {format_rate(self.stream_bits_per_second)}/s",
            f"  incast       {format_rate(self.incast_bits_per_second)}/s "
            f"from {self.hosts - 1} to 1",
            f"  latency      {self.latency_seconds * 1e6:.0f} µs one way; all-reduce of "
            f"4 bytes {self.small_all_reduce_seconds * 1e6:.0f} µs",
            *switch,
        ]
        return "\n".join(lines)


def probe(cluster: Cluster, progress: Progress = silent) -> ProbeReport:
    """Measure an entered cluster of two or more hosts with one process each; under 30 seconds,
    but for links of less than a mbit.

    Raises `LabError` when the cluster has another shape, or the measuring program fails.
    """
    _check_shape(cluster)
    printed: list[str] = []

    def collect(rank: int, stream: str, line: str) -> None:
        if stream == "stdout":
            printed.append(line)
            told = json.loads(line)
            if "begins" in told:
                progress("links", told["done"], told["of"], told["begins"])
        else:
            print_prefixed(rank, stream, line)

    command = [sys.executable, "-P", "-m", _WORKER, str(_expected(cluster))]
    path = {"PYTHONPATH": with_package_on_path(os.environ)["PYTHONPATH"]}
    code = cluster.run(
        command, env=path, on_line=collect, timeout_seconds=timeout_seconds(cluster)
    )
    if code != 0 or not printed:
        raise LabError(
            f"the probe's program must end with exit code 0; it ended with {code}, and its output "
            "is above. Check that torch is installed with Gloo."
        )
    return ProbeReport(
        hosts=cluster.hosts,
        loopback=cluster.loopback,
        asked_bits_per_second=cluster.bits_per_second,
        **json.loads(printed[-1]),
        distance=cluster.distance,
        forwarded=cluster.forwarded(),
    )


def timeout_seconds(cluster: Cluster) -> float:
    """Return how long the measurement may take: longer on slow links, which carry little."""
    return _TIMEOUT_SECONDS * max(1.0, _SLOW_BITS_PER_SECOND / _expected(cluster))


def _expected(cluster: Cluster) -> int:
    """Returns the bits per second to expect of one connection. Losses limit it to one and a
    quarter segments a round trip, over the root of their share (Mathis et al. 1997)."""
    far = cluster.distance
    if not far.loss or not far.seconds:
        return cluster.bits_per_second
    window = 1.22 * _SEGMENT_BYTES * 8 / math.sqrt(far.loss)
    return min(cluster.bits_per_second, round(window / (2 * far.seconds)))


def _check_shape(cluster: Cluster) -> None:
    if cluster.hosts < 2 or cluster.procs_per_host != 1:
        raise LabError(
            f"a probe needs at least 2 hosts with 1 process each; got {cluster.hosts} hosts with "
            f"{cluster.procs_per_host}. Change the numbers."
        )

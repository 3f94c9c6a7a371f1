"""A cluster described by hand, to plan for machines that are not at hand.

format = 1
hosts = 16
ranks_per_host = 8

[cross]                       # each host's link to the others, each way
bits_per_second = 10e9
latency_seconds = 50e-6

[node]                        # between ranks of one host
bytes_per_second = 5e9
latency_seconds = 20e-6
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gradwire.document import TOML, Document, save_file
from gradwire.errors import PlanError
from gradwire.schema import Broken, Maybe, Number, Schema, Table, Whole

FORMAT = 1
NODE_BYTES_PER_SECOND, NODE_LATENCY_SECONDS = 5e9, 20e-6
"""Defaults for ranks that share a machine and its memory."""


@dataclass(frozen=True)
class Cluster:
    """Equal hosts with equally many ranks. Raises PlanError if a number is out of range.

    cross: a host's link to all others, each way, shared by its ranks; node: a rank's link to the
    others of its host. Latencies: the time that the network itself adds to a message. processors:
    those of a rank, in units of what backward alone uses; None: as measured.
    """

    hosts: int
    ranks_per_host: int = 1
    cross_bits_per_second: float = 1e9
    cross_latency_seconds: float = 0.0
    node_bytes_per_second: float = NODE_BYTES_PER_SECOND
    node_latency_seconds: float = NODE_LATENCY_SECONDS
    processors_per_rank: float | None = None

    def __post_init__(self) -> None:
        try:
            _VALUES.read(vars(self))
        except Broken as broken:
            _DOCUMENT.refuse(broken)

    @property
    def world(self) -> int:
        """The number of ranks of all hosts."""
        return self.hosts * self.ranks_per_host

    @property
    def host_names(self) -> tuple[str, ...]:
        """The name of each rank's host."""
        return tuple(f"host{rank // self.ranks_per_host}" for rank in range(self.world))

    def with_rate(self, bits_per_second: float) -> Cluster:
        """Returns this cluster with another rate of the links across hosts."""
        return replace(self, cross_bits_per_second=bits_per_second)

    def with_workers(self, workers: int) -> Cluster:
        """Returns a cluster with the hosts that so many ranks fill; PlanError if some are left."""
        hosts, rest = divmod(workers, self.ranks_per_host)
        if rest or not hosts:
            raise PlanError(
                f"the workers must fill hosts of {self.ranks_per_host} ranks each; got {workers} "
                f"workers. Choose a multiple, or another number of ranks per host."
            )
        return replace(self, hosts=hosts)

    # -- files -----------------------------------------------------------------------------

    def to_toml(self) -> str:
        """Returns TOML; reading it back gives an equal cluster."""
        lines = [f"format = {FORMAT}", f"hosts = {self.hosts}"]
        lines.append(f"ranks_per_host = {self.ranks_per_host}")
        if self.processors_per_rank is not None:
            lines.append(f"processors_per_rank = {float(self.processors_per_rank)!r}")
        for group in ("cross", "node"):
            lines += ["", f"[{group}]"]
            lines += [f"{k} = {float(getattr(self, f'{group}_{k}'))!r}" for k in _OF_LINKS[group]]
        return "\n".join(lines) + "\n"

    @staticmethod
    def from_toml(text: str) -> Cluster:
        """Read a text. PlanError if it is no cluster of a format this version reads."""
        cluster: Cluster = _DOCUMENT.read(text)
        return cluster

    def save(self, path: str | Path) -> None:
        """Write it to a file, as TOML. A crash leaves a former file as it was."""
        save_file(path, self.to_toml())

    @staticmethod
    def load(path: str | Path) -> Cluster:
        """Read a file. PlanError if there is no such file or it holds no cluster."""
        cluster: Cluster = _DOCUMENT.load(path)
        return cluster


def _cluster(cross: Mapping[str, Any], node: Mapping[str, Any] = {}, **own: Any) -> Cluster:
    links = {"cross": cross, "node": node}
    named = {f"{group}_{k}": v for group, link in links.items() for k, v in link.items()}
    return Cluster(**own, **named)


_OF_LINKS: Mapping[str, Mapping[str, Schema]] = {
    "cross": {"bits_per_second": Number(1, 1e18), "latency_seconds": Number(0, 1e9)},
    "node": {"bytes_per_second": Number(1, 1e18), "latency_seconds": Number(0, 1e9)},
}
_HOSTS: Mapping[str, Schema] = {"hosts": Whole(1, 1 << 20)}
_MORE: Mapping[str, Schema] = {
    "ranks_per_host": Whole(1, 1 << 20), "processors_per_rank": Maybe(Number(1, 1e9)),
}  # fmt: skip
_VALUES = Table({
    **_HOSTS, **_MORE, **{f"{g}_{k}": of for g, own in _OF_LINKS.items() for k, of in own.items()}
})  # fmt: skip
_RATE = {"bits_per_second": _OF_LINKS["cross"]["bits_per_second"]}
_DOCUMENT = Document(
    "a cluster",
    Table(
        {**_HOSTS, "cross": Table(_RATE, _OF_LINKS["cross"], by_hand=True)},
        {**_MORE, "node": Table({}, _OF_LINKS["node"], by_hand=True)},
        make=_cluster, by_hand=True,
    ),
    PlanError,
    "Write for example: format = 1, hosts = 4, ranks_per_host = 1, and below [cross] "
    "bits_per_second = 1e9",
    FORMAT, TOML,
)  # fmt: skip

"""A cluster by hand: to plan for machines that one does not have.

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

import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gradwire.errors import PlanError

FORMAT = 1
NODE_BYTES_PER_SECOND, NODE_LATENCY_SECONDS = 5e9, 20e-6
"""Of ranks that share a machine and its memory, where nothing else is said."""
_KEYS = {
    "": ("format", "hosts", "ranks_per_host", "processors_per_rank", "cross", "node"),
    "cross": ("bits_per_second", "latency_seconds"),
    "node": ("bytes_per_second", "latency_seconds"),
}


@dataclass(frozen=True)
class Cluster:
    """Equal hosts with equally many ranks. Raises PlanError where a number cannot be.

    cross: a host's link to all others, each way, shared by its ranks; node: that of a rank to the
    others of its host. Latencies: what the network itself adds to a message. processors: of a
    rank, in units of what backward has alone; None: as they were measured.
    """

    hosts: int
    ranks_per_host: int = 1
    cross_bits_per_second: float = 1e9
    cross_latency_seconds: float = 0.0
    node_bytes_per_second: float = NODE_BYTES_PER_SECOND
    node_latency_seconds: float = NODE_LATENCY_SECONDS
    processors_per_rank: float | None = None

    def __post_init__(self) -> None:
        for name in ("hosts", "ranks_per_host"):
            _check(name, getattr(self, name), "a whole number of at least 1", _is_count, "4")
        for name in ("cross_bits_per_second", "node_bytes_per_second"):
            _check(name, getattr(self, name), "above 0 and finite", _is_rate, "1e9")
        for name in ("cross_latency_seconds", "node_latency_seconds"):
            _check(name, getattr(self, name), "0 or more, and finite", _is_time, "5e-5")
        if self.processors_per_rank is not None:
            rule = "1 or more, and finite"
            _check("processors_per_rank", self.processors_per_rank, rule, _is_power, "2.0")

    @property
    def world(self) -> int:
        """Ranks of all hosts."""
        return self.hosts * self.ranks_per_host

    @property
    def host_names(self) -> tuple[str, ...]:
        """Of each rank."""
        return tuple(f"host{rank // self.ranks_per_host}" for rank in range(self.world))

    def with_rate(self, bits_per_second: float) -> Cluster:
        """The same, with other links across."""
        return replace(self, cross_bits_per_second=bits_per_second)

    def with_workers(self, workers: int) -> Cluster:
        """As many hosts as so many ranks take; PlanError if they do not fill them."""
        hosts, rest = divmod(workers, self.ranks_per_host)
        if rest or not hosts:
            raise PlanError(
                f"hosts have {self.ranks_per_host} ranks each; got {workers} workers, which do "
                "not fill them. Choose a multiple, or another number per host."
            )
        return replace(self, hosts=hosts)

    # -- files -----------------------------------------------------------------------------

    def to_toml(self) -> str:
        """Readable, and equal when read back."""
        lines = [f"format = {FORMAT}", f"hosts = {self.hosts}"]
        lines.append(f"ranks_per_host = {self.ranks_per_host}")
        if self.processors_per_rank is not None:
            lines.append(f"processors_per_rank = {float(self.processors_per_rank)!r}")
        for group in ("cross", "node"):
            lines += ["", f"[{group}]"]
            lines += [f"{k} = {float(getattr(self, f'{group}_{k}'))!r}" for k in _KEYS[group]]
        return "\n".join(lines) + "\n"

    @staticmethod
    def from_toml(text: str) -> Cluster:
        """PlanError if the text is no cluster of a format this version reads."""
        try:
            data = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise PlanError(f"a cluster is a TOML file; {error}. {_EXAMPLE}") from error
        if data.get("format") != FORMAT:
            raise PlanError(
                f"this version reads clusters of format {FORMAT}; got {data.get('format')!r}. "
                f"{_EXAMPLE}"
            )
        return Cluster(**_arguments(data))

    def save(self, path: str | Path) -> None:
        Path(path).write_text(self.to_toml(), encoding="utf-8")

    @staticmethod
    def load(path: str | Path) -> Cluster:
        """PlanError if there is no such file or it holds no cluster."""
        try:
            return Cluster.from_toml(Path(path).read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError) as error:
            raise PlanError(f"a cluster's path names a readable file; {error}. {_EXAMPLE}") from (
                error
            )


_EXAMPLE = (
    "Write for example: format = 1, hosts = 4, ranks_per_host = 1, and below [cross] "
    "bits_per_second = 1e9."
)


def _arguments(data: Mapping[str, Any]) -> dict[str, Any]:
    """Of a Cluster; PlanError, naming them, for words that mean nothing, and what is missing."""
    groups = {name: data.get(name, {}) for name in ("cross", "node")}
    own: dict[str, Mapping[str, Any]] = {"": data, **groups}
    for group, found in own.items():
        if not isinstance(found, Mapping):
            raise PlanError(f"[{group}] is a table of a cluster file; got {found!r}. {_EXAMPLE}")
        if unknown := sorted(set(found) - set(_KEYS[group])):
            where = f"[{group}]" if group else "a cluster"
            raise PlanError(
                f"{where} has {', '.join(_KEYS[group])}; got '{unknown[0]}'. Correct its name."
            )
    if "hosts" not in data or "bits_per_second" not in groups["cross"]:
        raise PlanError(f"a cluster has hosts, and links between them. {_EXAMPLE}")
    alone = {k: v for k, v in data.items() if k not in ("format", "cross", "node")}
    return alone | {f"{group}_{k}": v for group in groups for k, v in groups[group].items()}


def _check(name: str, value: object, rule: str, holds: Any, instead: str) -> None:
    if not holds(value):
        raise PlanError(
            f"a cluster's {name} is {rule}; got {value!r}. Write for example {instead}."
        )


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _is_rate(value: Any) -> bool:
    return _is_number(value) and value > 0


def _is_time(value: Any) -> bool:
    return _is_number(value) and value >= 0


def _is_power(value: Any) -> bool:
    return _is_number(value) and value >= 1

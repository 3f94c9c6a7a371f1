"""What a network is made of, as plain values: machines, cables, and what each machine is told.

host0 eth0 ──cable── host0 leaf0 spine1 ──cable── leaf0 spine1
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gradwire.lab.rates import Shaping


@dataclass(frozen=True)
class Machine:
    """A network namespace. lines: for `ip`, once its cables are there and up; settings: files
    below /proc/sys/net/ipv4 with what is written there."""

    name: str
    lines: Sequence[str] = ()
    settings: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class End:
    """One end of a cable. shaping: of what the machine sends by it."""

    machine: str
    interface: str
    shaping: Shaping


@dataclass(frozen=True)
class Cable:
    """The near machine stands before the far one in the wiring."""

    near: End
    far: End


@dataclass(frozen=True)
class Wiring:
    """Hosts come first and have numbers; then switches. addresses: of hosts, the ones they are
    called by; planes: of each host, its addresses on the planes, if there are any."""

    hosts: int
    machines: Sequence[Machine]
    cables: Sequence[Cable]
    addresses: Sequence[str]
    planes: Sequence[Sequence[str]] = field(default_factory=list)

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Wiring:
        """Read what `asdict` gave."""
        return Wiring(
            **{
                **data,
                "machines": [Machine(**machine) for machine in data["machines"]],
                "cables": [Cable(_end(c["near"]), _end(c["far"])) for c in data["cables"]],
            }
        )


def _end(data: Mapping[str, Any]) -> End:
    return End(data["machine"], data["interface"], Shaping(**data["shaping"]))

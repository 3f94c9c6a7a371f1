"""The parts of a network, as plain values: machines and cables, and the settings of each machine.

host0 eth0 ──cable── host0 leaf0 spine1 ──cable── leaf0 spine1
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gradwire.lab.addresses import INTERFACE, PREFIX_LENGTH, host_address, host_name
from gradwire.lab.rates import Shaping, shape_host, shape_port

SWITCH = "switch"


@dataclass(frozen=True)
class Machine:
    """A network namespace. lines: commands for `ip`, once its cables exist and are up; settings:
    files below /proc/sys/net/ipv4 with what is written to them."""

    name: str
    lines: Sequence[str] = ()
    settings: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class End:
    """One end of a cable. shaping: that of the bytes that the machine sends by it."""

    machine: str
    interface: str
    shaping: Shaping


@dataclass(frozen=True)
class Cable:
    """A cable between two machines; the near one comes before the far one in the wiring."""

    near: End
    far: End


@dataclass(frozen=True)
class Wiring:
    """Machines, hosts first, by number, then switches, and cables. addresses: each host's own;
    planes: each host's addresses on the planes, if there are any."""

    machines: Sequence[Machine]
    cables: Sequence[Cable]
    addresses: Sequence[str]
    planes: Sequence[Sequence[str]] = field(default_factory=list)

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Wiring:
        """Read what `asdict` returned."""
        return Wiring(
            **{
                **data,
                "machines": [Machine(**machine) for machine in data["machines"]],
                "cables": [Cable(_end(c["near"]), _end(c["far"])) for c in data["cables"]],
            }
        )


def _end(data: Mapping[str, Any]) -> End:
    return End(data["machine"], data["interface"], Shaping(**data["shaping"]))


def one_switch(hosts: int, bits_per_second: int) -> Wiring:
    """Return a wiring of all hosts on one switch, a bridge, with equally fast links."""
    numbers = range(hosts)
    addresses = [host_address(number) for number in numbers]
    machines = [
        Machine(
            host_name(number), [f"addr add {addresses[number]}/{PREFIX_LENGTH} dev {INTERFACE}"]
        )
        for number in numbers
    ]
    # The bridge only forwards; learning which host is where takes it one packet.
    bridge = [
        f"link add name {SWITCH} type bridge stp_state 0 forward_delay 0 mcast_snooping 0",
        f"link set {SWITCH} addrgenmode none",
        f"link set {SWITCH} up",
        *(f"link set {host_name(number)} master {SWITCH}" for number in numbers),
    ]
    cables = [
        Cable(
            End(host_name(number), INTERFACE, shape_host(bits_per_second)),
            End(SWITCH, host_name(number), shape_port(bits_per_second)),
        )
        for number in numbers
    ]
    return Wiring([*machines, Machine(SWITCH, bridge)], cables, addresses)

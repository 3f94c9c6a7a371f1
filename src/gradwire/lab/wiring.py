"""The parts of a network, as plain values: machines and cables, and the settings of each machine.

host0 eth0 ──cable── host0 leaf0 spine1 ──cable── leaf0 spine1
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gradwire.lab.addresses import INTERFACE, PREFIX_LENGTH, host_address, host_name
from gradwire.lab.distance import NEAR, Distance
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
    planes: each host's addresses on the planes, if there are any. distance: between hosts, if a
    forwarder takes the place of the one switch's bridge."""

    machines: Sequence[Machine]
    cables: Sequence[Cable]
    addresses: Sequence[str]
    planes: Sequence[Sequence[str]] = field(default_factory=list)
    distance: Distance = NEAR

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Wiring:
        """Read what `asdict` returned."""
        return Wiring(
            **{
                **data,
                "machines": [Machine(**machine) for machine in data["machines"]],
                "cables": [Cable(_end(c["near"]), _end(c["far"])) for c in data["cables"]],
                "distance": Distance(**data["distance"]),
            }
        )


def _end(data: Mapping[str, Any]) -> End:
    return End(data["machine"], data["interface"], Shaping(**data["shaping"]))


def one_switch(hosts: int, bits_per_second: int, distance: Distance = NEAR) -> Wiring:
    """Return a wiring of all hosts on one switch, with equally fast links: a bridge, or, where
    there is a distance between hosts, a forwarder."""
    numbers = range(hosts)
    addresses = [host_address(number) for number in numbers]
    settings = _for_distance(distance, bits_per_second) if distance else {}
    # A super-packet of up to 45 frames would be lost as a whole, instead of one of its frames.
    cut = [f"link set {INTERFACE} gso_max_segs 1"] if distance.loss else []
    machines = [
        Machine(
            host_name(number),
            [f"addr add {addresses[number]}/{PREFIX_LENGTH} dev {INTERFACE}", *cut], settings,
        )
        for number in numbers
    ]  # fmt: skip
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
    switch = Machine(SWITCH, [] if distance else bridge)
    return Wiring([*machines, switch], cables, addresses, distance=distance)


def _for_distance(distance: Distance, bits_per_second: int) -> dict[str, str]:
    """Returns settings for links on which much is under way: windows of at least four times what
    the round trip holds."""
    window = int(4 * 2 * (distance.seconds + distance.jitter_seconds) * bits_per_second / 8)
    most = min(max(window, 6 << 20), 1 << 30)
    return {"tcp_rmem": f"4096 131072 {most}", "tcp_wmem": f"4096 65536 {most}"}

"""All hosts on one switch, a bridge."""

from __future__ import annotations

from gradwire.lab.addresses import INTERFACE, PREFIX_LENGTH, host_address, host_name
from gradwire.lab.rates import shape_host, shape_port
from gradwire.lab.wiring import Cable, End, Machine, Wiring

SWITCH = "switch"


def one_switch(hosts: int, bits_per_second: int) -> Wiring:
    """Every link is as fast."""
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
    return Wiring(hosts, [*machines, Machine(SWITCH, bridge)], cables, addresses)

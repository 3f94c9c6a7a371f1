"""Rates as people write them, and the shaper's three numbers that follow from a rate."""

import re
from dataclasses import dataclass, replace

from gradwire.errors import LabError

_UNITS = {"": 1, "bit": 1, "kbit": 10**3, "mbit": 10**6, "gbit": 10**9}
_RATE = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?|\.[0-9]+)\s*([a-z]*)\s*", re.IGNORECASE)
SLOWEST_BITS_PER_SECOND = 10_000
FASTEST_BITS_PER_SECOND = 400 * 10**9

# A full frame as the shaper counts it, and as a real wire does: checksum 4, preamble 8, gap 12.
_FRAME_BYTES = 1514
_FRAME_BYTES_ON_WIRE = _FRAME_BYTES + 24

# A burst is what passes unshaped after a pause: short, or a message of a few KB would be free.
# But the kernel cuts super-packets (up to 64 KiB) that exceed it into frames; from 100 mbit on
# that costs bandwidth (measured at 500 mbit: all-reduce 43 % when cut, 94 % when not).
_BURST_SECONDS = 0.001
_SMALLEST_BURST_BYTES = 2 * _FRAME_BYTES
_SUPER_PACKET_BYTES = 72 * 1024
_WHOLE_FROM_BITS_PER_SECOND = 100 * 10**6

# A switch port holds a tenth of a second, within bounds. A host's own queue is larger, as a real
# host's is: TCP stops by itself before filling it, while a loss inside the sender is unreal.
_PORT_QUEUE_SECONDS = 0.1
_SMALLEST_PORT_QUEUE_BYTES = 64 * 1024
_LARGEST_PORT_QUEUE_BYTES = 32 * 1024 * 1024
_SMALLEST_HOST_QUEUE_BYTES = 4 * 1024 * 1024


def parse_rate(text: str | float) -> int:
    """Return the bits per second of "1gbit", "2.5gbit", "100mbit", "500kbit", or a number.

    Units are decimal and may be in capitals; a plain number is in bits per second.
    Raises `LabError` for anything else, and outside 10 kbit to 400 gbit.
    """
    match = _RATE.fullmatch(str(text))
    unit = match.group(2).lower() if match else None
    if match is None or unit not in _UNITS:
        raise LabError(
            "a rate must be a number of bits per second, or a number with kbit, mbit or gbit; got "
            f"{text!r}. Write for example 100mbit or 2.5gbit."
        )
    bits_per_second = float(match.group(1)) * _UNITS[unit]
    if not SLOWEST_BITS_PER_SECOND <= bits_per_second <= FASTEST_BITS_PER_SECOND:
        raise LabError(
            f"a rate must be from 10kbit to 400gbit; got {text!r} = {bits_per_second:g} bits per "
            "second. Choose a rate in between (lower-case and capital units mean the same)."
        )
    return round(bits_per_second)


def format_rate(bits_per_second: float) -> str:
    """Write a rate in the unit people would choose: 941 mbit, 2.5 gbit."""
    for unit in ("gbit", "mbit", "kbit"):
        if bits_per_second >= _UNITS[unit]:
            return f"{bits_per_second / _UNITS[unit]:.4g} {unit}"
    return f"{bits_per_second:.4g} bit"


@dataclass(frozen=True)
class Shaping:
    """The numbers of one token bucket (`tc … tbf`), for one direction of one link."""

    bits_per_second: int
    burst_bytes: int
    queue_bytes: int

    def arguments(self) -> str:
        """Return the qdisc as `tc` reads it."""
        return (
            f"tbf rate {self.bits_per_second}bit burst {self.burst_bytes} limit {self.queue_bytes}"
        )


def shape_port(rate_bits_per_second: int) -> Shaping:
    """Shape a switch port, towards the host, so that full frames flow as on a real Ethernet.

    The wire's own 24 bytes per frame are taken off the rate, not added to each packet: the
    kernel hands the shaper super-packets of up to 64 KiB and would add them only once.
    """
    bits_per_second = rate_bits_per_second * _FRAME_BYTES // _FRAME_BYTES_ON_WIRE
    queue = int(bits_per_second / 8 * _PORT_QUEUE_SECONDS)
    queue = max(min(queue, _LARGEST_PORT_QUEUE_BYTES), _SMALLEST_PORT_QUEUE_BYTES)
    whole = rate_bits_per_second >= _WHOLE_FROM_BITS_PER_SECOND
    smallest = _SUPER_PACKET_BYTES if whole else _SMALLEST_BURST_BYTES
    burst = max(int(rate_bits_per_second / 8 * _BURST_SECONDS), smallest)
    return Shaping(bits_per_second, burst, queue)


def shape_host(rate_bits_per_second: int) -> Shaping:
    """Shape a host, towards the switch: as the port, with the sender's deeper queue."""
    port = shape_port(rate_bits_per_second)
    return replace(port, queue_bytes=max(port.queue_bytes, _SMALLEST_HOST_QUEUE_BYTES))

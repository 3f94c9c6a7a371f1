"""Counters of the process's own host, read from its own network namespace."""

import os
from pathlib import Path

from gradwire.errors import LabError
from gradwire.lab.addresses import INTERFACE, LOOPBACK_INTERFACE

_TRANSMITTED_BYTES_COLUMN = 8


def bytes_sent() -> int:
    """Return the bytes this host has sent through its shaped interface since it came up.

    For use inside a rank; all ranks of a host share the count. Headers are counted once per
    super-packet of up to 64 KiB, so it exceeds the payload by about 0.1 %. Traffic within a host
    is not counted. In loopback mode this is what the whole machine sent over `lo`. Raises
    `LabError` in a process that the lab did not start.
    """
    interface, found = os.environ.get("GRADWIRE_LAB_INTERFACE", ""), interface_bytes()
    if interface in found:
        return found[interface]
    raise LabError(
        "bytes_sent() counts on the lab's interface; this process has "
        f"{f'no {interface!r}' if interface else 'none'}; call it in a process that `gradwire lab "
        "run` or Cluster.run() started"
    )


def counted_hosts() -> int:
    """Return how many hosts' traffic this host's counters count: its own alone, or, in loopback
    mode, where all are on one interface, that of all hosts."""
    interface = os.environ.get("GRADWIRE_LAB_INTERFACE", INTERFACE)
    alone = interface != LOOPBACK_INTERFACE
    return 1 if alone else int(os.environ.get("GROUP_WORLD_SIZE", "1"))


def interface_bytes() -> dict[str, int]:
    """Return the bytes sent by each interface of the process's own network namespace."""
    found = {}
    for line in Path("/proc/self/net/dev").read_text().splitlines():
        name, colon, columns = line.partition(":")
        if colon:
            found[name.strip()] = int(columns.split()[_TRANSMITTED_BYTES_COLUMN])
    return found


def segments_resent() -> int:
    """Return how many TCP segments this host has sent again since it came up."""
    names, values = (
        line.split()
        for line in Path("/proc/self/net/snmp").read_text().splitlines()
        if line.startswith("Tcp:")
    )
    return int(values[names.index("RetransSegs")])

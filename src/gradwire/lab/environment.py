"""The environment variables of one rank."""

import os
from collections.abc import Mapping
from dataclasses import dataclass

# Not set where the caller has set them. Ranks share few cores: one thread each. Lines must arrive
# when they are printed. Memory that glibc gave back to the kernel costs page faults to get again.
_DEFAULTS = {
    "OMP_NUM_THREADS": "1",
    "PYTHONUNBUFFERED": "1",
    "MALLOC_MMAP_THRESHOLD_": str(1 << 30),
    "MALLOC_TRIM_THRESHOLD_": str(1 << 30),
    "MALLOC_TOP_PAD_": str(1 << 26),
}


@dataclass(frozen=True)
class Layout:
    """Which process is where: ranks are counted host by host."""

    hosts: int
    procs_per_host: int
    master_address: str
    interface: str

    @property
    def ranks(self) -> int:
        """The number of processes in all."""
        return self.hosts * self.procs_per_host

    def host_of(self, rank: int) -> int:
        """Return the host that a rank runs on."""
        return rank // self.procs_per_host


def rank_environment(
    layout: Layout, rank: int, master_port: int, extra: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Return the whole environment of one rank: the caller's, `extra`, and the lab's variables.

    The lab's own variables win, but for the defaults of threads, buffering and memory.
    """
    return {
        **_DEFAULTS,
        **os.environ,
        **(extra or {}),
        "RANK": str(rank),
        "WORLD_SIZE": str(layout.ranks),
        "LOCAL_RANK": str(rank % layout.procs_per_host),
        "LOCAL_WORLD_SIZE": str(layout.procs_per_host),
        "GROUP_RANK": str(layout.host_of(rank)),
        "GROUP_WORLD_SIZE": str(layout.hosts),
        "MASTER_ADDR": layout.master_address,
        "MASTER_PORT": str(master_port),
        "GLOO_SOCKET_IFNAME": layout.interface,
        "GRADWIRE_LAB": "1",
        "GRADWIRE_LAB_INTERFACE": layout.interface,
    }

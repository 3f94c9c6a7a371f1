"""The environment variables of one rank."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gradwire.errors import LabError

# The caller's own values win. Ranks share few cores: one thread each. Lines must arrive when they
# are printed. Memory that glibc gave back to the kernel costs page faults to get again.
_DEFAULTS = {
    "OMP_NUM_THREADS": "1",
    "PYTHONUNBUFFERED": "1",
    "MALLOC_MMAP_THRESHOLD_": str(1 << 30),
    "MALLOC_TRIM_THRESHOLD_": str(1 << 30),
    "MALLOC_TOP_PAD_": str(1 << 26),
}


@dataclass(frozen=True)
class Layout:
    """The host of each rank: ranks fill host after host, in `order`. addresses: those of hosts;
    planes: the hosts' addresses on planes, if there are any."""

    order: Sequence[int]
    procs_per_host: int
    interface: str
    addresses: Sequence[str]
    planes: Sequence[Sequence[str]] = ()

    @property
    def ranks(self) -> int:
        """The number of processes in all."""
        return len(self.order) * self.procs_per_host

    def host_of(self, rank: int) -> int:
        """Return the host that a rank runs on."""
        return self.order[rank // self.procs_per_host]


def check_environment(extra: Mapping[str, str] | None) -> None:
    """Raise LabError unless all are texts, as the kernel takes no others."""
    for name, value in (extra or {}).items():
        if not (isinstance(name, str) and isinstance(value, str)):
            raise LabError(
                f"variables and their values must be text; got env={{{name!r}: {value!r:.80}}}. "
                f"Pass for example {{{str(name)!r}: {str(value)!r:.80}}}."
            )


def rank_environment(
    layout: Layout, rank: int, master_port: int, extra: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Return the whole environment of one rank: the caller's, `extra`, and the lab's variables.

    The lab's own variables win, except the defaults of threads, buffering and memory.
    """
    planes = layout.planes[layout.host_of(rank)] if layout.planes else ()
    return {
        **_DEFAULTS,
        **os.environ,
        **(extra or {}),
        "RANK": str(rank),
        "WORLD_SIZE": str(layout.ranks),
        "LOCAL_RANK": str(rank % layout.procs_per_host),
        "LOCAL_WORLD_SIZE": str(layout.procs_per_host),
        "GROUP_RANK": str(rank // layout.procs_per_host),
        "GROUP_WORLD_SIZE": str(len(layout.order)),
        "MASTER_ADDR": layout.addresses[layout.host_of(0)],
        "MASTER_PORT": str(master_port),
        "GLOO_SOCKET_IFNAME": layout.interface,
        "GRADWIRE_LAB": "1",
        "GRADWIRE_LAB_INTERFACE": layout.interface,
        "GRADWIRE_HOST": str(layout.host_of(rank)),
        **({"GRADWIRE_PLANES": ",".join(planes)} if planes else {}),
    }

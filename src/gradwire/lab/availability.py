"""Finds out whether this machine allows network namespaces, by making some, and what would allow
them."""

import functools
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from gradwire.errors import LabError

Mode = Literal["root", "rootless", "none"]

_SYSCTLS = {
    "kernel.unprivileged_userns_clone": ("0", "1"),  # Debian
    "kernel.apparmor_restrict_unprivileged_userns": ("1", "0"),  # Ubuntu, since 23.10
    "user.max_user_namespaces": ("0", "15000"),
    "user.max_net_namespaces": ("0", "15000"),
}
"""The kernel's switches: the value that forbids namespaces to a user, and one that does not."""

_REASONS: dict[Mode, str] = {
    "root": "running as root with the privilege to make network namespaces",
    "rootless": "the kernel lets this user make user and network namespaces",
}


@dataclass(frozen=True)
class Availability:
    """How the lab can work here, and why that way.

    mode: "root", namespaces with the caller's own privilege; "rootless", inside a user namespace;
    or "none", not at all: loopback remains. reason: why, in words. cure: what would help then.
    """

    mode: Mode
    reason: str
    cure: str = ""


@functools.cache
def available() -> Availability:
    """Return how the lab can work here, by building the smallest network and tearing it down
    again: about a quarter second, once."""
    if sys.platform != "linux":
        why = f"network namespaces need Linux; this is {sys.platform}"
        return Availability("none", why, "Run it on Linux.")
    from gradwire.lab.network import which

    if absent := [tool for tool in ("ip", "tc") if which(tool) is None]:
        why = f"a network is built with iproute2's ip and tc; {' and '.join(absent)} not found"
        return Availability("none", why, "Install the package iproute2.")
    refusals = []
    for mode, reason in _REASONS.items():
        if mode == "root" and os.geteuid() != 0:
            continue
        refusal = _refusal(mode)
        if refusal is None:
            return Availability(mode, reason)
        refusals.append(f"{mode}: {refusal}")
    return Availability("none", "; ".join(refusals), how_to_allow())


def _refusal(mode: Mode) -> str | None:
    from gradwire.lab.guarded import GuardConnection
    from gradwire.lab.wiring import one_switch

    try:
        GuardConnection(mode, one_switch(1, 10**9)).close()
    except (LabError, OSError) as error:
        return str(error)
    return None


def refused(found: Availability, instead: str) -> LabError:
    """Return the error for a machine where no network can be made. instead: how callers choose
    loopback."""
    return LabError(
        "an emulated network needs network namespaces, and iproute2 to build it; here it cannot "
        f"be made ({found.reason}). {found.cure} Or use {instead}: the same processes on "
        "127.0.0.1, at full speed."
    )


def how_to_allow(sysctls: Path = Path("/proc/sys")) -> str:
    """Return what an administrator can do, by the settings of this machine."""
    closed = [
        f"{name}={allows}"
        for name, (forbids, allows) in _SYSCTLS.items()
        if _read(sysctls / name.replace(".", "/")) == forbids
    ]
    if closed:
        return f"To allow them: sudo sysctl -w {' '.join(closed)}."
    return (
        f"No sysctl forbids them here ({', '.join(_SYSCTLS)}); a container may (start it with "
        "docker run --privileged), or a security policy."
    )


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""

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
    or "none", not at all: loopback remains. reason: why, in words.
    """

    mode: Mode
    reason: str


@functools.cache
def available() -> Availability:
    """Return how the lab can work here, by building the smallest network and tearing it down
    again: about a quarter second, once."""
    if sys.platform != "linux":
        return Availability("none", f"network namespaces need Linux; this is {sys.platform}")
    refusals = []
    for mode, reason in _REASONS.items():
        if mode == "root" and os.geteuid() != 0:
            continue
        refusal = _refusal(mode)
        if refusal is None:
            return Availability(mode, reason)
        refusals.append(f"{mode}: {refusal}")
    return Availability("none", "; ".join(refusals))


def _refusal(mode: Mode) -> str | None:
    from gradwire.lab.guarded import GuardConnection
    from gradwire.lab.wiring import one_switch

    try:
        GuardConnection(mode, one_switch(1, 10**9)).close()
    except (LabError, OSError) as error:
        return str(error)
    return None


def refused(reason: str, instead: str) -> LabError:
    """Return the error for a machine without namespaces. instead: how callers choose loopback."""
    return LabError(
        f"an emulated network needs network namespaces; this machine refuses them ({reason}). "
        f"{how_to_allow()} Or use {instead}: the same processes on 127.0.0.1, at full speed."
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

"""Whether this machine lets us make network namespaces, found out by making some."""

import functools
import os
import sys
from dataclasses import dataclass
from typing import Literal

from gradwire.errors import LabError

Mode = Literal["root", "rootless", "none"]


@dataclass(frozen=True)
class Availability:
    """How the lab can work here, and why that way.

    root: namespaces with the caller's own privilege. rootless: inside a user namespace.
    none: not at all; loopback remains.
    """

    mode: Mode
    reason: str


@functools.cache
def available() -> Availability:
    """Build the smallest network and tear it down again; about a quarter second, once."""
    if sys.platform != "linux":
        return Availability(
            "none", f"network namespaces are a part of Linux; this is {sys.platform}"
        )
    refusals = []
    for mode in _modes_to_try():
        refusal = _refusal(mode)
        if refusal is None:
            return Availability(mode, _reason(mode))
        refusals.append(f"{mode}: {refusal}")
    return Availability("none", "; ".join(refusals))


def _modes_to_try() -> list[Mode]:
    return ["root", "rootless"] if os.geteuid() == 0 else ["rootless"]


def _refusal(mode: Mode) -> str | None:
    from gradwire.lab.guarded import GuardConnection
    from gradwire.lab.one_switch import one_switch

    try:
        GuardConnection(mode, one_switch(1, 10**9)).close()
    except (LabError, OSError) as error:
        return str(error)
    return None


def _reason(mode: Mode) -> str:
    if mode == "root":
        return "running as root with the privilege to make network namespaces"
    return "the kernel lets this user make user and network namespaces"

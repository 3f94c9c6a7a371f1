"""Finds gradwire._native without torch. The extension checks nothing: its callers do."""

from __future__ import annotations

import functools
import importlib
import os
from typing import Protocol, cast

VARIABLE, TWIN = "GRADWIRE_KERNELS", "twin"  # as of gradwire.kernels


class NetworkCore(Protocol):
    """What gradwire._native has for the network: addresses and sizes."""

    def colour_edges(
        self,
        n: int,
        left: int,
        right: int,
        left_side: tuple[int, int, int],
        right_side: tuple[int, int, int],
        colours: int,
        seed: int,
        colour: int,
        /,
    ) -> None: ...


def core() -> NetworkCore | None:
    """None where the twins have to run: they give as good results, 100 times slower."""
    return None if os.environ.get(VARIABLE) == TWIN else _loaded()


@functools.cache
def _loaded() -> NetworkCore | None:
    try:
        return cast(NetworkCore, importlib.import_module("gradwire._native"))
    except ImportError:
        return None

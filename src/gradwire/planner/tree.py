"""The decision tree: every way to compress, move and add up a tensor.

Source: Wang et al. 2023, "Hi-Speed DNN Training with Espresso" (ByteComp), section 4.2, figure 8.
The grammar is that of `gradwire.tasks`, which also parses; the paper's count is its oracle.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from gradwire.tasks import DEVICES, Path, paths


def options(devices: Sequence[str] = DEVICES) -> tuple[Path, ...]:
    """All paths, always in the same order: those among all ranks, then those by machines.

    devices: where may be compressed and decompressed, each time anew: 4,341 options with "gpu" and
    "cpu", 174 with one. str(option) is what stands in `steps("…")`.
    """
    return _options(tuple(devices))


@cache
def _options(devices: tuple[str, ...]) -> tuple[Path, ...]:
    return tuple(paths(devices))

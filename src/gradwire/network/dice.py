"""Random numbers that C++ and Python draw alike: 32 bits for each seed and index.

Source: the finalizer of splitmix64 (Steele, Lea and Flood 2014), as `Dice` in
csrc/network/paths.hpp.
"""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from gradwire.network.checked import Ints

N = TypeVar("N", int, Ints)
_GOLDEN = 0x9E3779B97F4A7C15
_WORD = (1 << 64) - 1


def draws(seed: int, count: int) -> Ints:
    """Returns a random number from 0 to 2**32 - 1 for each index below count."""
    with np.errstate(over="ignore"):
        key = _mixed(np.array([(seed + _GOLDEN) & _WORD], np.uint64))
        steps = np.arange(1, count + 1, dtype=np.uint64) * np.uint64(_GOLDEN)
        return (_mixed(key + steps) >> np.uint64(32)).astype(np.int64)


def pick(drawn: N, count: Any) -> N:
    """Maps what was drawn, one number or many, to numbers below count."""
    picked: N = drawn * count >> 32
    return picked


def _mixed(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))

"""All-reduce by partners at distances that double: few steps, large parts first."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from gradwire.network.checked import Ints
from gradwire.network.flows import Flows
from gradwire.network.patterns.parts import checked, steps


def halving_doubling(ranks: int, bytes: int) -> Flows:
    """Returns flows of recursive halving, then doubling (Thakur, Rabenseifner and Gropp 2005).
    Ranks beyond a power of two send all to a partner first, and receive the sum at the end."""
    checked(ranks, bytes)
    return steps(_steps(ranks, bytes))


def _steps(ranks: int, bytes: int) -> Iterator[tuple[Ints, Ints, Ints]]:
    power = 1 << (ranks.bit_length() - 1)
    rest = np.arange(power, ranks)
    whole = np.full(len(rest), bytes)
    if len(rest):
        yield rest, rest - power, whole
    rank, held = np.arange(power), np.full(power, bytes)
    distances = [1 << level for level in range(power.bit_length() - 1)]
    for distance in reversed(distances):  # the lower partner keeps the larger half
        given = np.where((rank & distance) == 0, held // 2, held - held // 2)
        yield rank, rank ^ distance, given
        held = held - given
    for distance in distances:
        yield rank, rank ^ distance, held
        held = held + held[rank ^ distance]
    if len(rest):
        yield rest - power, rest, whole

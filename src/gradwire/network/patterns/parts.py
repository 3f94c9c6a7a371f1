"""What patterns share: bytes in parts, and rows of flows."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from gradwire.network.checked import Ints
from gradwire.network.fabric import count
from gradwire.network.flows import Flows


def checked(ranks: int, bytes: int) -> None:
    """NetworkError unless there are ranks, and bytes."""
    count("ranks", ranks)
    count("bytes", bytes)


def parts(bytes: int, ranks: int) -> Ints:
    """Cut bytes as evenly as whole bytes can be: the first ones have one more."""
    least, more = divmod(bytes, ranks)
    return least + (np.arange(ranks) < more)


def all_pairs(ranks: int) -> tuple[Ints, Ints]:
    """Source and target, to the next rank first: who sends in this order meets nobody at a
    receiver, as everybody would at rank 0."""
    source, far = np.divmod(np.arange(ranks * ranks), ranks)
    return source, (source + far) % ranks


def steps(rows: Iterable[tuple[Ints, Ints, Ints]]) -> Flows:
    """Make flows of source, target and bytes of each step; without those of no bytes, or to
    oneself."""
    made = list(rows)
    if not made:
        return Flows.of([])
    source, target, bytes = (np.concatenate(column) for column in zip(*made))
    step = np.repeat(np.arange(len(made)), [len(row[0]) for row in made])
    kept = (bytes > 0) & (source != target)
    return Flows(source[kept], target[kept], bytes[kept], step[kept])

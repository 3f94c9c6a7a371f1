"""Functions that patterns share: bytes in parts, and rows of flows."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from gradwire.network.checked import Ints
from gradwire.network.fabric import count
from gradwire.network.flows import Flows


def checked(ranks: int, bytes: int) -> None:
    """Raises NetworkError unless ranks and bytes are whole numbers above 0."""
    count("ranks", ranks)
    count("bytes", bytes)


def parts(bytes: int, ranks: int) -> Ints:
    """Cuts bytes into whole parts, as evenly as possible: the first ones have one more."""
    least, more = divmod(bytes, ranks)
    return least + (np.arange(ranks) < more)


def all_pairs(ranks: int) -> tuple[Ints, Ints]:
    """Returns source and target, the next rank first: ranks that send in this order have
    different receivers at any time, while all would begin with rank 0."""
    source, far = np.divmod(np.arange(ranks * ranks), ranks)
    return source, (source + far) % ranks


def steps(rows: Iterable[tuple[Ints, Ints, Ints]]) -> Flows:
    """Makes flows of source, target and bytes of each step, without those of no bytes, and those
    of a rank to itself."""
    made = list(rows)
    if not made:
        return Flows.of([])
    source, target, bytes = (np.concatenate(column) for column in zip(*made))
    step = np.repeat(np.arange(len(made)), [len(row[0]) for row in made])
    kept = (bytes > 0) & (source != target)
    return Flows(source[kept], target[kept], bytes[kept], step[kept])

"""The paths of `steps` in parts, of which the fast suite runs the first."""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Sequence

from gradwire.tasks import Path
from suites import covering


def parted(every: Sequence[Path], others: int) -> list[list[Path]]:
    """The paths in 1 + others parts. The first has those few in which any two tasks that follow
    each other in some path do, and each task with which one begins or ends."""
    few = covering([_neighbours(path) for path in every])
    rest = [path for i, path in enumerate(every) if i not in {*few}]
    return [[every[i] for i in few], *(rest[i::others] for i in range(others))]


def _neighbours(path: Path) -> frozenset[Hashable]:
    tasks = ["", *map(str, path.tasks), ""]
    return frozenset(itertools.pairwise(tasks))

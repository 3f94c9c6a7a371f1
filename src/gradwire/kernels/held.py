"""Sums with a status word, by rooms that look at it: on processors nobody waits for that."""

from collections.abc import Callable, Sequence
from typing import TypeVar

from torch import Tensor

from gradwire.kernels.values import DAMAGED

Segment = TypeVar("Segment")


def held_by(
    status: Tensor | None, work: Callable[[Sequence[Segment]], int], segments: Sequence[Segment]
) -> int:
    """How many segments are well, as `work` says; with a status all are, as what is bad raises it
    by DAMAGED, and where it is raised nothing is done."""
    if status is None:
        return work(segments)
    if not status and work(segments) < len(segments):
        status.bitwise_or_(DAMAGED)
    return len(segments)

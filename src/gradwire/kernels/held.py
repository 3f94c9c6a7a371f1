"""Sums with a status word in rooms that read it on the host: on the CPU that needs no waiting."""

from collections.abc import Callable, Sequence
from typing import TypeVar

from torch import Tensor

from gradwire.kernels.values import DAMAGED

Segment = TypeVar("Segment")


def held_by(
    status: Tensor | None, work: Callable[[Sequence[Segment]], int], segments: Sequence[Segment]
) -> int:
    """Runs the work and returns how many segments are valid. With a status all count as valid: a
    bad one raises DAMAGED instead, and if the status is raised before, no work is done."""
    if status is None:
        return work(segments)
    if not status and work(segments) < len(segments):
        status.bitwise_or_(DAMAGED)
    return len(segments)

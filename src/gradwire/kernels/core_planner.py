"""What gradwire._native has for the planner: addresses and sizes, nothing checked."""

from typing import Protocol

GivenOption = tuple[int, int, int, int]
"""A lane, and how many rows its encode, send and decode curves have, one after the other."""


class PlannerCore(Protocol):
    """What kernels/one_link.py calls."""

    def plan_link(
        self,
        ready: int,
        position: int,
        n: int,
        rows: int,
        options: list[GivenOption],
        most: tuple[int, int],
        tolerance: float,
        max_labels: int,
        /,
    ) -> tuple[list[int], list[int], float, float, int]: ...

"""What runs the jobs of a step, as the planner tells the kernels."""

from __future__ import annotations

from typing import NamedTuple


class Machine(NamedTuple):
    """What runs the jobs. lanes: of the conductor. backward_seconds: not less than any ready.
    start_slowdown: 1.0 or more; start_sharing, start_demand: not negative."""

    lanes: int
    cores: float
    wire_demand: float
    workers: float
    backward_seconds: float
    start_slowdown: float = 1.0
    start_sharing: float = 0.0
    start_demand: float = 0.0

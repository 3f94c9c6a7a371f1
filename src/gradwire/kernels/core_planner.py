"""What gradwire._native has for the planner: addresses and sizes, nothing checked."""

from typing import Protocol

GivenOption = tuple[int, int, int, int]
"""A lane, and how many rows its encode, send and decode curves have, one after the other."""

JobsAt = tuple[int, int, int, int, int, int]
"""How many jobs; the addresses of ready, option, stage, lane, seconds."""

MachineIs = tuple[int, float, float, float, float, float, float, float]
"""The fields of `Machine` (kernels/machine.py)."""


class PlannerCore(Protocol):
    """What kernels/one_link.py, schedule.py, queues.py and choices.py call."""

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

    def simulate_step(
        self, jobs: JobsAt, machine: MachineIs, choice: int, repeats: int, /
    ) -> float: ...
    def record_step(
        self, jobs: JobsAt, machine: MachineIs, choice: int, start: int, end: int, /
    ) -> tuple[float, float]: ...
    def ordered_step(
        self, jobs: JobsAt, choice: int, backward: float, by_ready: bool, idle: int, /
    ) -> float: ...
    def search_options(
        self,
        jobs: JobsAt,
        machine: MachineIs,
        limit: float,
        seed: int,
        rounds: int,
        choice: int,
        /,
    ) -> tuple[float, float, float]: ...
    def exhaust_options(
        self, jobs: JobsAt, machine: MachineIs, choice: int, /
    ) -> tuple[float, float]: ...
    def lower_bound(self, jobs: JobsAt, machine: MachineIs, rounds: int, /) -> float: ...
    def undominated(self, jobs: JobsAt, /) -> list[int]: ...

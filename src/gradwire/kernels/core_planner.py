"""What gradwire._native has for the planner: addresses and sizes, nothing checked."""

from typing import Protocol

JobsAt = tuple[int, int, int, int, int, int]
"""How many jobs; the addresses of ready, option, stage, lane, seconds."""

MachineIs = tuple[int, float, float, float, float, float, float, float]
"""The fields of `Machine` (kernels/machine.py)."""


class PlannerCore(Protocol):
    """What schedule.py, queues.py and choices.py in kernels/cpu call."""

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

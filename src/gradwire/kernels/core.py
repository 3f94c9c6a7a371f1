"""What gradwire._native offers: addresses and sizes, nothing checked."""

from typing import Protocol, TypeAlias

from gradwire.kernels.core_planner import PlannerCore
from gradwire.kernels.core_streams import StreamsCore


class NativeJournal(Protocol):
    """gradwire._native.Journal: what one update kept."""

    def address(self) -> int: ...
    def elements(self) -> int: ...
    def fits(self, n: int, with_velocity: bool, /) -> bool: ...
    def put_back(self, u: int, v: int, /) -> None: ...


Step: TypeAlias = tuple[float, float, float, float, float, float, float, float]
"""An `AdamStep`."""
Dice: TypeAlias = tuple[int, int, int]
"""A `Noise`."""
Rule: TypeAlias = tuple[int, float, float]
"""The number of a recurrence, what it multiplies its state with, and the gradient."""
UpdateRow: TypeAlias = tuple[int, int, int, int, int, Rule, bool, int, int, int, int, float, int]
"""Type, gradient, u, v, n; rule, mask, k, index, value, velocities, hint, journal."""
CodesRow: TypeAlias = tuple[int, int, int, int, int, int, Rule, Dice, int, int, float, int]
"""Format, type, gradient, u, v, n; rule, dice, codes, scales, hint, journal."""
AdamRow: TypeAlias = tuple[int, int, int, int, int, int, int, Step, Dice, int, int]
"""Format, type, gradient, m, q, v, n; step, dice, codes, scales."""
CodedSumRow: TypeAlias = (
    "tuple[int, int, int, list[tuple[int, int, int, int, int, int]], float, bool]"
)
SumRow: TypeAlias = tuple[int, int, int, int, list[tuple[int, int]], int, float, float, bool]
"""Format, type, target, n, payloads; scales of each, the largest there may be, divisor, stream."""


class Core(StreamsCore, PlannerCore, Protocol):
    """The functions of gradwire._native: addresses and sizes, nothing checked."""

    def Journal(self) -> NativeJournal: ...
    def best_instruction_set(self) -> int: ...
    def fallbacks(self) -> int: ...
    def topk(
        self, set: int, type: int, x: int, n: int, k: int, index: int, value: int, hint: float, /
    ) -> tuple[float, bool]: ...
    def reaching(
        self,
        set: int,
        type: int,
        x: int,
        n: int,
        least: float,
        room: int,
        index: int,
        value: int,
        /,
    ) -> tuple[int, bool]: ...
    def update_topk(self, set: int, rows: list[UpdateRow], /) -> tuple[list[float], bool]: ...
    def undo(
        self,
        set: int,
        type: int,
        gradient: int,
        u: int,
        v: int,
        n: int,
        mode: int,
        momentum: float,
        scale: float,
        /,
    ) -> None: ...
    def restore(
        self, u: int, v: int, index: int, value: int, velocities: int, k: int, /
    ) -> None: ...
    def add(self, v: int, index: int, value: int, k: int, factor: float, /) -> None: ...
    def first_violation(self, index: int, count: int, n: int, /) -> int: ...
    def encode_indices(
        self, code: int, n: int, k: int, index: int, section: int, bytes: int, /
    ) -> None: ...
    def decode_indices(
        self, set: int, code: int, n: int, k: int, section: int, bytes: int, index: int, /
    ) -> int: ...
    def accumulate(
        self,
        set: int,
        type: int,
        target: int,
        n: int,
        payloads: list[tuple[int, int, int, int]],
        divisor: float,
        stream: bool,
        /,
    ) -> None: ...
    def accumulate_coded(self, set: int, rows: list[CodedSumRow], /) -> int: ...
    def accumulate_dense(
        self,
        set: int,
        type: int,
        target: int,
        n: int,
        payloads: list[tuple[int, int]],
        divisor: float,
        stream: bool,
        /,
    ) -> None: ...
    def cast(
        self, set: int, from_: int, to: int, source: int, target: int, n: int, stream: bool, /
    ) -> bool: ...
    def add_cast(
        self, set: int, type: int, source: int, sum: int, n: int, factor: float, /
    ) -> None: ...
    def is_finite(self, set: int, type: int, x: int, n: int, /) -> bool: ...
    def encode(
        self,
        set: int,
        format: int,
        type: int,
        x: int,
        n: int,
        noise: tuple[int, int, int],
        given_scale: float,
        codes: int,
        scales: int,
        stream: bool,
        /,
    ) -> bool: ...
    def update_codes(self, set: int, rows: list[CodesRow], /) -> bool: ...
    def adam(
        self, set: int, type: int, gradient: int, m: int, q: int, v: int, n: int, how: Step, /
    ) -> bool: ...
    def undo_adam(
        self, set: int, type: int, gradient: int, m: int, q: int, v: int, n: int, how: Step, /
    ) -> None: ...
    def adam_codes(self, set: int, rows: list[AdamRow], /) -> bool: ...
    def accumulate_codes(self, set: int, rows: list[SumRow], /) -> int: ...
    def add_codes(
        self, set: int, format: int, v: int, n: int, codes: int, scales: int, factor: float, /
    ) -> None: ...
    def pack_signs(
        self,
        set: int,
        type: int,
        x: int,
        n: int,
        noise: tuple[int, int, int],
        throws: bool,
        bits: int,
        /,
    ) -> tuple[float, float, int, bool]: ...
    def accumulate_signs(
        self,
        set: int,
        type: int,
        target: int,
        n: int,
        payloads: list[tuple[int, int, int]],
        divisor: float,
        stream: bool,
        /,
    ) -> None: ...
    def add_signs(
        self, set: int, v: int, n: int, bits: int, values: int, count: int, factor: float, /
    ) -> None: ...
    def largest(
        self, set: int, type: int, x: int, n: int, squares: bool, /
    ) -> tuple[float, float]: ...
    def strata(
        self, set: int, noise: tuple[int, int, int], n: int, k: int, out: int, /
    ) -> None: ...
    def noise(
        self, set: int, noise: tuple[int, int, int], first: int, n: int, target: int, /
    ) -> None: ...
    def stream_update(
        self, set: int, gradient: int, u: int, v: int, n: int, momentum: float, /
    ) -> None: ...
    def stream_read(self, set: int, x: int, n: int, /) -> int: ...

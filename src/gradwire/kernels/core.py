"""The interface of gradwire._native: it takes addresses and sizes, and checks nothing."""

from typing import Protocol, TypeAlias


class NativeJournal(Protocol):
    """gradwire._native.Journal: the old values that one update kept."""

    def address(self) -> int: ...
    def elements(self) -> int: ...
    def fits(self, n: int, with_velocity: bool, /) -> bool: ...
    def put_back(self, u: int, v: int, /) -> None: ...


Step: TypeAlias = tuple[float, float, float, float, float, float, float, float]
"""The fields of an `AdamStep`."""
Dice: TypeAlias = tuple[int, int, int]
"""The fields of a `Noise`."""
Rule: TypeAlias = tuple[int, float, float]
"""The number of a recurrence, the factor of its state, and the factor of the gradient."""
UpdateRow: TypeAlias = tuple[int, int, int, int, int, Rule, bool, int, int, int, int, float, int]
"""Type, gradient, u, v, n; rule, mask, k, index, value, velocities, hint, journal."""
CodesRow: TypeAlias = tuple[int, int, int, int, int, int, Rule, Dice, int, int, float, int]
"""Format, type, gradient, u, v, n; rule, dice, codes, scales, hint, journal."""
AdamRow: TypeAlias = tuple[int, int, int, int, int, int, int, Step, Dice, int, int]
"""Format, type, gradient, m, q, v, n; step, dice, codes, scales."""
EntriesRow: TypeAlias = tuple[int, int, int, int, int, int, int, int, int, int, int]
"""n, k, places, values; code, section, bytes; type, out, sent, residual."""
CodedSumRow: TypeAlias = (
    "tuple[int, int, int, list[tuple[int, int, int, int, int, int]], float, bool]"
)
SumRow: TypeAlias = tuple[int, int, int, int, list[tuple[int, int]], int, float, float, bool]
"""Format, type, target, n, payloads; scales of each, the largest valid scale, divisor, stream."""
Given: TypeAlias = tuple[int, int, int, int]
"""A stream: the addresses of places and values, their count, and the values' dtype in CODES."""
IdsAt: TypeAlias = tuple[int, int, bool]
"""Ids: their address, their count, and whether they have 64 bits."""
Part: TypeAlias = tuple[int, int, int, int]
"""A coded list: its code's number in INDEX_CODES, n, k, and its size in bytes."""
Parts: TypeAlias = tuple[Part, Part, Part]
"""The lists of a section: crowded, full, thin."""
JobsAt: TypeAlias = tuple[int, int, int, int, int, int]
"""The number of jobs; the addresses of ready, option, stage, lane, seconds."""
MachineIs: TypeAlias = tuple[int, float, float, float, float, float, float, float]
"""The fields of `jobs.Machine`."""


class Core(Protocol):
    """The functions of gradwire._native."""

    def Journal(self) -> NativeJournal: ...
    def instruction_sets(self) -> list[str]: ...

    # selections and updates

    def fallbacks(self) -> int: ...
    def topk(
        self, set: int, type: int, x: int, n: int, k: int, index: int, value: int, hint: float, /
    ) -> tuple[float, bool]: ...
    def reaching(
        self, set: int, type: int, x: int, n: int, least: float, room: int, index: int,
        value: int, /,
    ) -> tuple[int, bool]: ...  # fmt: skip
    def update_topk(self, set: int, rows: list[UpdateRow], /) -> tuple[list[float], bool]: ...
    def undo(
        self, set: int, type: int, gradient: int, u: int, v: int, n: int, mode: int,
        momentum: float, scale: float, /,
    ) -> None: ...  # fmt: skip
    def restore(
        self, u: int, v: int, index: int, value: int, velocities: int, k: int, /
    ) -> None: ...
    def adam(
        self, set: int, type: int, gradient: int, m: int, q: int, v: int, n: int, how: Step, /
    ) -> bool: ...
    def undo_adam(
        self, set: int, type: int, gradient: int, m: int, q: int, v: int, n: int, how: Step, /
    ) -> None: ...
    def adam_codes(self, set: int, rows: list[AdamRow], /) -> bool: ...

    # sums and casts

    def add(self, v: int, index: int, value: int, k: int, factor: float, /) -> None: ...
    def first_violation(self, index: int, count: int, n: int, /) -> int: ...
    def accumulate(
        self, set: int, type: int, target: int, n: int, payloads: list[Given], divisor: float,
        stream: bool, /,
    ) -> None: ...  # fmt: skip
    def accumulate_coded(self, set: int, rows: list[CodedSumRow], /) -> int: ...
    def accumulate_dense(
        self, set: int, type: int, target: int, n: int, payloads: list[tuple[int, int]],
        divisor: float, stream: bool, /,
    ) -> None: ...  # fmt: skip
    def cast(
        self, set: int, from_: int, to: int, source: int, target: int, n: int, stream: bool, /
    ) -> bool: ...
    def add_cast(
        self, set: int, type: int, source: int, sum: int, n: int, factor: float, /
    ) -> None: ...
    def is_finite(self, set: int, type: int, x: int, n: int, /) -> bool: ...

    # codes of quantizers, signs, dice

    def encode(
        self, set: int, format: int, type: int, x: int, n: int, noise: Dice, given_scale: float,
        codes: int, scales: int, stream: bool, /,
    ) -> bool: ...  # fmt: skip
    def update_codes(self, set: int, rows: list[CodesRow], /) -> bool: ...
    def accumulate_codes(self, set: int, rows: list[SumRow], /) -> int: ...
    def add_codes(
        self, set: int, format: int, v: int, n: int, codes: int, scales: int, factor: float, /
    ) -> None: ...
    def pack_signs(
        self, set: int, type: int, x: int, n: int, noise: Dice, throws: bool, bits: int, /
    ) -> tuple[float, float, int, bool]: ...
    def accumulate_signs(
        self, set: int, type: int, target: int, n: int, payloads: list[tuple[int, int, int]],
        divisor: float, stream: bool, /,
    ) -> None: ...  # fmt: skip
    def add_signs(
        self, set: int, v: int, n: int, bits: int, values: int, count: int, factor: float, /
    ) -> None: ...
    def largest(
        self, set: int, type: int, x: int, n: int, squares: bool, /
    ) -> tuple[float, float]: ...
    def strata(self, set: int, noise: Dice, n: int, k: int, out: int, /) -> None: ...
    def noise(self, set: int, noise: Dice, first: int, n: int, target: int, /) -> None: ...

    # lists of places, streams, rows

    def encode_indices(
        self, code: int, n: int, k: int, index: int, section: int, bytes: int, /
    ) -> None: ...
    def write_entries(self, set: int, rows: list[EntriesRow], /) -> int: ...
    def decode_indices(
        self, set: int, code: int, n: int, k: int, section: int, bytes: int, index: int, /
    ) -> int: ...
    def count_crowds(self, places: int, k: int, /) -> tuple[int, int, int]: ...
    def encode_crowds(self, parts: Parts, places: int, k: int, section: int, /) -> bool: ...
    def decode_crowds(
        self, set: int, parts: Parts, section: int, k: int, places: int, /
    ) -> int: ...
    def split(
        self, set: int, whole: Given, owners: int, seed: int, places: int, values: int, /
    ) -> list[int]: ...
    def flat_places(
        self, set: int, places: int, k: int, owner: int, owners: int, seed: int, out: int, /
    ) -> None: ...
    def put_in_place(self, stream: Given, type: int, out: int, /) -> None: ...
    def merge(
        self, set: int, payloads: list[Given], n: int, divisor: float, type: int, places: int,
        values: int, /,
    ) -> int: ...  # fmt: skip
    def top_of_two(
        self, set: int, a: Given, b: Given, k: int, places: int, type: int, values: int, /
    ) -> int: ...
    def contained(self, places: int, k: int, among: int, others: int, out: int, /) -> None: ...
    def hash_partition(
        self, index: int, k: int, owners: int, seeds: list[int], parallel: int, serial: int,
        threads: int, out: int, /,
    ) -> tuple[list[int], int, int]: ...  # fmt: skip
    def nonzero_rows(self, x: int, rows: int, row_bytes: int, ids: int, /) -> int: ...
    def gather_stripes(
        self, x: int, ids: int, k: int, row_bytes: int, bounds_bytes: list[int], out: int, /
    ) -> None: ...
    def scatter_stripes(
        self, x: int, ids: int, k: int, row_bytes: int, bounds_bytes: list[int], stripes: int, /
    ) -> None: ...
    def order_rows(
        self, ids: list[IdsAt], rows: list[int], row_bytes: int, each: int, row: int, end: int, /
    ) -> int: ...
    def single_ids(self, ids: list[IdsAt], each: int, single: int, at: int, /) -> int: ...
    def sum_runs(
        self, set: int, type: int, rows: int, ends: int, runs: int, width: int, divisor: float,
        out_type: int, out: int, /,
    ) -> None: ...  # fmt: skip

    # predicted steps

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
        self, jobs: JobsAt, machine: MachineIs, limit: float, seed: int, rounds: int, choice: int,
        /,
    ) -> tuple[float, float, float]: ...  # fmt: skip
    def exhaust_options(
        self, jobs: JobsAt, machine: MachineIs, choice: int, /
    ) -> tuple[float, float]: ...
    def lower_bound(self, jobs: JobsAt, machine: MachineIs, rounds: int, /) -> float: ...
    def undominated(self, jobs: JobsAt, /) -> list[int]: ...

    # for benchmarks of the machine

    def stream_update(
        self, set: int, gradient: int, u: int, v: int, n: int, momentum: float, /
    ) -> None: ...
    def stream_read(self, set: int, x: int, n: int, /) -> int: ...
    def stream_halve(self, set: int, x: int, target: int, n: int, /) -> None: ...

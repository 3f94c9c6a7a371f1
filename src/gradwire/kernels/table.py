"""The operations that a room has. Faces check what they pass; a room checks nothing."""

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from gradwire.kernels.formats import Format
from gradwire.kernels.jobs import Best, Jobs, Machine, Recorded, Served
from gradwire.kernels.segments import (
    AdamCodes,
    CastInto,
    EncodeCodes,
    Reach,
    SumCoded,
    SumCodes,
    SumDense,
    UndoTopk,
    UpdateCodes,
    UpdateTopk,
    WriteEntries,
)
from gradwire.kernels.shapes import Shape
from gradwire.kernels.values import (
    AdamStep,
    Hint,
    Moments,
    Noise,
    Partition,
    Reaching,
)


class Room(Protocol):
    """Every operation on numbers; `room_of` chooses who does it.

    What an operation does with its arguments is said by the face of the same name; what none has,
    and what a face alone is told, is said here. Divisors and factors are finite in fp32, and
    rounded to it.
    """

    # casts

    def cast(self, source: Tensor, target: Tensor, status: Tensor | None, /) -> None: ...
    def cast_many(self, segments: Sequence[CastInto], status: Tensor | None, /) -> None: ...
    def add_cast(self, v: Tensor, source: Tensor, factor: float, /) -> None: ...
    def is_finite(self, x: Tensor, /) -> bool: ...

    # the status word, which every operation that is given it raises where something is not finite

    def flag_non_finite(self, x: Tensor, status: Tensor, /) -> None: ...
    def finite_part(self, x: Tensor, status: Tensor | None, /) -> Tensor: ...
    def spoil_if(self, status: Tensor, x: Tensor, /) -> None: ...
    def copy_unless(self, status: Tensor, x: Tensor, out: Tensor, /) -> None: ...
    def subtract(self, x: Tensor, y: Tensor, out: Tensor, status: Tensor, /) -> None: ...
    def stamp(self, words: Tensor, facts: Sequence[int], /) -> None: ...
    def judge(self, headers: Tensor, facts: Sequence[int], status: Tensor, /) -> None: ...

    # random numbers

    def dice(self, noise: Noise, first: int, out: Tensor, /) -> None:
        """The numbers of elements from `first` on, modulo 2^32, as int32."""

    def strata(self, noise: Noise, n: int, places: Tensor, /) -> None: ...

    # sums of payloads

    def first_violation(self, indices: Tensor, n: int, /) -> int:
        """Position of the first that is out of range or not above the one before; k if none."""

    def accumulate(
        self, out: Tensor, indices: list[Tensor], values: list[Tensor], divisor: float, /
    ) -> None: ...
    def accumulate_coded(
        self, segments: Sequence[SumCoded], status: Tensor | None = None, /
    ) -> int:
        """`accumulate` of coded places, until the first that are no list; how many that is.

        With a status nothing is written where it is raised, what is bad raises it by DAMAGED, and
        all are said to be well.
        """

    def accumulate_dense(self, out: Tensor, payloads: list[Tensor], divisor: float, /) -> None: ...
    def accumulate_many_dense(
        self, segments: Sequence[SumDense], status: Tensor | None = None, /
    ) -> None:
        """`accumulate_dense` of each. status: as of `accumulate_coded`."""

    def add(self, v: Tensor, indices: Tensor, values: Tensor, factor: float, /) -> None: ...
    def add_coded(
        self, v: Tensor, section: Tensor, code: str, values: Tensor, factor: float, /
    ) -> bool:
        """`add` of coded places. Whether they are a list: True where a device would have to be
        waited for to know, and what is none is left out."""

    # codes of quantizers

    def largest(self, x: Tensor, squares: bool, /) -> tuple[float, float]: ...
    def encode_codes(
        self, form: Format, x: Tensor, codes: Tensor, scales: Tensor, status: Tensor,
        noise: Noise, clip: float | None, /,
    ) -> None: ...  # fmt: skip
    def encode_many_codes(self, segments: Sequence[EncodeCodes], status: Tensor, /) -> None: ...
    def update_codes(self, segments: Sequence[UpdateCodes], status: Tensor, /) -> None: ...
    def accumulate_codes(
        self, segments: Sequence[SumCodes], status: Tensor | None = None, /
    ) -> int:
        """The first segment of which a scale is above `form.most_scale`, or none at all: what
        follows is not written. Or how many. status: as of `accumulate_coded`."""

    def add_codes(
        self, form: Format, v: Tensor, codes: Tensor, scales: Tensor, factor: float, /
    ) -> None: ...

    # selections and updates

    def fallbacks(self) -> int: ...
    def topk(
        self, x: Tensor, k: int, indices: Tensor, values: Tensor, status: Tensor, hint: Hint, /
    ) -> Hint: ...
    def reach(self, segments: Sequence[Reach], status: Tensor, /) -> list[Reaching]: ...
    def update_topk(self, segments: Sequence[UpdateTopk], status: Tensor, /) -> Sequence[Hint]: ...
    def undo_topk(self, segments: Sequence[UndoTopk], /) -> int:
        """Give back what was taken; where there is a gradient, take the recurrence of
        `update_topk` back, where it did not leave an element alone. Journals are not asked.

        Until the first whose places do not ascend, with nothing written; how many that is, or all,
        where the host would have to wait to know.
        """

    # Adam's step

    def adam(
        self, g: Tensor, moments: Moments, v: Tensor, how: AdamStep, status: Tensor, /
    ) -> None: ...
    def undo_adam(self, g: Tensor, moments: Moments, v: Tensor, how: AdamStep, /) -> None: ...
    def adam_codes(self, segments: Sequence[AdamCodes], status: Tensor, /) -> None: ...

    # lists of places, and streams

    def write_entries(self, segments: Sequence[WriteEntries], /) -> int:
        """Until the first whose places do not ascend; how many that is, or all, where the host
        would have to wait to know."""

    def encode_indices(self, indices: Tensor, n: int, code: str, section: Tensor, /) -> None: ...
    def decode_indices(self, section: Tensor, n: int, code: str, indices_out: Tensor, /) -> int:
        """k, or a wrong entry's position, or k + 1 for what follows them."""

    def count_crowds(self, places: Tensor, /) -> tuple[int, int, int]:
        """Crowded chunks, full ones, and places outside of them."""

    def encode_shaped(self, places: Tensor, n: int, shape: Shape, section: Tensor, /) -> bool:
        """Whether the list has this shape."""

    def decode_shaped(self, section: Tensor, n: int, shape: Shape, places_out: Tensor, /) -> int:
        """0, or the number of the part that cannot be: from 1 the crowded, the full, the thin, all
        together."""

    def split_stream(
        self, places: Tensor, values: Tensor, owners: int, seed: int, places_out: Tensor,
        values_out: Tensor, /,
    ) -> list[int]: ...  # fmt: skip
    def flat_places(
        self, places: Tensor, owner: int, owners: int, seed: int, places_out: Tensor, /
    ) -> None: ...
    def place_stream(self, out: Tensor, places: Tensor, values: Tensor, /) -> None: ...
    def merge_streams(
        self, n: int, places: list[Tensor], values: list[Tensor], divisor: float,
        places_out: Tensor, values_out: Tensor, /,
    ) -> int: ...  # fmt: skip
    def top_of_two(
        self, n: int, a_places: Tensor, a_values: Tensor, b_places: Tensor, b_values: Tensor,
        k: int, places_out: Tensor, values_out: Tensor, /,
    ) -> int: ...  # fmt: skip
    def contained(self, places: Tensor, among: Tensor, out: Tensor, /) -> None: ...
    def hash_partition(
        self, indices: Tensor, owners: int, seeds: Sequence[int], indices_out: Tensor,
        slots: tuple[int, int], threads: int, /,
    ) -> Partition: ...  # fmt: skip

    # rows

    def nonzero_rows(self, x: Tensor, ids_out: Tensor, /) -> int: ...
    def gather_stripes(
        self, x: Tensor, ids: Tensor, bounds: Sequence[int], out: Tensor, /
    ) -> None: ...
    def scatter_stripes(
        self, x: Tensor, ids: Tensor, bounds: Sequence[int], stripes: Tensor, /
    ) -> None: ...
    def single_ids(self, ids: Sequence[Tensor], /) -> tuple[Tensor, Tensor, Tensor]: ...
    def sum_rows(
        self, ids: Sequence[Tensor], rows: Sequence[Tensor], divisor: float, dtype: torch.dtype, /
    ) -> tuple[Tensor, Tensor]: ...

    # predicted steps

    def simulate_step(
        self, jobs: Jobs, machine: Machine, choice: Tensor, repeats: int, /
    ) -> float: ...
    def record_step(self, jobs: Jobs, machine: Machine, choice: Tensor, /) -> Recorded: ...
    def ordered_step(
        self, jobs: Jobs, choice: Tensor, backward_seconds: float, by_ready: bool, /
    ) -> Served: ...
    def search_options(
        self, jobs: Jobs, machine: Machine, start: Tensor, limit: float, seed: int, /
    ) -> Best: ...
    def exhaust_options(self, jobs: Jobs, machine: Machine, start: Tensor, /) -> Best: ...
    def lower_bound(self, jobs: Jobs, machine: Machine, /) -> float: ...
    def undominated(self, jobs: Jobs, /) -> list[int]: ...

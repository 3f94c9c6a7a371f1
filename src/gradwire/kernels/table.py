"""The operations that a room has. Faces check the arguments; a room checks nothing."""

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
    """Every operation on numbers; `room_of` chooses the room that runs it.

    The face of the same name documents an operation and its arguments; operations without a face,
    and results that only the face sees, are documented here. Divisors and factors are finite in
    fp32, and rounded to it.
    """

    # casts

    def cast(self, source: Tensor, target: Tensor, status: Tensor | None, /) -> None: ...
    def cast_many(self, segments: Sequence[CastInto], status: Tensor | None, /) -> None: ...
    def add_cast(self, v: Tensor, source: Tensor, factor: float, /) -> None: ...
    def is_finite(self, x: Tensor, /) -> bool: ...

    # the status word: every operation that takes it raises it where something is not finite

    def flag_non_finite(self, x: Tensor, status: Tensor, /) -> None: ...
    def finite_part(self, x: Tensor, status: Tensor | None, /) -> Tensor: ...
    def spoil_if(self, status: Tensor, x: Tensor, /) -> None: ...
    def copy_unless(self, status: Tensor, x: Tensor, out: Tensor, /) -> None: ...
    def subtract(self, x: Tensor, y: Tensor, out: Tensor, status: Tensor, /) -> None: ...
    def stamp(self, words: Tensor, facts: Sequence[int], /) -> None: ...
    def judge(self, headers: Tensor, facts: Sequence[int], status: Tensor, /) -> None: ...

    # random numbers

    def dice(self, noise: Noise, first: int, out: Tensor, /) -> None:
        """Writes the random numbers of elements from `first` on, modulo 2^32, as int32."""

    def strata(self, noise: Noise, n: int, places: Tensor, /) -> None: ...

    # sums of payloads

    def first_violation(self, indices: Tensor, n: int, /) -> int:
        """Returns the position of the first index that is out of range or not above the one
        before; k if there is none."""

    def accumulate(
        self, out: Tensor, indices: list[Tensor], values: list[Tensor], divisor: float, /
    ) -> None: ...
    def accumulate_coded(
        self, segments: Sequence[SumCoded], status: Tensor | None = None, /
    ) -> int:
        """Runs `accumulate` for coded places, up to the first segment whose places are not a list;
        returns how many are valid.

        With a status nothing is written if it is raised, a bad segment raises it by DAMAGED, and
        the number of all is returned.
        """

    def accumulate_dense(self, out: Tensor, payloads: list[Tensor], divisor: float, /) -> None: ...
    def accumulate_many_dense(
        self, segments: Sequence[SumDense], status: Tensor | None = None, /
    ) -> None:
        """Runs `accumulate_dense` for each segment. status: as in `accumulate_coded`."""

    def add(self, v: Tensor, indices: Tensor, values: Tensor, factor: float, /) -> None: ...
    def add_coded(
        self, v: Tensor, section: Tensor, code: str, values: Tensor, factor: float, /
    ) -> bool:
        """Runs `add` for coded places, and returns whether they are a list: True if the host would
        have to wait for a device to know; what is not a list is then left out."""

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
        """Returns the first segment with a scale that is NaN or above `form.most_scale`, from
        which on nothing is written; or how many there are. status: as in `accumulate_coded`."""

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
        """Adds what was taken back to the residual; if there is a gradient, inverts the recurrence
        of `update_topk` for the elements that it updated. Journals are not used.

        Returns the number of segments before the first whose places do not ascend, and then
        nothing is written; or the number of all, if the host would have to wait to know.
        """

    # Adam's step

    def adam(
        self, g: Tensor, moments: Moments, v: Tensor, how: AdamStep, status: Tensor, /
    ) -> None: ...
    def undo_adam(self, g: Tensor, moments: Moments, v: Tensor, how: AdamStep, /) -> None: ...
    def adam_codes(self, segments: Sequence[AdamCodes], status: Tensor, /) -> None: ...

    # lists of places, and streams

    def write_entries(self, segments: Sequence[WriteEntries], /) -> int:
        """Writes the segments up to the first whose places do not ascend, and returns how many;
        or the number of all, if the host would have to wait to know."""

    def encode_indices(self, indices: Tensor, n: int, code: str, section: Tensor, /) -> None: ...
    def decode_indices(self, section: Tensor, n: int, code: str, indices_out: Tensor, /) -> int:
        """Returns k, or the position of a wrong entry, or k + 1 if what follows the entries is
        wrong."""

    def count_crowds(self, places: Tensor, /) -> tuple[int, int, int]:
        """Returns the numbers of crowded chunks, of full ones, and of places outside of them."""

    def encode_shaped(self, places: Tensor, n: int, shape: Shape, section: Tensor, /) -> bool:
        """Returns whether the list has this shape; only then is the section valid."""

    def decode_shaped(self, section: Tensor, n: int, shape: Shape, places_out: Tensor, /) -> int:
        """Returns 0, or the number of the part that is invalid: 1 crowded, 2 full, 3 thin, 4 all
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

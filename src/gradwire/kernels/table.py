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
    SumCoded,
    SumCodes,
    SumDense,
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
    Payload,
    Reaching,
)


class Room(Protocol):
    """Every operation on numbers; `room_of` chooses who does it.

    What the arguments are is said by the face of the same name; what none has is said here.
    Divisors and factors are finite in fp32, and rounded to it.
    """

    # casts

    def cast(self, source: Tensor, target: Tensor, status: Tensor | None, /) -> None:
        """target = source, rounded; with a word zeros, and it is raised, unless all is finite."""

    def cast_many(self, segments: Sequence[CastInto], status: Tensor, /) -> None:
        """`cast` of each, with the word."""

    def add_cast(self, v: Tensor, source: Tensor, factor: float, /) -> None:
        """v += factor · source."""

    def is_finite(self, x: Tensor, /) -> bool:
        """Whether x has neither inf nor NaN."""

    # the status word, which every operation that is given it raises where something is not finite

    def flag_non_finite(self, x: Tensor, status: Tensor, /) -> None:
        """Raise it if x has inf or NaN."""

    def finite_part(self, x: Tensor, status: Tensor | None, /) -> Tensor:
        """x, or a copy with zeros for inf and NaN."""

    def spoil_if(self, status: Tensor, x: Tensor, /) -> None:
        """x = NaN everywhere if it is raised."""

    def stamp(self, words: Tensor, facts: Sequence[int], /) -> None:
        """words = facts, without a wait for the device."""

    def judge(self, headers: Tensor, facts: Sequence[int], status: Tensor, /) -> None:
        """Raise it by the flags of headers, and by DAMAGED if one has other flags or facts."""

    # random numbers

    def random_bits(self, noise: Noise, n: int, first: int, /) -> Tensor:
        """The 32-bit numbers of n elements from the first on, (n,) int64, on the CPU."""

    def strata(self, noise: Noise, n: int, places: Tensor, /) -> None:
        """One place in each of k runs of n elements."""

    # sums of payloads

    def first_violation(self, indices: Tensor, n: int, /) -> int:
        """Position of the first that is out of range or not above the one before; k if none."""

    def accumulate(
        self, out: Tensor, indices: list[Tensor], values: list[Tensor], divisor: float, /
    ) -> None:
        """out = the sum of sparse payloads, divided."""

    def accumulate_coded(
        self, segments: Sequence[SumCoded], status: Tensor | None = None, /
    ) -> int:
        """The same of coded places, until the first that are no list; how many that is.

        With a status nothing is written where it is raised, what is bad raises it by DAMAGED, and
        all are said to be well.
        """

    def accumulate_dense(self, out: Tensor, payloads: list[Tensor], divisor: float, /) -> None:
        """out = the sum of dense payloads, divided."""

    def accumulate_many_dense(
        self, segments: Sequence[SumDense], status: Tensor | None = None, /
    ) -> None:
        """The same of each. status: as of `accumulate_coded`."""

    def add(self, v: Tensor, indices: Tensor, values: Tensor, factor: float, /) -> None:
        """v[indices] += factor · values."""

    # signs

    def pack_signs(
        self, x: Tensor, bits: Tensor, values: Tensor, status: Tensor, noise: Noise | None, /
    ) -> None:
        """bits = (x < 0), and the values that they stand for."""

    def accumulate_signs(
        self, out: Tensor, payloads: Sequence[Payload], divisor: float, /
    ) -> None:
        """out = the sum of signs with their values, divided."""

    def add_signs(self, v: Tensor, bits: Tensor, values: Tensor, factor: float, /) -> None:
        """v += factor · what the signs say."""

    def largest(self, x: Tensor, squares: bool, /) -> tuple[float, float]:
        """The largest magnitude, and the sum of squares if it is wanted."""

    # codes of quantizers

    def encode_codes(
        self, form: Format, x: Tensor, codes: Tensor, scales: Tensor, status: Tensor,
        noise: Noise, clip: float | None, /,
    ) -> None:  # fmt: skip
        """Codes and scales of x."""

    def update_codes(self, segments: Sequence[UpdateCodes], status: Tensor, /) -> None:
        """Recurrences, the codes of their residuals, and these out of them."""

    def accumulate_codes(
        self, segments: Sequence[SumCodes], status: Tensor | None = None, /
    ) -> int:
        """out = the sum of codes with their scales, divided. The first segment of which a scale
        is above `form.most_scale`, or none at all: what follows is not written. Or how many.
        status: as of `accumulate_coded`."""

    def add_codes(
        self, form: Format, v: Tensor, codes: Tensor, scales: Tensor, factor: float, /
    ) -> None:
        """v += what the codes say with their scales times factor."""

    # selections and updates

    def fallbacks(self) -> int:
        """Selections so far whose hint was too high."""

    def topk(
        self, x: Tensor, k: int, indices: Tensor, values: Tensor, status: Tensor, hint: Hint, /
    ) -> Hint:
        """The k of largest magnitude, by ascending index; the next hint."""

    def reaching(self, x: Tensor, least: float, status: Tensor, /) -> Reaching:
        """All of magnitude `least` or more."""

    def update_topk(self, segments: Sequence[UpdateTopk], status: Tensor, /) -> Sequence[Hint]:
        """Recurrences, and the k largest of each residual taken out; the next hints."""

    def invert(
        self, gradient: Tensor, velocity: Tensor | None, residual: Tensor, /, *,
        momentum: float | None, nesterov: bool, scale: float, decay: float,
    ) -> None:  # fmt: skip
        """Take the recurrence of `update_topk` back, where it did not leave an element alone."""

    def restore_topk(
        self, velocity: Tensor | None, residual: Tensor, indices: Tensor, values: Tensor,
        velocities: Tensor | None, /, *, mask: bool,
    ) -> None:  # fmt: skip
        """Give back what was taken; without mask, there is no velocity."""

    # Adam's step

    def adam(
        self, g: Tensor, moments: Moments, v: Tensor, how: AdamStep, status: Tensor, /
    ) -> None:
        """Advance the moments and v."""

    def undo_adam(self, g: Tensor, moments: Moments, v: Tensor, how: AdamStep, /) -> None:
        """Take a step back."""

    def adam_codes(self, segments: Sequence[AdamCodes], status: Tensor, /) -> None:
        """Steps, the codes of each v, and these out of it."""

    # lists of places, and streams

    def write_entries(self, segments: Sequence[WriteEntries], /) -> int:
        """Places and values of payloads, until the first whose places do not ascend; how many that
        is, or all, where the host would have to wait to know."""

    def encode_indices(self, indices: Tensor, n: int, code: str, section: Tensor, /) -> None:
        """The code of a list, every byte of the section."""

    def decode_indices(self, section: Tensor, n: int, code: str, indices_out: Tensor, /) -> int:
        """The list of a code; k, or a wrong entry's position, or k + 1 for what follows them."""

    def count_crowds(self, places: Tensor, /) -> tuple[int, int, int]:
        """Crowded chunks, full ones, and places outside of them."""

    def encode_shaped(self, places: Tensor, n: int, shape: Shape, section: Tensor, /) -> bool:
        """The code of a list with crowds; whether it has this shape."""

    def decode_shaped(self, section: Tensor, n: int, shape: Shape, places_out: Tensor, /) -> int:
        """The list of a code with crowds; 0, or the number of its part that cannot be: from 1 the
        crowded, the full, the thin, all together."""

    def split_stream(
        self, places: Tensor, values: Tensor, owners: int, seed: int, places_out: Tensor,
        values_out: Tensor, /,
    ) -> list[int]:  # fmt: skip
        """A stream cut among owners; the count of each."""

    def flat_places(
        self, places: Tensor, owner: int, owners: int, seed: int, places_out: Tensor, /
    ) -> None:
        """An owner's places in the whole."""

    def place_stream(self, out: Tensor, places: Tensor, values: Tensor, /) -> None:
        """out[places] = values."""

    def merge_streams(
        self, n: int, places: list[Tensor], values: list[Tensor], divisor: float,
        places_out: Tensor, values_out: Tensor, /,
    ) -> int:  # fmt: skip
        """The sum of streams, divided, as a stream; how many entries it has."""

    def top_of_two(
        self, n: int, a_places: Tensor, a_values: Tensor, b_places: Tensor, b_values: Tensor,
        k: int, places_out: Tensor, values_out: Tensor, /,
    ) -> int:  # fmt: skip
        """The k largest of the sum of two streams; how many there are."""

    def contained(self, places: Tensor, among: Tensor, out: Tensor, /) -> None:
        """Which places are in another list."""

    def hash_partition(
        self, indices: Tensor, owners: int, seeds: Sequence[int], indices_out: Tensor,
        slots: tuple[int, int], threads: int, /,
    ) -> Partition:  # fmt: skip
        """Indices split among owners by way of hash tables."""

    # rows

    def nonzero_rows(self, x: Tensor, ids_out: Tensor, /) -> int:
        """Which rows hold anything; how many."""

    def gather_stripes(
        self, x: Tensor, ids: Tensor, bounds: Sequence[int], out: Tensor, /
    ) -> None:
        """The stripes of some rows, owner after owner."""

    def scatter_stripes(
        self, x: Tensor, ids: Tensor, bounds: Sequence[int], stripes: Tensor, /
    ) -> None:
        """Stripes back to their rows."""

    def sum_rows(
        self, ids: Sequence[Tensor], rows: Sequence[Tensor], divisor: float, dtype: torch.dtype, /
    ) -> tuple[Tensor, Tensor]:
        """Which ids there are, and the sums of their rows, divided."""

    # predicted steps

    def simulate_step(
        self, jobs: Jobs, machine: Machine, choice: Tensor, repeats: int, /
    ) -> float:
        """When a step is over."""

    def record_step(self, jobs: Jobs, machine: Machine, choice: Tensor, /) -> Recorded:
        """The times of each stage of a step."""

    def ordered_step(
        self, jobs: Jobs, choice: Tensor, backward_seconds: float, by_ready: bool, /
    ) -> Served:
        """A step of lanes that are queues."""

    def search_options(
        self, jobs: Jobs, machine: Machine, start: Tensor, limit: float, seed: int, /
    ) -> Best:
        """A choice that is not slower than the start."""

    def exhaust_options(self, jobs: Jobs, machine: Machine, start: Tensor, /) -> Best:
        """The best of all choices."""

    def lower_bound(self, jobs: Jobs, machine: Machine, /) -> float:
        """Seconds before which no choice is over."""

    def undominated(self, jobs: Jobs, /) -> list[int]:
        """How many options each job has that are worth a try."""

"""Quantizers on CUDA, in the interpreter: the same codes, scales, states and sums as the twins."""

from __future__ import annotations

import pytest
import torch
from interpreted import every_float, same_by_both
from torch import Tensor

import gradwire.kernels.torch as twins
from gradwire.bench.rooms import drawn
from gradwire.kernels import (
    AdamCodes,
    EncodeCodes,
    Journal,
    SumCodes,
    UpdateCodes,
    UpdateTopk,
    cuda,
    new_status,
)
from gradwire.kernels.formats import (
    E2M1X,
    E2M3X,
    E4M3,
    E5M2,
    INT8,
    LEVELS2,
    LEVELS4,
    LEVELS8,
    LLOYD1,
    LLOYD2,
    POWERS,
    SIGNS,
    SIGNS1,
    SIGNS2,
    TERNARY,
    Format,
)
from gradwire.kernels.values import AdamStep, Noise

SIZES = (2500, 0, 1, 700, 3, 2048, 64)
HOW = AdamStep.of(3, 0.9, 0.99, 1e-8, factor=1.5, scale=0.5)
IN_TRITON = [INT8, E4M3, E5M2, LEVELS2, LEVELS4, LEVELS8, LLOYD1, LLOYD2]
every_format = pytest.mark.parametrize("form", IN_TRITON, ids=lambda form: f"format {form.number}")
OTHERS = [TERNARY, POWERS, SIGNS, SIGNS1, SIGNS2, E2M1X, E2M3X]
"""Formats that are encoded without a recurrence."""


def rooms(form: Format, n: int) -> tuple[Tensor, Tensor]:
    return torch.full((form.code_bytes(n),), 0xAA, dtype=torch.uint8), torch.full(
        (form.scales(n),), 7.0
    )


def state(n: int, seed: int) -> Tensor:
    """A residual with one block that is nearly zero."""
    x = drawn(n, seed)
    x[512:600] *= 1e-35
    return x


def noise(i: int) -> Noise:
    return Noise.of(f"parameter {i}", 3)


@every_format
@pytest.mark.parametrize("what", ["feedback", "momentum", "nesterov"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_updates_are_the_twins(form: Format, what: str, dtype: torch.dtype) -> None:
    are_updated_alike(form, what, dtype)


@pytest.mark.parametrize("form", [LLOYD1, LLOYD2], ids=lambda form: f"format {form.number}")
@pytest.mark.parametrize("n", [500, 512 + 77])
def test_a_mean_that_rounds_up_beyond_the_largest_float_is_the_twins(form: Format, n: int) -> None:
    def given(status: Tensor) -> tuple[list[object], list[Tensor]]:
        x, v = torch.full((n,), torch.finfo(torch.float32).max), torch.zeros(n)
        to = rooms(form, n)
        return [[UpdateCodes(form, x, None, v, *to, noise(0), None)], status], [v, *to]

    same_by_both([cuda.update_codes, twins.update_codes], given)


@pytest.mark.parametrize("form", OTHERS, ids=lambda form: f"format {form.number}")
def test_updates_beside_what_is_coded_alone_are_the_twins(form: Format) -> None:
    are_updated_alike(form, "nesterov", torch.bfloat16)


def are_updated_alike(form: Format, what: str, dtype: torch.dtype) -> None:
    momentum = None if what == "feedback" else 0.9

    def given(status: Tensor) -> tuple[list[object], list[Tensor]]:
        made = [
            UpdateCodes(
                form, drawn(n, i, "bad" if i == 3 else "normal", dtype),
                None if momentum is None else state(n, i + 9), state(n, i + 5), *rooms(form, n),
                noise(i), momentum, what == "nesterov", 0.5, 0.95 if momentum is None else 1.0,
            )
            for i, n in enumerate(SIZES)
        ]  # fmt: skip
        written = [(one.codes, one.scales, one.residual, one.velocity) for one in made]
        return [made, status], [x for own in written for x in own if x is not None]

    same_by_both([cuda.update_codes, twins.update_codes], given)


@pytest.mark.parametrize("form", [*IN_TRITON, *OTHERS], ids=lambda form: f"format {form.number}")
def test_adam_s_steps_are_the_twins(form: Format) -> None:
    def given(status: Tensor) -> tuple[list[object], list[Tensor]]:
        made = [
            AdamCodes(
                form, drawn(n, i, "bad" if i == 3 else "normal"),
                (state(n, i + 9), state(n, i).abs()), state(n, i + 5), HOW, *rooms(form, n),
                noise(i),
            )
            for i, n in enumerate(SIZES)
        ]  # fmt: skip
        written = [(one.codes, one.scales, one.v, *one.moments) for one in made]
        return [made, status], [x for own in written for x in own]

    same_by_both([cuda.adam_codes, twins.adam_codes], given)


@pytest.mark.once
@pytest.mark.parametrize("form", [*IN_TRITON, *OTHERS], ids=lambda form: f"format {form.number}")
@every_float
def test_encoding_and_decoding_are_the_twins(form: Format, dtype: torch.dtype) -> None:
    for i, n in enumerate((2500, 1, 0)):

        def given(status: Tensor, i: int = i, n: int = n) -> tuple[list[object], list[Tensor]]:
            codes, scales = rooms(form, n)
            return [form, drawn(n, i, dtype=dtype), codes, scales, status, noise(i), None], [
                codes,
                scales,
            ]

        same_by_both([cuda.encode_codes, twins.encode_codes], given)
        codes, scales = rooms(form, n)
        twins.encode_codes(form, drawn(n, i), codes, scales, new_status(), noise(i))

        def added(
            status: Tensor, n: int = n, pair: tuple[Tensor, Tensor] = (codes, scales)
        ) -> tuple[list[object], list[Tensor]]:
            v = drawn(n, 77)
            return [form, v, *pair, -0.3], [v]

        same_by_both([cuda.add_codes, twins.add_codes], added)


def test_an_earlier_update_s_journal_is_forgotten() -> None:
    """A new update clears the journal; otherwise undoing it would restore an older state."""
    journal, places, none = Journal(), torch.zeros(0, dtype=torch.int32), torch.zeros(0)
    v = drawn(20 * 4096, 1)
    large = UpdateTopk(
        drawn(v.numel(), 2) + 1e6, None, v, 0, places, none, None, None, hint=1.0, journal=journal
    )
    cuda.update_topk([large], new_status())
    assert journal.elements
    codes, scales = rooms(INT8, v.numel())
    cuda.update_codes(
        [UpdateCodes(INT8, drawn(v.numel(), 3), None, v, codes, scales, noise(0), None,
                     journal=journal)],
        new_status(),
    )  # fmt: skip
    assert not journal.elements


def test_what_is_not_finite_raises_the_status() -> None:
    for form in IN_TRITON:
        status, x = new_status(), drawn(600, 1, "bad")
        cuda.encode_codes(form, x, *rooms(form, 600), status, noise(0), None)
        assert int(status) == 1


@pytest.mark.parametrize("form", [LLOYD1, LLOYD2], ids=lambda form: f"format {form.number}")
def test_a_mean_that_overflows_raises_the_status(form: Format) -> None:
    def given(status: Tensor) -> tuple[list[object], list[Tensor]]:
        x = torch.full((7,), torch.finfo(torch.float32).max)
        return [form, x, *rooms(form, 7), status, noise(0), None], []

    same_by_both([cuda.encode_codes, twins.encode_codes], given)


def payload(form: Format, n: int, rank: int) -> tuple[Tensor, Tensor]:
    codes, scales = rooms(form, n)
    twins.encode_codes(form, drawn(n, rank) * 10.0**rank, codes, scales, new_status(), noise(rank))
    return codes, scales


@pytest.mark.parametrize("form", [*IN_TRITON, *OTHERS], ids=lambda form: f"format {form.number}")
@every_float
def test_sums_of_many_are_the_twins(form: Format, dtype: torch.dtype) -> None:
    def given(status: Tensor) -> tuple[list[object], list[Tensor]]:
        made = [
            SumCodes(
                form, torch.full((n,), 7.0).to(dtype),
                [payload(form, n, rank) for rank in range(3 if i else 0)], 3.0,
            )
            for i, n in enumerate(SIZES)
        ]  # fmt: skip
        return [made], [one.out for one in made]

    assert same_by_both([cuda.accumulate_codes, twins.accumulate_codes], given) == [len(SIZES)] * 2


@pytest.mark.parametrize("form", [POWERS, TERNARY], ids=lambda form: f"format {form.number}")
@pytest.mark.parametrize("kind", ["ties", "zeros", "bad"])
def test_what_is_coded_alone_is_the_twins_around_blocks(form: Format, kind: str) -> None:
    """Codes equal the twins' for numbers of any size, whole blocks and a short last one."""
    sizes = 0, 1, 9, form.block - 1, form.block, form.block + 1, 4 * form.block, 9 * form.block + 7

    def given(status: Tensor) -> tuple[list[object], list[Tensor]]:
        made = [
            EncodeCodes(form, drawn(n, n, kind) * 10.0 ** (i - 3), *rooms(form, n), noise(i))
            for i, n in enumerate(sizes)
        ]
        made[4].x[:3] = torch.tensor([3.4e38, -3.4e38, 1e-39]) if form is POWERS else 1e-39
        return [made, status], [x for one in made for x in (one.codes, one.scales)]

    same_by_both([cuda.encode_many_codes, twins.encode_many_codes], given)

    def summed(status: Tensor) -> tuple[list[object], list[Tensor]]:
        made = []
        for i, n in enumerate(sizes):
            (codes, scales), other = rooms(form, n), payload(form, n, 2)
            codes[:] = torch.arange(codes.numel()).remainder(243 if form is TERNARY else 255)
            parts = [(codes, scales), other][: 1 + i % 2]
            made.append(SumCodes(form, torch.full((n,), 7.0), parts, 3.0))
        return [made], [one.out for one in made]

    same_by_both([cuda.accumulate_codes, twins.accumulate_codes], summed)


@pytest.mark.parametrize("form", [E4M3, E5M2], ids=lambda form: f"format {form.number}")
def test_floats_of_8_bits_are_read_as_the_twins_do(form: Format) -> None:
    """Every code is read alike, with scales and factors up to the ends of fp32's range."""
    codes = torch.arange(2 * 2048 + 77).to(torch.uint8)
    for scale, factor in ((0.7, 1.0), (2.0**-130, 3.0), (form.most_scale, -1.0), (1e30, 1e8)):

        def given(
            status: Tensor, scale: float = scale, factor: float = factor
        ) -> tuple[list[object], list[Tensor]]:
            v, scales = drawn(codes.numel(), 1), torch.full((form.scales(codes.numel()),), scale)
            v[::3] = -0.0
            return [form, v, codes, scales, factor], [v]

        same_by_both([cuda.add_codes, twins.add_codes], given)


@pytest.mark.parametrize("form", [E4M3, E5M2], ids=lambda form: f"format {form.number}")
def test_floats_of_8_bits_are_rounded_as_torch_does(form: Format) -> None:
    """Midpoints of neighbours, what is next to them, and tiny numbers; the scale is 1."""
    dtype = torch.float8_e4m3fn if form is E4M3 else torch.float8_e5m2
    every = torch.arange(256).to(torch.uint8).view(dtype).float()
    every = every[every.isfinite()].unique()
    halves = (every[1:] + every[:-1]) / 2
    x = torch.cat([every, halves, halves.nextafter(every[1:]), halves.nextafter(every[:-1])])
    x = torch.cat([torch.tensor([1e-40, -1e-40, -0.0]), x[torch.randperm(x.numel())]])
    x = torch.cat([x, torch.zeros(-x.numel() % 255)]).view(-1, 255)
    x = torch.nn.functional.pad(x, (0, 1), value=form.steps).flatten()
    codes, scales = rooms(form, x.numel())
    cuda.encode_codes(form, x, codes, scales, new_status(), noise(1), None)
    assert (scales == 1.0).all()
    assert torch.equal(codes, x.to(dtype).view(torch.uint8))


@pytest.mark.once
@every_format
@pytest.mark.parametrize("counts", [(0,), (1,), (2, 2), (3, 1), (8,), (9, 5), (16, 8), (17, 0)])
def test_sums_of_any_number_are_the_twins(form: Format, counts: tuple[int, ...]) -> None:
    """Sums equal the twins' for whole tiles and a short last one, in full steps and others."""
    n = 2 * 2048 + 777

    def given(status: Tensor) -> tuple[list[object], list[Tensor]]:
        made = [
            SumCodes(
                form, torch.full((m,), 7.0), [payload(form, m, r % 3) for r in range(many)], by
            )
            for m, many, by in zip((n, n + 1), counts, (3.0, 8.0))
        ]
        return [made], [one.out for one in made]

    same_by_both([cuda.accumulate_codes, twins.accumulate_codes], given)


@every_format
@every_float
def test_what_begins_anywhere_is_summed(form: Format, dtype: torch.dtype) -> None:
    """Codes and results may begin at addresses that are no multiples of 16 bytes."""

    def given(status: Tensor) -> tuple[list[object], list[Tensor]]:
        codes, scales = payload(form, 5000, 1)
        moved = torch.cat([codes[:1], codes])[1:]
        out = torch.full((5001,), 7.0).to(dtype)
        one = SumCodes(form, out[1:], [(moved, scales), (codes, scales)], 5.0)
        return [[one]], [out]

    same_by_both([cuda.accumulate_codes, twins.accumulate_codes], given)


@every_format
def test_codes_are_added_to_zeros_of_both_signs(form: Format) -> None:
    def given(status: Tensor) -> tuple[list[object], list[Tensor]]:
        v = torch.zeros(5000)
        v[::2] = -0.0
        codes, scales = payload(form, 5000, 1)
        return [form, v, codes, torch.zeros_like(scales), -0.3], [v]

    same_by_both([cuda.add_codes, twins.add_codes], given)


@pytest.mark.parametrize("by", [1.0, 2.0, 3.0, 0.5, 0.25, 8.0, -4.0, 2.0**125, 2.0**126, 2.0**127])
def test_a_quotient_by_any_divisor_is_the_twins(by: float) -> None:
    def given(status: Tensor) -> tuple[list[object], list[Tensor]]:
        codes, scales = payload(INT8, 5000, 1)
        out = torch.zeros(5000)
        return [[SumCodes(INT8, out, [(codes, scales * 1e-36), (codes, scales)], by)]], [out]

    same_by_both([cuda.accumulate_codes, twins.accumulate_codes], given)


@every_format
@pytest.mark.parametrize("rank", [0, 8])
def test_a_bad_scale_is_found_in_any_payload(form: Format, rank: int) -> None:
    """A bad scale is found among more scales than one program looks at."""
    n = 1030 * form.block
    rooms_of = [rooms(form, n) for _ in range(9)]
    for codes, scales in rooms_of:
        codes.zero_()
        scales.fill_(1.0)
    rooms_of[rank][1][1027] = torch.nan
    out = torch.full((n,), 7.0)
    assert cuda.accumulate_codes([SumCodes(form, out, rooms_of, 2.0)]) == 0
    assert bool((out == 7.0).all())


@every_format
def test_a_bad_scale_is_told_and_nothing_is_written_there(form: Format) -> None:
    good = payload(form, 700, 0)
    bad = good[0], torch.full_like(good[1], torch.inf)
    outs = [torch.full((700,), 7.0) for _ in range(2)]
    made = [SumCodes(form, outs[0], [good], 2.0), SumCodes(form, outs[1], [good, bad], 2.0)]
    assert cuda.accumulate_codes(made) == 1
    assert bool((outs[1] == 7.0).all())


def test_tiles_are_whole_blocks() -> None:
    from gradwire.kernels.cuda import codes, sums
    from gradwire.kernels.cuda.formats import written

    for form in IN_TRITON:
        assert sums.TILE % form.block == 0
        known = written(form)
        assert known is not None
        rows, columns = codes.shape_of(known)
        assert rows > 0
        assert form.block * form.bits // 8 % columns == 0, "a piece is of one part"


@every_format
@pytest.mark.parametrize("n", [255, 256, 257, 511, 512, 513, 4095, 4096, 4097, 4607, 8192 + 777])
def test_blocks_of_any_number_are_encoded_as_the_twins_do(form: Format, n: int) -> None:
    """Blocks equal the twins' in whole tiles, in partly filled ones, and in a short last block."""

    def given(status: Tensor) -> tuple[list[object], list[Tensor]]:
        codes, scales = rooms(form, n)
        v = state(n, 5)
        one = UpdateCodes(
            form, drawn(n, 1), None, v, codes, scales, noise(1), None, False, 0.5, 0.95
        )
        return [[one], status], [codes, scales, v]

    same_by_both([cuda.update_codes, twins.update_codes], given)


@pytest.mark.parametrize("place", [0, 600, 4100, 4999])
@every_format
def test_one_number_that_is_not_finite_raises_the_status(form: Format, place: int) -> None:
    def given(status: Tensor) -> tuple[list[object], list[Tensor]]:
        codes, scales = rooms(form, 5000)
        g, v = drawn(5000, 1), state(5000, 5)
        g[place] = torch.nan
        one = UpdateCodes(form, g, None, v, codes, scales, noise(1), None, False, 0.5, 0.95)
        return [[one], status], [codes, scales, v, status]

    same_by_both([cuda.update_codes, twins.update_codes], given)

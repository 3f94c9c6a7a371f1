"""Sparse and dense sums, signs, casts and the status word on CUDA, in the interpreter."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from interpreted import FLOATS, every_float, same_by_both
from torch import Tensor

import gradwire.kernels.torch as twins
from gradwire.bench.rooms import coded_payload, coded_section, drawn, places
from gradwire.kernels import DAMAGED, cuda, formats, new_status
from gradwire.kernels.cuda import clips, signs
from gradwire.kernels.formats import TERNARY, Format
from gradwire.kernels.segments import (
    AdamCodes,
    EncodeCodes,
    SumCoded,
    SumCodes,
    SumDense,
    UpdateCodes,
)
from gradwire.kernels.values import SILENCE, AdamStep, Noise
from suites import first

SIGNS = formats.SIGNS, formats.SIGNS1, formats.SIGNS2


def rooms(form: Format, n: int) -> tuple[Tensor, Tensor]:
    scales = torch.full((form.scales(n),), 7.0)
    return torch.full((form.code_bytes(n),), 0xAA, dtype=torch.uint8), scales


@every_float
@pytest.mark.parametrize("values", [torch.float32, torch.bfloat16], ids=str)
def test_sparse_sums_are_the_twins(dtype: torch.dtype, values: torch.dtype) -> None:
    for n, k, world in ((9000, 700, 3), (9000, 0, 2), (7, 7, 2), (0, 0, 1), (50, 3, 0)):

        def given(
            status: Tensor, n: int = n, k: int = k, world: int = world
        ) -> tuple[list[object], list[Tensor]]:
            out = torch.full((n,), 7.0).to(dtype)
            lists = [places(n, k, r) for r in range(world)]
            own = [(drawn(k, r) * 10.0**r).to(values) for r in range(world)]
            return [out, lists, own, 3.0], [out]

        same_by_both([cuda.accumulate, twins.accumulate], given)


def test_entries_are_added_as_the_twins_do() -> None:
    def given(status: Tensor) -> tuple[list[object], list[Tensor]]:
        v = drawn(3000, 1)
        return [v, places(3000, 600, 2), drawn(600, 3), -0.3], [v]

    same_by_both([cuda.add, twins.add], given)


@pytest.mark.parametrize(("entry", "value"), [(0, -1), (600, None), (1199, 3000), (700, 0)])
def test_the_first_violation_is_found(entry: int, value: int | None) -> None:
    own = places(3000, 1200, 1)
    assert cuda.first_violation(own, 3000) == 1200
    own[entry] = own[entry - 1] if value is None else value
    assert cuda.first_violation(own, 3000) == twins.first_violation(own, 3000) == entry


@pytest.mark.parametrize(
    ("form", "dtype"), list(zip(SIGNS, FLOATS)), ids=["no value", "a mean", "two means"]
)
def test_signs_of_many_are_the_twins(form: Format, dtype: torch.dtype) -> None:
    """Signs of many segments equal the twins', with dice and without."""

    def packed(status: Tensor) -> tuple[list[object], list[Tensor]]:
        made = [
            EncodeCodes(form, drawn(n, n, "ties", dtype), *rooms(form, n), dice)
            for n, dice in ((4100, Noise.of("x", 1)), (0, SILENCE), (17, SILENCE))
        ]
        return [made, status], [x for one in made for x in (one.codes, one.scales)]

    same_by_both([cuda.encode_many_codes, twins.encode_many_codes], packed)


@pytest.mark.parametrize(
    ("n", "together", "chunk"),
    [
        (10 * 4096 + 5, 8, 4096),
        (8 * 4096, 8, 4096),
        (16 * 4096 + 1, 8, 4096),
        (10 * 4096 + 5, 1, 4),
        (5 * 4096 + 5, 1, 2),
    ],
)
def test_sums_over_many_blocks_are_a_tree(
    n: int, together: int, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sums are a tree: over whole programs, few blocks or a short one, and several chunks."""
    monkeypatch.setattr(signs, "TOGETHER", together)
    monkeypatch.setattr(signs, "CHUNK", chunk)

    def given(status: Tensor) -> tuple[list[object], list[Tensor]]:
        made = [
            EncodeCodes(SIGNS[2], drawn(m, 1) * 1e3, *rooms(SIGNS[2], m), SILENCE) for m in (n, 9)
        ]
        return [made, status], [x for one in made for x in (one.codes, one.scales)]

    same_by_both([cuda.encode_many_codes, twins.encode_many_codes], given)


@pytest.mark.parametrize("dtype", first(FLOATS), ids=str)
def test_scales_that_are_cut_are_the_twins(dtype: torch.dtype) -> None:
    """Scales and codes of clipped segments equal the twins', beside segments of which nothing is
    clipped. If squares leave fp32's range at either end, the largest magnitude is the scale."""
    makers: list[Callable[[int], Tensor]] = [
        lambda n: drawn(n, 1, dtype=dtype),
        lambda n: drawn(n, 2, "ties", dtype),
        lambda n: drawn(n, 3, "bad", dtype),
        lambda n: drawn(n, 4, "zeros", dtype),
        lambda n: drawn(n, 5).mul_(1e-22).to(dtype),
        lambda n: drawn(n, 5).mul_(1e-25).to(dtype),
        lambda n: drawn(n, 6).mul_(6e4 if dtype == torch.float16 else 1e25).to(dtype),
        lambda n: torch.full((n,), -0.0, dtype=dtype),
    ]

    def given(status: Tensor) -> tuple[list[object], list[Tensor]]:
        made = [
            EncodeCodes(TERNARY, maker(n), *rooms(TERNARY, n), Noise.of(f"{n}"), clip)
            for n, cuts in ((4100, (0.3, 2.5)), (63, (1e-30, 1e30, 1.0)), (1, (0.5,)), (0, (1.0,)))
            for maker in makers
            for clip in (*cuts, None)
        ]
        return [made, status], [x for one in made for x in (one.codes, one.scales)]

    same_by_both([cuda.encode_many_codes, twins.encode_many_codes], given)


def test_steps_whose_scales_are_cut_are_the_twins() -> None:
    def updates(status: Tensor) -> tuple[list[object], list[Tensor]]:
        v, (codes, scales) = drawn(5000, 2), rooms(TERNARY, 5000)
        one = UpdateCodes(
            TERNARY, drawn(5000, 1), None, v, codes, scales, Noise.of("x"), None, clip=0.5
        )
        return [[one], status], [v, codes, scales]

    def steps(status: Tensor) -> tuple[list[object], list[Tensor]]:
        v, moments = drawn(5000, 2), (drawn(5000, 3), drawn(5000, 4).abs())
        codes, scales = rooms(TERNARY, 5000)
        how = AdamStep.of(3, 0.9, 0.99, 1e-8)
        one = AdamCodes(
            TERNARY, drawn(5000, 1), moments, v, how, codes, scales, Noise.of("x"), 0.5
        )
        return [[one], status], [v, *moments, codes, scales]

    same_by_both([cuda.update_codes, twins.update_codes], updates)
    same_by_both([cuda.adam_codes, twins.adam_codes], steps)


@every_float
@pytest.mark.parametrize("n", [10, 40_000])
def test_scales_that_are_cut_tell_what_is_not_finite(n: int, dtype: torch.dtype) -> None:
    for kind, wanted in (("normal", 0), ("bad", 1)):
        status, x = new_status(), drawn(n, 1, kind, dtype)
        cuda.encode_codes(TERNARY, x, *rooms(TERNARY, n), status, SILENCE, 2.5)
        assert int(status) == wanted


@pytest.mark.parametrize(
    ("n", "together", "chunk"), [(70_000, 8, 4096), (10 * 4096 + 5, 1, 4), (5 * 4096, 1, 2)]
)
def test_squares_over_many_blocks_are_a_tree(
    n: int, together: int, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clips, "TOGETHER", together)
    monkeypatch.setattr(clips, "CHUNK", chunk)

    def given(status: Tensor) -> tuple[list[object], list[Tensor]]:
        x = drawn(n, 1) * torch.linspace(1e-3, 1e3, n)
        made = [EncodeCodes(TERNARY, y, *rooms(TERNARY, len(y)), SILENCE, 1.5) for y in (x, x[:9])]
        return [made, status], [x for one in made for x in (one.codes, one.scales)]

    same_by_both([cuda.encode_many_codes, twins.encode_many_codes], given)


def test_signs_of_what_is_not_finite_raise_the_status() -> None:
    status, (bits, values) = new_status(), rooms(SIGNS[1], 5000)
    cuda.encode_codes(SIGNS[1], drawn(5000, 1, "bad"), bits, values, status, SILENCE, None)
    assert (int(status), float(values)) == (1, 0.0)


@every_float
@pytest.mark.parametrize("to", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("kind", ["normal", "bad"])
def test_casts_are_the_twins(dtype: torch.dtype, to: torch.dtype, kind: str) -> None:
    for checks in (True, False):

        def given(status: Tensor, checks: bool = checks) -> tuple[list[object], list[Tensor]]:
            x = drawn(5000, 1, kind).mul_(300.0).to(dtype)
            target = torch.full((5000,), 7.0).to(to)
            return [x, target, status if checks else None], [target]

        same_by_both([cuda.cast, twins.cast], given)


def test_a_cast_that_overflows_leaves_zeros() -> None:
    x, target, status = torch.full((5000,), 1e6), torch.ones(5000).half(), new_status()
    cuda.cast(x, target, status)
    assert (int(status), int(target.count_nonzero())) == (1, 0)


@every_float
def test_dense_sums_and_scaled_ones_are_the_twins(dtype: torch.dtype) -> None:
    def summed(status: Tensor) -> tuple[list[object], list[Tensor]]:
        out = torch.full((5000,), 7.0).to(dtype)
        return [out, [drawn(5000, r, dtype=dtype) for r in range(3)], 3.0], [out]

    same_by_both([cuda.accumulate_dense, twins.accumulate_dense], summed)

    def added(status: Tensor) -> tuple[list[object], list[Tensor]]:
        v = drawn(5000, 1)
        return [v, drawn(5000, 2, dtype=dtype), -0.3], [v]

    same_by_both([cuda.add_cast, twins.add_cast], added)


@every_float
def test_the_status_word_is_the_twins(dtype: torch.dtype) -> None:
    for kind in ("normal", "bad"):

        def looked(status: Tensor, kind: str = kind) -> tuple[list[object], list[Tensor]]:
            return [drawn(5000, 1, kind, dtype), status], []

        same_by_both([cuda.flag_non_finite, twins.flag_non_finite], looked)
    for raised in (0, 1, 2):

        def spoiled(status: Tensor, raised: int = raised) -> tuple[list[object], list[Tensor]]:
            x = drawn(5000, 1, dtype=dtype)
            return [status.fill_(raised), x], [x]

        same_by_both([cuda.spoil_if, twins.spoil_if], spoiled)

        def taken(status: Tensor, raised: int = raised) -> tuple[list[object], list[Tensor]]:
            x, y, out = drawn(5000, 1), drawn(5000, 2, dtype=dtype), drawn(5000, 3)
            return [x, y, out, status.fill_(raised)], [out]

        same_by_both([cuda.subtract, twins.subtract], taken)


FACTS = (0x32455249_57445247, 2**62 + 5, -7)


@pytest.mark.parametrize("flags", [(0, 0, 0), (0, 1, 0), (2,), (1, 2), (4, 0), (-1, 0), ()])
@pytest.mark.parametrize("column", [None, 0, 2, 3])
def test_headers_are_judged_as_the_twins_do(flags: tuple[int, ...], column: int | None) -> None:
    def given(status: Tensor) -> tuple[list[object], list[Tensor]]:
        rows = [[FACTS[0], flag, *FACTS[1:]] for flag in flags]
        headers = torch.tensor(rows, dtype=torch.int64).view(-1, 4)
        if column is not None and flags:
            headers[-1, column] ^= 1 << 40
        return [headers, FACTS, status], []

    same_by_both([cuda.judge, twins.judge], given)


@pytest.mark.parametrize("raised", [0, 1])
@pytest.mark.parametrize("kind", ["places", "gaps", "scales"])
def test_sums_heed_a_status_and_tell_it_of_damage(kind: str, raised: int) -> None:
    """Sums report damage, but not in a spoiled step, where payloads may hold anything."""
    n, k, status = 5000, 50, new_status().fill_(raised)
    outs = [torch.full((n,), 7.0) for _ in range(2)]
    if kind == "scales":
        payloads = [coded_payload(formats.INT8, n, r) for r in range(2)]
        payloads[1][1][3] = torch.nan
        sums = [SumCodes(formats.INT8, outs[0], payloads, 2.0)]
        cuda.accumulate_codes([*sums, SumCodes(formats.INT8, outs[1], payloads[:1], 1.0)], status)
    else:
        code = "elias_fano" if kind == "places" else "gap8"
        sections = [coded_section(n, k, code, r) for r in range(2)]
        sections[1][:] = 255
        values = [drawn(k, r) for r in range(2)]
        cuda.accumulate_coded(
            [
                SumCoded(outs[0], [code] * 2, sections, values, 2.0),
                SumCoded(outs[1], [code], sections[:1], values[:1], 1.0),
            ],
            status,
        )
    assert int(status) == (raised or DAMAGED)
    assert (outs[0] == 7.0).all()
    assert (outs[1] == 7.0).all() == bool(raised)


def test_dense_sums_heed_a_status() -> None:
    for raised in (0, 1):
        out = torch.full((50,), 7.0)
        status = new_status().fill_(raised)
        cuda.accumulate_many_dense([SumDense(out, [torch.ones(50)], 1.0)], status)
        assert (out == (7.0 if raised else 1.0)).all()

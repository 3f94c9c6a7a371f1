"""Sparse sums on CUDA, in the interpreter: any number of lists, with entries anywhere."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from interpreted import every_float, same_by_both
from torch import Tensor

import gradwire.kernels.torch as twins
from gradwire.bench.rooms import drawn, places
from gradwire.kernels import SumCoded, code_bytes, cuda, encode_indices
from gradwire.kernels.cuda import sparse
from gradwire.kernels.cuda.tables import rows_on, tables_on

HOST = torch.device("cpu")
SPECIAL = torch.tensor(
    [[-0.0, torch.inf, 1e-45], [-0.0, torch.nan, -1e-45], [0.0, -torch.inf, 3e38]]
)
"""The first values of each list, in turn."""


def lists_of(kind: str, n: int, count: int) -> list[Tensor]:
    """The places of `count` lists."""
    few = sparse.TILES[0][1]
    many = min(n, 150)  # which are not few in any tile
    if kind == "spread":
        return [places(n, 5 + n // 900, r) for r in range(count)]
    if kind == "same":
        return [places(n, 5 + n // 900, 1)] * count
    if kind == "crowded":  # in the last tile of all, and one in the first
        return [torch.cat([torch.tensor([0]), torch.arange(n - many + 1, n)]).int()] * count
    if kind == "full":  # as many in one tile as are added at once
        return [torch.arange(r, r + few).int() for r in range(count)]
    return [places(n, 0 if r % 2 else 3, r) for r in range(count)]


def values_of(lists: Sequence[Tensor], dtype: torch.dtype = torch.float32) -> list[Tensor]:
    found = [drawn(len(x), r) * 10.0 ** (r % 5) for r, x in enumerate(lists)]
    for r, x in enumerate(found):
        x[:3] = SPECIAL[r % 3, : len(x)]
    return [x.to(dtype) for x in found]


@every_float
@pytest.mark.parametrize("kind", ["spread", "same", "crowded", "full", "some empty"])
def test_any_number_of_lists_adds_up_as_the_twins_do(dtype: torch.dtype, kind: str) -> None:
    for count, n in ((0, 9000), (1, 17_001), (2, 100), (3, 17_001), (9, 9000), (17, 9000)):
        lists = lists_of(kind, n, count)
        values = values_of(lists)

        def given(
            status: Tensor, n: int = n, lists: list[Tensor] = lists, values: list[Tensor] = values
        ) -> tuple[list[object], list[Tensor]]:
            out = torch.full((n,), 7.0).to(dtype)
            return [out, lists, values, 3.0], [out]

        same_by_both([cuda.accumulate, twins.accumulate], given)


@pytest.mark.parametrize(
    "divisor", [1.0, 1e-45, 3e38, -2.0, 0.0, torch.inf, -torch.inf, torch.nan]
)
def test_zeros_are_divided_as_the_twins_do(divisor: float) -> None:
    """A zero divided by a negative number is negative; divided by 0 or NaN it is NaN."""
    lists = lists_of("spread", 9000, 3)

    def given(status: Tensor) -> tuple[list[object], list[Tensor]]:
        out = torch.full((9000,), 7.0)
        return [out, lists, values_of(lists), divisor], [out]

    same_by_both([cuda.accumulate, twins.accumulate], given)


@pytest.mark.parametrize("density", [0.0004, 0.004, 0.009, 0.015, 0.2])
def test_tiles_of_every_size_add_up_as_the_twins_do(density: float) -> None:
    n = 17_001
    lists = [places(n, int(n * density), r) for r in range(3)]

    def given(status: Tensor) -> tuple[list[object], list[Tensor]]:
        whole = torch.full((n + 1,), 7.0)
        out = whole[1:]  # at no multiple of 16 bytes
        return [out, lists, values_of(lists), 3.0], [whole]

    same_by_both([cuda.accumulate, twins.accumulate], given)


def test_tiles_are_as_large_as_their_entries_are_few() -> None:
    n = 10**8
    tiles = [sparse._tile([k], (n,)) for k in (0, n // 1000, n // 200, n // 100, n // 50, n // 5)]
    first, second, third = sparse.TILES
    assert tiles == [first, first, first, second, third, sparse.MANY]


def test_begins_of_tiles_are_found_in_lists_of_any_length() -> None:
    for k in (0, 1, 2, 3, 4, 5, 7, 8, 63, 64, 65, 300):
        for kind in ("spread", "first", "last", "damaged"):
            n = 5000
            own = {
                "spread": places(n, k, k), "first": torch.arange(k).int(),
                "last": torch.arange(n - k, n).int(),
                "damaged": torch.randint(-(2**31), 2**31, (k,)).int(),
            }[kind]  # fmt: skip
            (group,) = sparse.groups_of([sparse.Sum(torch.empty(n), [own.data_ptr()],
                                                    [torch.empty(k)], 1.0, 0)])  # fmt: skip
            tile, edges = 1024, 6
            steps = group.lists.words[sparse.STEPS.value]
            begins = torch.full((edges + 2,), -7, dtype=torch.int32)
            row = [own.data_ptr(), 0, k, steps, begins[1:].data_ptr(), 1, edges]
            blocks = torch.zeros(1, 2, dtype=torch.int32)
            sparse.find_begins[(1,)](rows_on(HOST, [row]), blocks, TILE=tile, BLOCK=16)
            assert begins[[0, -1]].tolist() == [-7, -7]
            if kind == "damaged":
                assert bool(((begins[1:-1] >= 0) & (begins[1:-1] <= k)).all())
            else:
                wanted = torch.searchsorted(own, torch.arange(edges).int() * tile)
                assert begins[1:-1].tolist() == wanted.tolist(), (k, kind)


def test_tables_of_one_copy_begin_at_multiples_of_16_bytes() -> None:
    given = [[[1, 2, 3]] * 3, [[-(2**63)]], [], [[4, 5], [6, 2**63 - 1]]]
    tables = tables_on(HOST, *given)
    assert [x.tolist() for x in tables] == given
    first = tables[0].data_ptr()
    assert all((x.data_ptr() - first) % 16 == 0 for x in tables if x.numel())
    assert rows_on(HOST, given[0]).tolist() == given[0]


def of_code(own: Tensor, n: int, code: str) -> Tensor:
    """The list's code, at an odd address."""
    whole = torch.zeros(code_bytes(code, n, len(own)) + 1, dtype=torch.uint8)
    encode_indices(own, n, code, whole[1:])
    return whole[1:]


CODES = ("int32", "gap8", "bitmap", "elias_fano", "gap16")
FLOATS = (torch.float32, torch.bfloat16, torch.float16)


def segments_of(damaged: int) -> list[SumCoded]:
    """Segments of all dtypes and codes at once; in segment `damaged` one list is damaged."""
    made = []
    for s in range(7):
        n = 3000 + 701 * s
        lists = [places(n, 40 + 9 * r, 10 * s + r) for r in range(s)]
        codes = [CODES[(s + r) % len(CODES)] for r in range(s)]
        sections = [of_code(own, n, code) for own, code in zip(lists, codes)]
        if s == damaged:
            sections[-1].fill_(0xFF)
        values = values_of(lists, FLOATS[s % 2])
        if s == 5:
            values[1] = values[1].half()
        made.append(
            SumCoded(torch.full((n,), 7.0).to(FLOATS[s % 3]), codes, sections, values, 3.0)
        )
    return made


def test_segments_of_all_dtypes_and_codes_are_read_at_once() -> None:
    def given(status: Tensor) -> tuple[list[object], list[Tensor]]:
        made = segments_of(-1)
        return [made], [one.out for one in made]

    assert same_by_both([cuda.accumulate_coded, twins.accumulate_coded], given) == [7, 7]


@pytest.mark.parametrize("damaged", [1, 2, 3, 4, 5, 6])
def test_one_damaged_segment_is_told_and_left_alone(damaged: int) -> None:
    whole, made = segments_of(-1), segments_of(damaged)
    twins.accumulate_coded(whole)
    assert cuda.accumulate_coded(made) == damaged
    for s, (one, wanted) in enumerate(zip(made, whole)):
        if s == damaged:
            assert bool((one.out == 7.0).all())
        else:
            assert torch.equal(one.out.nan_to_num(7.0), wanted.out.nan_to_num(7.0)), s

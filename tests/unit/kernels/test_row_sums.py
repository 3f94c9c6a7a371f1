"""Sums of lists of rows: against the twin, by hand, and the checks of arguments."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from in_torch import in_torch
from samples import draw, same
from sorted_streams import DTYPE, KINDS

from gradwire.errors import KernelError
from gradwire.kernels import sum_rows

pytestmark = pytest.mark.usefixtures("instruction_set")
sum_rows_twin = in_torch(sum_rows)
COUNTS = st.lists(st.integers(0, 40), min_size=1, max_size=5)
WIDTHS = st.one_of(st.integers(0, 40), st.sampled_from([63, 64, 65, 127, 300, 1031]))
IDS = st.sampled_from([torch.int32, torch.int64])


@given(COUNTS, WIDTHS, st.integers(1, 60), KINDS, DTYPE, DTYPE, IDS, st.integers(0, 9))
def test_same_bits_as_twin(
    counts: list[int], width: int, among: int, kind: str, dtype: torch.dtype,
    result: torch.dtype, id_dtype: torch.dtype, seed: int,
) -> None:  # fmt: skip
    """Ids may be in any order, several times in one list, and in several lists."""
    g = torch.Generator().manual_seed(seed)
    ids = [torch.randint(0, among, (k,), generator=g).to(id_dtype) for k in counts]
    rows = [draw(kind, k * width, seed + k, dtype, shift=1).view(k, width) for k in counts]
    union, sums = sum_rows(ids, rows, float(len(counts)), result)
    wanted_union, wanted = sum_rows_twin(ids, rows, float(len(counts)), result)
    assert torch.equal(union, wanted_union)
    assert same(sums.flatten(), wanted.flatten())


def test_by_hand() -> None:
    """In fp32, 2^24 + 1 is 2^24, so the order shows; a third is rounded once."""
    ids = [torch.tensor([7, 2, 7]), torch.tensor([2, 9])]
    big = 2.0**24
    rows = [
        torch.tensor([[1.0, big], [3.0, 1.0], [4.0, 1.0]]),
        torch.tensor([[5.0, -1.0], [0.5, -0.0]]),
    ]
    union, sums = sum_rows(ids, rows, 1.0, torch.float32)
    assert union.tolist() == [2, 7, 9]
    assert sums.tolist() == [[8.0, 0.0], [5.0, big], [0.5, 0.0]]
    assert not sums.signbit().any()
    thirds = sum_rows(ids, rows, 3.0, torch.bfloat16)[1]
    assert torch.equal(thirds, (sums / torch.tensor(3.0)).bfloat16())
    one_after = sum_rows([ids[0], ids[0]], [rows[0].flip(0), rows[0]], 1.0, torch.float32)[1]
    assert one_after[1].tolist() == [10.0, 2 * big]


def test_freed_memory_is_refused() -> None:
    ids, rows = torch.tensor([1]), torch.ones(1, 3)
    gone = torch.tensor([1])
    gone.untyped_storage().resize_(0)
    with pytest.raises(KernelError, match=r"ids .*memory"):
        sum_rows([gone], [rows], 1.0, torch.float32)
    rows.untyped_storage().resize_(0)
    with pytest.raises(KernelError, match=r"rows .*memory"):
        sum_rows([ids], [rows], 1.0, torch.float32)


def test_nothing_and_strange_ids() -> None:
    none = torch.empty(0, dtype=torch.int32)
    union, sums = sum_rows([none], [torch.empty(0, 3)], 2.0, torch.float16)
    assert union.numel() == 0
    assert sums.shape == (0, 3)
    far = torch.tensor([2**40, -5, 2**40])
    union, sums = sum_rows([far], [torch.ones(3, 20)], 1.0, torch.float32)
    assert union.tolist() == [-5, 2**40]
    assert sums[:, 0].tolist() == [1.0, 2.0]
    strided = torch.arange(24.0).view(3, 8)[:, ::2]
    assert torch.equal(sum_rows([far], [strided], 1.0, torch.float32)[1][0], strided[1])


def test_wrong_lists_are_refused() -> None:
    ids, rows = torch.tensor([0, 4]), torch.ones(2, 3)
    wrong = {
        "there are 1 and 2": ([ids], [rows, rows]),
        "there are 0 and 0": ([], []),
        r"list 1: ids must be int32 or int64, \(k,\)": ([ids, ids.short()], [rows, rows]),
        r"rows \(k, 3\) of one dtype": ([ids, ids], [rows, torch.ones(2, 2)]),
        "list 1": ([ids, ids], [rows, rows.half()]),
        r"of shape \(3, 3\)": ([ids], [torch.ones(3, 3)]),
        "torch.float64": ([ids], [rows.double()]),
    }
    for message, (some_ids, some_rows) in wrong.items():
        for function in (sum_rows, sum_rows_twin):
            with pytest.raises(KernelError, match=message):
                function(some_ids, some_rows, 1.0, torch.float32)
    with pytest.raises(KernelError, match="divisor must not be 0"):
        sum_rows([ids], [rows], 0.0, torch.float32)
    with pytest.raises(KernelError, match=r"rounded to float32, .* not to torch\.float64"):
        sum_rows([ids], [rows], 1.0, torch.float64)

"""Rows and stripes against their twins, and the checks of arguments."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from in_torch import in_torch
from samples import DTYPES, draw
from sorted_streams import DAMAGE, DTYPE, FILL, KINDS, stream, untouched

from gradwire.errors import KernelError, PayloadError
from gradwire.kernels import gather_stripes, nonzero_rows, scatter_stripes
from gradwire.kernels.torch import gather_stripes as gather_stripes_twin
from gradwire.kernels.torch import nonzero_rows as nonzero_rows_twin

pytestmark = pytest.mark.usefixtures("instruction_set")
scatter_stripes_twin = in_torch(scatter_stripes)
ROWS = st.integers(0, 70)
COLUMNS = st.one_of(st.integers(0, 40), st.sampled_from([127, 128, 255, 256, 257, 300, 1031]))


def matrix(
    kind: str, rows: int, columns: int, seed: int, dtype: torch.dtype = torch.float32
) -> torch.Tensor:
    """A matrix at an address that is no multiple of a cache line."""
    return draw(kind, rows * columns, seed, dtype, shift=1).view(rows, columns)


def raw(x: torch.Tensor) -> torch.Tensor:
    """The bits as integers."""
    return x.clone().view(torch.int32 if x.dtype == torch.float32 else torch.int16)


def found_rows(x: torch.Tensor) -> list[int]:
    ids = torch.full((x.shape[0],), FILL, dtype=torch.int32)
    return ids[: nonzero_rows(x, ids)].tolist()


@given(ROWS, COLUMNS, DTYPE, st.integers(0, 9), st.integers(0, 3))
def test_rows_that_hold_something(
    rows: int, columns: int, dtype: torch.dtype, seed: int, few: int
) -> None:
    """Rows hold zeros of both signs, and some of them one other value anywhere."""
    g = torch.Generator().manual_seed(seed)
    x = matrix("signed zeros", rows, columns, seed, dtype)
    x[torch.randperm(rows, generator=g)[: rows // 2]] = 0.0
    values = (2.0**-149, -(2.0**-24), float("nan"), float("inf"), -1.0)
    for row in torch.randperm(rows, generator=g)[: rows >> few].tolist():
        if columns > 0:
            at = int(torch.randint(0, columns, (1,), generator=g))
            x[row, at] = values[row % len(values)]
    wanted = torch.empty(rows, dtype=torch.int32)
    count = nonzero_rows_twin(x, wanted)
    assert found_rows(x) == wanted[:count].tolist()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("columns", [1, 2, 3, 31, 64, 255, 256, 259, 515])
def test_every_place_of_a_row_is_seen(columns: int, dtype: torch.dtype) -> None:
    x = torch.zeros(columns + 2, columns, dtype=dtype)
    x[1:-1].diagonal().fill_(torch.finfo(dtype).tiny)
    assert found_rows(x) == list(range(1, columns + 1))
    assert found_rows(torch.zeros_like(x)) == []
    assert found_rows(torch.full_like(x, -0.0)) == list(range(columns + 2))


@st.composite
def cuts(draw: st.DrawFn) -> tuple[int, list[int]]:
    columns = draw(COLUMNS)
    inside = draw(st.lists(st.integers(0, columns), min_size=0, max_size=20))
    return columns, sorted([*inside, draw(st.integers(0, columns))])


@given(ROWS, cuts(), st.floats(0, 1), KINDS, DTYPE, st.integers(0, 9))
def test_stripes_same_bits_as_twin_and_back(
    rows: int,
    cut: tuple[int, list[int]],
    share: float,
    kind: str,
    dtype: torch.dtype,
    seed: int,
) -> None:
    columns, bounds = cut
    x = matrix(kind, rows, columns, seed, dtype)
    ids, _ = stream(rows, share, seed)
    size = ids.numel() * (bounds[-1] - bounds[0])
    out, wanted = torch.empty(size + 1, dtype=dtype)[1:], torch.empty(size, dtype=dtype)
    gather_stripes(x, ids, bounds, out)
    gather_stripes_twin(x, ids, bounds, wanted)
    assert torch.equal(raw(out), raw(wanted))
    blank, expected = (torch.full((rows, columns), FILL, dtype=dtype) for _ in range(2))
    scatter_stripes(blank, ids, bounds, out)
    scatter_stripes_twin(expected, ids, bounds, wanted)
    assert torch.equal(raw(blank), raw(expected))
    inside = ids.long(), slice(bounds[0], bounds[-1])
    assert torch.equal(raw(blank[inside].contiguous()), raw(x[inside].contiguous()))
    blank[inside] = FILL
    assert untouched(blank)


def test_by_hand() -> None:
    x = torch.arange(12.0).view(3, 4)
    ids = torch.tensor([0, 2], dtype=torch.int32)
    out = torch.empty(8)
    gather_stripes(x, ids, [0, 1, 1, 4], out)
    assert out.tolist() == [0, 8, 1, 2, 3, 9, 10, 11]
    inside = torch.empty(4)
    gather_stripes(x, ids, (1, 2, 3), inside)
    assert inside.tolist() == [1, 9, 2, 10]
    gather_stripes(x, ids, [2], torch.empty(0))
    y = torch.zeros(3, 4)
    scatter_stripes(y, ids, [0, 1, 1, 4], out)
    assert y.tolist() == [[0, 1, 2, 3], [0] * 4, [8, 9, 10, 11]]


@pytest.mark.parametrize("damage", sorted(DAMAGE))
def test_damaged_ids_are_refused(damage: str) -> None:
    n, width = 50, 3
    ids = DAMAGE[damage](stream(n, 0.3, 1)[0], n)
    k = ids.numel()
    x, flat = torch.full((n, width), float(FILL)), torch.full((k * width,), float(FILL))
    with pytest.raises(PayloadError, match=r"ids must ascend strictly within 0 \.\.\. 49"):
        gather_stripes(x, ids, [0, width], flat)
    with pytest.raises(PayloadError, match=r"ids must ascend strictly within 0 \.\.\. 49"):
        scatter_stripes(x, ids, [0, width], torch.zeros(k * width))
    assert untouched(x, flat)


@given(st.binary(max_size=64), st.integers(0, 60))
def test_ids_may_be_any_bytes(data: bytes, n: int) -> None:
    """Arbitrary bytes are refused with nothing written, or give what the twin gives."""
    small = torch.tensor(list(data[: len(data) // 4 * 4]), dtype=torch.uint8).view(torch.int32)
    for ids in (small, small % 61, (small % 61).sort().values):
        out, wanted = (torch.full((n, 3), float(FILL)) for _ in range(2))
        stripe = torch.arange(3.0 * ids.numel()).view(-1, 3) + 8
        try:
            scatter_stripes(out, ids, [0, 1, 2], stripe[:, 1:].flatten())
        except PayloadError:
            assert untouched(out)
            with pytest.raises(PayloadError):
                scatter_stripes_twin(wanted, ids, [0, 1, 2], stripe[:, 1:].flatten())
        else:
            scatter_stripes_twin(wanted, ids, [0, 1, 2], stripe[:, 1:].flatten())
            assert torch.equal(out, wanted)


def test_wrong_buffers_are_refused() -> None:
    x, ids = torch.full((5, 4), float(FILL)), torch.tensor([0, 4], dtype=torch.int32)
    flat = torch.full((8,), float(FILL))
    for bounds in ([], [-1, 4], [0, 5], [3, 2]):
        with pytest.raises(KernelError, match=r"bounds must ascend within 0 \.\.\. 4"):
            gather_stripes(x, ids, bounds, flat)
    with pytest.raises(KernelError, match=r"out must have shape \(6,\)"):
        gather_stripes(x, ids, [0, 3], flat)
    with pytest.raises(KernelError, match=r"stripes must be torch\.float32"):
        scatter_stripes(x, ids, [0, 4], flat.half())
    with pytest.raises(PayloadError, match="ids must be int32 with one dimension"):
        scatter_stripes(x, ids.long(), [0, 4], flat)
    with pytest.raises(KernelError, match="x must be float32, bfloat16 or float16 with two"):
        nonzero_rows(x[0], ids)
    with pytest.raises(KernelError, match="x is written in place and must be contiguous"):
        nonzero_rows(x.t(), ids)
    with pytest.raises(KernelError, match=r"ids_out must have shape \(5,\)"):
        nonzero_rows(x, ids)
    assert untouched(x, flat)

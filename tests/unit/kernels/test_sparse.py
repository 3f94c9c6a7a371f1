"""accumulate, accumulate_dense and add: against their twins, and the checks of arguments."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from samples import DISTRIBUTIONS, DTYPES, draw, same

from gradwire.errors import KernelError, PayloadError
from gradwire.kernels import accumulate, accumulate_dense, add, tensors, use
from gradwire.kernels.torch import accumulate as accumulate_twin
from gradwire.kernels.torch import accumulate_dense as accumulate_dense_twin

pytestmark = pytest.mark.usefixtures("instruction_set")
DTYPE = st.sampled_from(DTYPES)
KINDS = st.sampled_from(sorted(DISTRIBUTIONS))
DIVISORS = st.sampled_from([1.0, 3.0, 4.0, -7.0])


def payload(
    kind: str, n: int, density: float, seed: int, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    place = (torch.rand(n, generator=generator) < density).nonzero().view(-1).int()
    return place, draw(kind, place.numel(), seed, dtype)


@given(
    st.lists(
        st.tuples(st.sampled_from(sorted(DISTRIBUTIONS)), st.floats(0, 1), DTYPE), max_size=5
    ),
    st.one_of(st.integers(0, 300), st.integers(4090, 4100), st.just(100_001)),
    DTYPE,
    st.integers(0, 3),
    DIVISORS,
)
def test_sparse_same_bits_as_twin(
    drawn: list[tuple[str, float, torch.dtype]],
    n: int,
    dtype: torch.dtype,
    shift: int,
    divisor: float,
) -> None:
    payloads = [payload(kind, n, share, r, d) for r, (kind, share, d) in enumerate(drawn)]
    indices, values = [p[0] for p in payloads], [p[1] for p in payloads]
    out, wanted = draw("broken", n, 0, dtype, shift), torch.empty(n, dtype=dtype)
    accumulate(out, indices, values, divisor)
    accumulate_twin(wanted, indices, values, divisor)
    assert same(out, wanted)


@given(
    st.lists(st.tuples(KINDS, DTYPE), max_size=4),
    st.one_of(st.integers(0, 300), st.integers(4090, 4100), st.just(100_001)),
    DTYPE,
    st.integers(0, 3),
    DIVISORS,
)
def test_dense_same_bits_as_twin(
    drawn: list[tuple[str, torch.dtype]], n: int, dtype: torch.dtype, shift: int, divisor: float
) -> None:
    payloads = [draw(kind, n, r, d, shift) for r, (kind, d) in enumerate(drawn)]
    out, wanted = draw("broken", n, 0, dtype, shift), torch.empty(n, dtype=dtype)
    accumulate_dense(out, payloads, divisor)
    accumulate_dense_twin(wanted, payloads, divisor)
    assert same(out, wanted)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shift", [0, 1])
def test_targets_written_around_the_cache(dtype: torch.dtype, shift: int) -> None:
    n = (4 << 20) + 5
    indices, values = payload("normal", n, 0.001, 1, torch.float32)
    out, wanted = draw("zeros", n, 0, dtype, shift), torch.empty(n, dtype=dtype)
    accumulate(out, [indices], [values], 3.0)
    accumulate_twin(wanted, [indices], [values], 3.0)
    assert torch.equal(out, wanted)


@pytest.mark.parametrize("values", DTYPES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_entries_around_blocks_and_vectors(values: torch.dtype, dtype: torch.dtype) -> None:
    """Runs of every length around a vector, up to and over the edges of a block, are summed."""
    n = 3 * 4096 + 7
    places, terms = [], []
    for length in (1, 7, 8, 9, 15, 16, 17, 33):
        runs = [torch.arange(length) + edge - length // 2 for edge in (4096, 8192, 3 * 4096)]
        ends = [torch.arange(length), torch.arange(n - length, n)]
        places.append(torch.cat([*runs, *ends]).clamp(max=n - 1).unique().int())
        terms.append(draw("normal", places[-1].numel(), length, values))
    out, wanted = torch.empty(n, dtype=dtype), torch.empty(n, dtype=dtype)
    accumulate(out, places, terms, 3.0)
    accumulate_twin(wanted, places, terms, 3.0)
    assert same(out, wanted)


@pytest.mark.parametrize("at", [1, 1023, 1024, 1025, 2047, 2048, 2999])
@pytest.mark.parametrize("wrong", [-1, 0, 5000, 2**31 - 1])
def test_a_bad_index_in_a_long_list_is_named(at: int, wrong: int) -> None:
    out, places = torch.full((5000,), 7.0), torch.arange(1, 3001, dtype=torch.int32)
    places[at] = wrong
    with pytest.raises(PayloadError, match=f"but entry {at} is {wrong}"):
        accumulate(out, [places], [torch.ones(3000)], 1.0)
    assert (out == 7.0).all()


def test_values_by_hand() -> None:
    out = torch.full((5,), 7.0)
    first, second = torch.tensor([0, 3], dtype=torch.int32), torch.tensor([3], dtype=torch.int32)
    accumulate(out, [first, second], [torch.tensor([1.0, 2.0]), torch.tensor([4.0])], 2)
    assert out.tolist() == [0.5, 0, 0, 3, 0]
    accumulate(out, [], [], 2)
    assert out.tolist() == [0] * 5


@pytest.mark.parametrize(
    ("wrong", "entry"), [([0, 5], 1), ([-1, 2], 0), ([2, 2], 1), ([3, 1], 1), ([0, 2**31 - 1], 1)]
)
def test_a_bad_index_is_named_and_nothing_is_written(wrong: list[int], entry: int) -> None:
    out = torch.full((5,), 7.0)
    good = torch.tensor([0, 4], dtype=torch.int32)
    bad = torch.tensor(wrong, dtype=torch.int32)
    values = torch.ones(2)
    pattern = rf"payload 1: .*0 \.\.\. 4, but entry {entry} is {wrong[entry]}.*\(n = 5\)"
    with pytest.raises(PayloadError, match=pattern):
        accumulate(out, [good, bad], [values, values], 2.0)
    assert out.tolist() == [7.0] * 5


@given(
    KINDS,
    st.integers(0, 3000),
    st.floats(0, 1),
    st.integers(0, 3),
    st.sampled_from([1.0, -1.0, 0.3, 0.0, -1e30]),
)
def test_add_same_bits_as_twin(
    kind: str, n: int, density: float, shift: int, factor: float
) -> None:
    indices, values = payload(kind, n, density, 1, torch.float32)
    v = draw("normal", n, 2, shift=shift)
    wanted = v.clone()
    add(v, indices, values, factor)
    with use("twin"):
        add(wanted, indices, values, factor)
    assert same(v, wanted)


def test_add_by_hand_and_its_checks() -> None:
    v = torch.tensor([1.0, 2.0, 3.0, 4.0])
    place = torch.tensor([0, 3], dtype=torch.int32)
    add(v, place, torch.tensor([2.0, -3.0]), -2.0)
    assert v.tolist() == [-3.0, 2.0, 3.0, 10.0]
    for wrong in ([0, 4], [-1, 2], [2, 2], [3, 1]):
        with pytest.raises(PayloadError, match=r"must ascend strictly within 0 \.\.\. 3"):
            add(v, torch.tensor(wrong, dtype=torch.int32), torch.ones(2), 1.0)
    with pytest.raises(KernelError, match=r"values must have shape \(2,\)"):
        add(v, place, torch.ones(3), 1.0)
    with pytest.raises(KernelError, match=r"values must be torch\.float32"):
        add(v, place, torch.ones(2).half(), 1.0)
    with pytest.raises(KernelError, match="factor must be finite"):
        add(v, place, torch.ones(2), float("nan"))
    assert v.tolist() == [-3.0, 2.0, 3.0, 10.0]


@pytest.mark.parametrize("factors", [(0.0, -0.0), (-0.0, 0.0)], ids=str)
def test_a_zero_factor_has_no_sign(factors: tuple[float, ...]) -> None:
    """Whatever numbers earlier calls had."""
    tensors._in_fp32.cache_clear()
    for factor in factors:
        v = torch.tensor([-0.0, 0.0])
        add(v, torch.tensor([0, 1], dtype=torch.int32), torch.tensor([1.0, -1.0]), factor)
        assert v.signbit().tolist() == [False, False], factor


def test_bad_layouts_are_refused() -> None:
    out, place = torch.full((5,), 7.0), torch.tensor([0, 4], dtype=torch.int32)
    with pytest.raises(PayloadError, match="payload 0: values must be"):
        accumulate(out, [place], [torch.ones(3)], 1.0)
    with pytest.raises(PayloadError, match="payload 0: indices must be int32"):
        accumulate(out, [place.long()], [torch.ones(2)], 1.0)
    for are_own in (False, True):
        with pytest.raises(PayloadError, match="equal length"):
            accumulate(out, [place], [], 1.0, are_own=are_own)
    with pytest.raises(PayloadError, match="payload 1 must be"):
        accumulate_dense(out, [torch.ones(5), torch.ones(4)], 1.0)
    with pytest.raises(KernelError, match="divisor must not be 0"):
        accumulate(out, [], [], 0.0)
    with pytest.raises(KernelError, match="contiguous"):
        accumulate(torch.zeros(10)[::2], [], [], 1.0)
    assert out.tolist() == [7.0] * 5


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("step", [1, 3, 22])
def test_nothing_of_the_next_tile_reaches_this_one(dtype: torch.dtype, step: int) -> None:
    """Tiles of 4096 end after any number of entries; the entries behind them are not finite."""
    n = 3 * 4096 + 5
    for first in range(4096 - 12 * step, 4096):
        place = torch.arange(first % step, n, step, dtype=torch.int32)
        place = place[place >= first - 80 * step]
        value = torch.where(place < 4096, 1.0, torch.inf).to(dtype)
        value[place >= 8192] = 2.0
        out, wanted = torch.full((n,), 7.0), torch.empty(n)
        accumulate(out, [place, place[1:]], [value, value[1:]], 2.0)
        accumulate_twin(wanted, [place, place[1:]], [value, value[1:]], 2.0)
        assert same(out, wanted)


@pytest.mark.parametrize("count", [0, 1, 7, 8, 9, 15, 16, 17, 31, 33])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_lists_that_end_anywhere_in_a_tile(dtype: torch.dtype, count: int) -> None:
    """Nothing behind a list is read, and no sum is left over for a later tile."""
    n = 5 * 4096 + 100
    for first in (0, 4080, 4095, 8192 - 9, n - count):
        place = torch.arange(first, first + count, dtype=torch.int32)
        value = torch.arange(1, count + 1).to(dtype)
        out, wanted = torch.full((n,), 7.0), torch.empty(n)
        accumulate(out, [place] * 3, [value] * 3, 3.0)
        accumulate_twin(wanted, [place] * 3, [value] * 3, 3.0)
        assert same(out, wanted)

"""cast against torch over all 16-bit patterns and many 32-bit ones; add_cast; is_finite."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from samples import DISTRIBUTIONS, DTYPES, draw, finite, same, told

from gradwire.errors import KernelError, PayloadError
from gradwire.kernels import (
    accumulate_dense,
    add_cast,
    cast,
    copy_unless,
    finite_part,
    flag_non_finite,
    is_finite,
    spoil_if,
    subtract,
)
from gradwire.kernels.torch import add_cast as add_cast_twin
from gradwire.kernels.torch import cast as cast_twin

pytestmark = pytest.mark.usefixtures("instruction_set")


def every_pattern(dtype: torch.dtype) -> torch.Tensor:
    """All 16-bit floats; for fp32 every upper half, with lower halves near a rounding boundary."""
    top = torch.arange(-(2**15), 2**15).to(torch.int16)
    if dtype != torch.float32:
        return top.view(dtype)
    low = torch.tensor(
        [0, 1, 0xFFF, 0x1000, 0x1001, 0x2FFF, 0x3000, 0x7FFF, 0x8000, 0x8001, 0xFFFF]
    )
    return ((top.int()[:, None] << 16) | low.int()).view(-1).view(torch.float32)


@pytest.mark.parametrize("target", DTYPES, ids=str)
@pytest.mark.parametrize("source", DTYPES, ids=str)
@pytest.mark.parametrize("shift", [0, 1, 3])
def test_every_pattern_as_torch(source: torch.dtype, target: torch.dtype, shift: int) -> None:
    x = every_pattern(source)[shift:]
    out = torch.empty(x.numel() + shift, dtype=target)[shift:]
    cast(x, out)
    assert same(out, x.to(target))
    assert not finite(cast, x, out)
    assert (out == 0).all()
    good = x[x.to(target).isfinite()]
    assert finite(cast, good, out[: good.numel()])
    assert same(out[: good.numel()], good.to(target))


@pytest.mark.parametrize("target", DTYPES, ids=str)
def test_the_flag_is_about_the_target(target: torch.dtype) -> None:
    """The status tells the first value that is rounded to inf from the last that is not."""
    first = {torch.float32: 0x7F800000, torch.bfloat16: 0x7F7F8000, torch.float16: 0x477FF000}
    ends = torch.tensor([first[target] - 1, first[target]], dtype=torch.int32).view(torch.float32)
    for n in (1, 7, 16, 33, 1000):
        out = torch.empty(n, dtype=target)
        for place in {0, n // 2, n - 1}:
            for sign in (1.0, -1.0):
                x = torch.ones(n)
                x[place] = sign * ends[0]
                assert finite(cast, x, out)
                assert finite(cast_twin, x, out)
                assert out.isfinite().all()
                x[place] = sign * ends[1]
                assert not finite(cast, x, out)
                assert (out == 0).all()
                assert not finite(cast_twin, x, out)
                assert (out == 0).all()
                cast(x, out)
                assert out[place] == sign * float("inf")
                x[place] = float("nan")
                assert not finite(cast, x, out)
                cast(x, out)
                assert out[place].isnan()
    assert finite(cast, torch.empty(0), torch.empty(0, dtype=target))


@given(st.lists(st.floats(width=32), max_size=70), st.sampled_from(DTYPES))
def test_any_size_as_torch(content: list[float], target: torch.dtype) -> None:
    x = torch.tensor(content, dtype=torch.float32)
    out = torch.empty(len(content), dtype=target)
    cast(x, out)
    assert same(out, x.to(target))


def test_a_large_target_as_torch() -> None:
    x = torch.randn((2 << 20) + 7)
    out = torch.empty(x.numel() + 1, dtype=torch.bfloat16)[1:]
    assert finite(cast, x, out)
    assert torch.equal(out, x.bfloat16())
    x[-1] = 3.4e38
    assert not finite(cast, x, out)


@given(
    st.sampled_from(sorted(DISTRIBUTIONS)),
    st.one_of(st.integers(0, 300), st.integers(4090, 4100)),
    st.sampled_from(DTYPES),
    st.integers(0, 3),
    st.sampled_from([1.0, -1.0, 0.5, 0.1, -3.0, 0.0, 1e30, 1e-30]),
)
def test_add_cast_as_twin(
    kind: str, n: int, dtype: torch.dtype, shift: int, factor: float
) -> None:
    source = draw(kind, n, 1, dtype, shift)
    v = draw("normal", n, 2, shift=shift)
    wanted = v.clone()
    add_cast(v, source, factor)
    add_cast_twin(wanted, source, factor)
    assert same(v, wanted)


def test_add_cast_by_hand() -> None:
    v = torch.tensor([1.0, 2.0, 3.0])
    add_cast(v, torch.tensor([1.0, -2.0, 0.5], dtype=torch.float16), -2.0)
    assert v.tolist() == [-1.0, 6.0, 2.0]
    add_cast(v, torch.ones(6).bfloat16()[::2], 1.0)
    assert v.tolist() == [0.0, 7.0, 3.0]
    with pytest.raises(KernelError, match="factor must be finite"):
        add_cast(v, torch.ones(3), 1e39)
    with pytest.raises(KernelError, match="target must have the shape"):
        add_cast(v, torch.ones(4), 1.0)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("n", [1, 15, 16, 17, 200, 70_001])
def test_is_finite_finds_one(dtype: torch.dtype, n: int) -> None:
    for place in {0, n // 2, n - 1}:
        x = torch.randn(n).to(dtype)
        assert is_finite(x)
        assert finite(flag_non_finite, x)
        assert same(told(finite_part, x)[0], x)
        for value in (float("inf"), float("-inf"), float("nan")):
            x[place] = value
            assert not is_finite(x)
            assert not finite(flag_non_finite, x)
            part, all_of_it = told(finite_part, x)
            assert not all_of_it
            assert same(part, torch.where(torch.arange(n) == place, 0.0, x))
            assert same(finite_part(x), part)
            assert not x[place].isfinite()
    assert is_finite(torch.empty(0, dtype=dtype))
    assert finite(flag_non_finite, torch.empty(0, dtype=dtype))


def test_wrong_targets_are_refused() -> None:
    with pytest.raises(KernelError, match="target must have the shape"):
        cast(torch.ones(3), torch.ones(4))
    with pytest.raises(KernelError, match="target must be float32, bfloat16 or float16"):
        cast(torch.ones(3), torch.ones(3, dtype=torch.float64))
    with pytest.raises(KernelError, match="contiguous"):
        cast(torch.ones(3), torch.ones(6)[::2])


def test_fp64_is_copied_and_looked_at_as_such() -> None:
    x, y = torch.tensor([1.0, 1 + 2.0**-40, -0.0]).double(), torch.empty(3, dtype=torch.float64)
    assert finite(cast, x, y)
    assert torch.equal(x, y)
    assert not finite(cast, torch.full_like(x, math.inf), y)
    cast(torch.full_like(x, math.inf), y)
    assert not is_finite(y)
    assert not finite(flag_non_finite, y)
    accumulate_dense(y, [x, x, x], 3.0)
    assert torch.equal(x, y)
    with pytest.raises(PayloadError, match="payload 1 must be float64"):
        accumulate_dense(y, [x, x.float()], 2.0)
    with pytest.raises(KernelError, match="source must be float32, bfloat16 or float16"):
        cast(x, torch.empty(3))


@pytest.mark.parametrize("dtype", [*DTYPES, torch.float64], ids=str)
def test_what_is_raised_spoils_all(dtype: torch.dtype) -> None:
    for word, spoils in ((0, False), (1, True), (3, True)):
        x = torch.ones(70, dtype=dtype)
        spoil_if(torch.tensor([word]), x)
        assert bool(x.isnan().all()) == spoils
        assert bool((x == 1).all()) != spoils


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_difference_is_written_unless_the_word_is_raised(dtype: torch.dtype) -> None:
    x, y = draw("normal", 70, 1), draw("normal", 70, 2, dtype)
    wanted, seven = x - y.float(), torch.full((70,), 7.0)
    for word, writes in ((0, True), (1, False), (2, False)):
        out = seven.clone()
        subtract(x, y, out, torch.tensor([word]))
        assert torch.equal(out, wanted if writes else seven)
    subtract(x, y, x, torch.tensor([0]))
    assert torch.equal(x, wanted), "in place"


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_copy_is_written_unless_the_word_is_raised(dtype: torch.dtype) -> None:
    x, seven = draw("normal", 70, 1), torch.full((70,), 7.0, dtype=dtype)
    for word, writes in ((0, True), (1, False), (2, False)):
        out = seven.clone()
        copy_unless(torch.tensor([word]), x, out)
        assert torch.equal(out, x.to(dtype) if writes else seven)
    with pytest.raises(KernelError, match="out must have shape"):
        copy_unless(torch.tensor([0]), x, torch.ones(4))


def test_what_cannot_be_subtracted_is_refused() -> None:
    x, word = torch.ones(3), torch.tensor([0])
    with pytest.raises(KernelError, match="out must have shape"):
        subtract(x, x, torch.ones(4), word)
    with pytest.raises(KernelError, match="x must be"):
        subtract(x.double(), x, x, word)
    with pytest.raises(KernelError, match="status must be"):
        subtract(x, x, x, word.int())

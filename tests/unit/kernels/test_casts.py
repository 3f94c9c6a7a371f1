"""cast against torch over all 16-bit patterns and many 32-bit ones; is_finite."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from samples import DTYPES, same

from gradwire.errors import KernelError
from gradwire.kernels import cast, is_finite

pytestmark = pytest.mark.usefixtures("instruction_set")


def every_pattern(dtype: torch.dtype) -> torch.Tensor:
    """All 16-bit floats; for fp32 all patterns of the top half with low halves near rounding."""
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


@settings(max_examples=100, deadline=None)
@given(st.lists(st.floats(width=32), max_size=70), st.sampled_from(DTYPES))
def test_any_size_as_torch(content: list[float], target: torch.dtype) -> None:
    x = torch.tensor(content, dtype=torch.float32)
    out = torch.empty(len(content), dtype=target)
    cast(x, out)
    assert same(out, x.to(target))


def test_a_large_target_as_torch() -> None:
    x = torch.randn((2 << 20) + 7)
    out = torch.empty(x.numel() + 1, dtype=torch.bfloat16)[1:]
    cast(x, out)
    assert torch.equal(out, x.bfloat16())


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("n", [1, 15, 16, 17, 200, 70_001])
def test_is_finite_finds_one(dtype: torch.dtype, n: int) -> None:
    for place in {0, n // 2, n - 1}:
        x = torch.randn(n).to(dtype)
        assert is_finite(x)
        for value in (float("inf"), float("-inf"), float("nan")):
            x[place] = value
            assert not is_finite(x)
    assert is_finite(torch.empty(0, dtype=dtype))


def test_wrong_targets_are_refused() -> None:
    with pytest.raises(KernelError, match="target must have the shape"):
        cast(torch.ones(3), torch.ones(4))
    with pytest.raises(KernelError, match="target must be float32, bfloat16 or float16"):
        cast(torch.ones(3), torch.ones(3, dtype=torch.float64))
    with pytest.raises(KernelError, match="contiguous"):
        cast(torch.ones(3), torch.ones(6)[::2])

"""Inputs for the kernel tests: adversarial distributions, unaligned views, bit comparisons."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from gradwire.extension import TWIN
from gradwire.kernels import is_raised, new_status
from gradwire.kernels.native import available_sets

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
NATIVE = pytest.mark.parametrize(
    "instruction_set",
    [pytest.param(name, marks=[pytest.mark.full] * (name == TWIN)) for name in available_sets()],
    indirect=True,
)
"""Each set of kernels; the twin in the full suite only. For tests that compare sets with the twin,
which as the first set would meet itself in most cases; and for those of threads."""


def _two_valued(n: int, g: torch.Generator) -> torch.Tensor:
    return torch.where(torch.rand(n, generator=g) < 0.1, 2.0, -0.5)


def _signed_zeros(n: int, g: torch.Generator) -> torch.Tensor:
    return torch.where(torch.rand(n, generator=g) < 0.5, 0.0, -0.0)


def _sparse(n: int, g: torch.Generator) -> torch.Tensor:
    return torch.where(torch.rand(n, generator=g) < 0.05, torch.randn(n, generator=g), 0.0)


def _denormal(n: int, g: torch.Generator) -> torch.Tensor:
    return torch.randint(-9, 10, (n,), generator=g) * 2.0**-149


def _spike(n: int, g: torch.Generator) -> torch.Tensor:
    x = torch.full((n,), 1e-3)
    x[n // 2 : n // 2 + 1] = -3e4
    return x


def _broken(n: int, g: torch.Generator) -> torch.Tensor:
    x = torch.randn(n, generator=g)
    for place, value in enumerate((float("inf"), float("nan"), float("-inf"))):
        x[place::11] = value
    return x


def _laplace(n: int, g: torch.Generator) -> torch.Tensor:
    u = torch.rand(n, generator=g) - 0.5
    return -u.sign() * torch.log1p(-2 * u.abs().clamp(max=0.49999997))


DISTRIBUTIONS = {
    "normal": lambda n, g: torch.randn(n, generator=g),
    "laplace": _laplace,
    "ascending": lambda n, g: torch.linspace(0.0, 1.0, n),
    "descending": lambda n, g: torch.linspace(1.0, 0.0, n),
    "equal": lambda n, g: torch.full((n,), -1.5),
    "zeros": lambda n, g: torch.zeros(n),
    "signed zeros": _signed_zeros,
    "two values": _two_valued,
    "sparse": _sparse,
    "denormal": _denormal,
    "spike": _spike,
    "huge": lambda n, g: torch.randn(n, generator=g) * 3e38,
    "broken": _broken,
}


def draw(
    kind: str, n: int, seed: int, dtype: torch.dtype = torch.float32, shift: int = 0
) -> torch.Tensor:
    """(n,) of the distribution; shift > 0 makes the address unaligned."""
    generator = torch.Generator().manual_seed(seed)
    held = torch.empty(n + shift, dtype=dtype)
    view = held[shift:]
    view.copy_(DISTRIBUTIONS[kind](n, generator))
    return view


def bits(x: torch.Tensor | None) -> list[int]:
    """The exact bits, with every NaN the same."""
    return [] if x is None else _integers(x).tolist()


def same(x: torch.Tensor | None, y: torch.Tensor | None) -> bool:
    """Whether both are equal bit for bit, with every NaN the same."""
    if x is None or y is None:
        return x is y
    return x.dtype == y.dtype and torch.equal(_integers(x), _integers(y))


def _integers(x: torch.Tensor) -> torch.Tensor:
    if x.dtype == torch.int32:
        return x
    same = torch.where(x.isnan(), torch.full_like(x, float("nan")), x)
    return same.contiguous().view(torch.int32 if x.dtype == torch.float32 else torch.int16)


def told(call: Callable[..., Any], *given: Any, **named: Any) -> tuple[Any, bool]:
    """Returns what a call returns, and whether its status says that all is finite."""
    status = new_status()
    return call(*given, status=status, **named), not is_raised(status)


def finite(call: Callable[..., Any], *given: Any, **named: Any) -> bool:
    """Whether a call's status says that all is finite."""
    return told(call, *given, **named)[1]

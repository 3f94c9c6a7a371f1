"""Gradients to try members on: ordinary, repeatable, and nasty ones."""

from __future__ import annotations

import torch
from hypothesis import strategies as st
from torch import Tensor

FLOATS = (torch.float32, torch.bfloat16, torch.float16)


def normal(n: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(n, generator=generator).to(dtype)


def ranks(world: int, n: int, step: int = 0, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    """One gradient per rank; each step has other gradients."""
    return [normal(n, 1 + rank + 100 * step, dtype) for rank in range(world)]


def integers(world: int, n: int, step: int = 0) -> list[Tensor]:
    """Gradients whose sums are exact in every format: whole numbers up to 8."""
    generator = torch.Generator().manual_seed(step)
    shape = (world, n)
    return list(torch.randint(-8, 9, shape, generator=generator).float())


def _geometric(n: int) -> Tensor:
    return 0.9 ** torch.arange(n).float() * torch.tensor([1.0, -1.0]).repeat(n)[:n]


def _spike(n: int) -> Tensor:
    x = torch.full((n,), 1e-3)
    x[n // 2] = -1e3
    return x


NASTY = {
    "zeros": torch.zeros(40),
    "negative zeros": -torch.zeros(40),
    "one element": torch.tensor([-2.5]),
    "empty": torch.zeros(0),
    "all equal": torch.full((37,), 0.25),
    "equal but for the sign": torch.tensor([1.0, -1.0]).repeat(20),
    "two values": torch.tensor([3.0, 1.0, 1.0, 3.0, 1.0]).repeat(9),
    "geometric": _geometric(64),
    "one spike": _spike(101),
    "few elements": torch.tensor([0.0, -0.0, 1.0]),
    "ascending": torch.arange(50).float(),
    "descending": torch.arange(50, 0, -1).float(),
}
"""Finite inputs within the normal range of every format."""

DENORMAL = torch.tensor([1e-45, -1e-44, 0.0, 1e-40, -1e-39] * 5)

WHOLE = st.lists(st.integers(-6, 6), max_size=40).map(lambda v: torch.tensor(v).float())
REAL = st.lists(st.floats(-(2.0**15), 2.0**15, width=16, allow_subnormal=False), max_size=40).map(
    lambda v: torch.tensor(v, dtype=torch.float32)
)
VECTORS = WHOLE | REAL
"""Whole numbers, so that ties are common, and half-precision floats, so that no format rounds."""

"""The room of CUDA tensors in Triton's interpreter, against the twins, bit for bit.

The interpreter computes with numpy, operation by operation: it shows the arithmetic and the
addresses, not that the kernels compile (test_cuda_compiles.py), nor what runs at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from gradwire.kernels import new_status

pytest.importorskip("triton")

FLOATS = [torch.float32, torch.bfloat16, torch.float16]
every_float = pytest.mark.parametrize("dtype", FLOATS, ids=str)


def dice(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def drawn(n: int, seed: int, kind: str = "normal", dtype: torch.dtype = torch.float32) -> Tensor:
    """normal, or with ties, with few that are not zero, or with what is not finite."""
    x = torch.randn(n, generator=dice(seed))
    if kind == "ties":
        x = (x * 4).round() / 4
    if kind == "zeros":
        x = torch.where(torch.rand(n, generator=dice(seed + 1)) < 0.01, x, torch.zeros(()))
    if n > 8:
        x[3], x[4], x[5] = -0.0, 1e-40, -1e-43
    x = x.to(dtype)
    if kind == "bad" and n > 9:
        x[7], x[8], x[9] = torch.nan, torch.inf, -torch.inf
    return x


def equal(x: Any, y: Any) -> bool:
    """Bit for bit, where every NaN is the same."""
    if not isinstance(x, Tensor):
        return bool(x == y)
    if not x.is_floating_point() or x.dtype == torch.float64:
        return torch.equal(x, y)
    integers = torch.int32 if x.dtype == torch.float32 else torch.int16
    alike = (x.isnan() & y.isnan()) | (x.view(integers) == y.view(integers))
    return x.dtype == y.dtype and bool(alike.all())


def same_by_both(
    operations: Sequence[Callable[..., Any]], given: Callable[[Tensor], tuple[Sequence[Any], Any]]
) -> list[Any]:
    """Run both on what `given` makes of a status, anew for each; all that may have been written
    is equal. Returns what they gave back.

    given: the arguments, and the tensors to compare.
    """
    found, written = [], []
    for operation in operations:
        status = new_status()
        arguments, tensors = given(status)
        found.append(operation(*arguments))
        written.append([*tensors, status])
    for number, (mine, wanted) in enumerate(zip(*written)):
        assert equal(mine, wanted), f"tensor {number}: {mine} is not {wanted}"
    return found

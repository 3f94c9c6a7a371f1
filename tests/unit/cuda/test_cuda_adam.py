"""Adam's step on CUDA, in the interpreter: the twins' moments and residuals."""

from __future__ import annotations

import pytest
import torch
from interpreted import every_float, same_by_both
from torch import Tensor

import gradwire.kernels.torch as twins
from gradwire.bench.rooms import HOW, drawn
from gradwire.kernels import cuda

LARGEST = torch.finfo(torch.float32).max


def tensors(n: int, dtype: torch.dtype, kind: str) -> tuple[Tensor, tuple[Tensor, Tensor], Tensor]:
    """A gradient, moments and a residual, with some elements far too large and some zero."""
    g, m, q, v = drawn(n, 1, kind, dtype), drawn(n, 2), drawn(n, 3).abs(), drawn(n, 4)
    if n > 40:
        m[20], v[21], q[22], q[23], m[24] = LARGEST, LARGEST, LARGEST, 0.0, 1e-44
        g[23] = 0.0
    return g, (m, q), v


@every_float
@pytest.mark.parametrize("kind", ["normal", "ties", "bad"])
@pytest.mark.parametrize("n", [0, 1, 4096, 5000])
def test_a_step_and_its_inverse_are_the_twins(n: int, kind: str, dtype: torch.dtype) -> None:
    def stepped(status: Tensor) -> tuple[list[object], list[Tensor]]:
        g, moments, v = tensors(n, dtype, kind)
        return [g, moments, v, HOW, status], [*moments, v]

    same_by_both([cuda.adam, twins.adam], stepped)

    def undone(status: Tensor) -> tuple[list[object], list[Tensor]]:
        g, moments, v = tensors(n, dtype, kind)
        return [g, moments, v, HOW], [*moments, v]

    same_by_both([cuda.undo_adam, twins.undo_adam], undone)

"""Random numbers on CUDA, in the interpreter, equal the twins'."""

from __future__ import annotations

import pytest
import torch
from interpreted import same_by_both
from torch import Tensor

import gradwire.kernels.torch as twins
from gradwire.kernels import cuda
from gradwire.kernels.values import Noise


@pytest.mark.parametrize("n", [0, 1, 4096, 9000])
@pytest.mark.parametrize("first", [0, 7, 2**31 - 5, 2**32 - 9])
@pytest.mark.parametrize("noise", [Noise.of("x", 3), Noise(2**32 - 1, 1, 2**31)], ids=str)
def test_dice_of_any_elements_are_the_twins(n: int, first: int, noise: Noise) -> None:
    def given(status: Tensor) -> tuple[list[object], list[Tensor]]:
        out = torch.full((n,), 7, dtype=torch.int32)
        return [noise, first, out], [out]

    same_by_both([cuda.dice, twins.dice], given)

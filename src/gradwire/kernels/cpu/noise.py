"""Random numbers by the extension."""

import torch
from torch import Tensor

from gradwire.kernels.native import chosen
from gradwire.kernels.tensors import pointer
from gradwire.kernels.values import Noise


def random_bits(noise: Noise, n: int, first: int) -> Tensor:
    out = torch.empty(n, dtype=torch.int32)
    chosen.core.noise(chosen.number, noise, first, n, pointer(out))
    return out.long() & 0xFFFFFFFF


def strata(noise: Noise, n: int, places: Tensor) -> None:
    chosen.core.strata(chosen.number, noise, n, places.numel(), pointer(places))

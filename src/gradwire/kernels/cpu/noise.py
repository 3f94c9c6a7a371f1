"""Random numbers by the extension."""

from torch import Tensor

from gradwire.kernels.native import chosen
from gradwire.kernels.tensors import pointer
from gradwire.kernels.values import Noise


def dice(noise: Noise, first: int, out: Tensor) -> None:
    chosen.core.noise(chosen.number, noise, first, out.numel(), pointer(out))


def strata(noise: Noise, n: int, places: Tensor) -> None:
    chosen.core.strata(chosen.number, noise, n, places.numel(), pointer(places))

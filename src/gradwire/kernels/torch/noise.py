"""Random numbers in torch."""

import torch

from gradwire.kernels.values import Noise


def random_bits(
    noise: Noise, n: int, first: int = 0, device: torch.device | str = "cpu"
) -> torch.Tensor:
    """Returns the numbers, (n,) int64. Products wrap modulo 2^64, which leaves their lower halves
    right."""
    h = torch.arange(first, first + n, device=device) + noise.first & 0xFFFFFFFF
    h = (h ^ (h >> 16)) * 0x7FEB352D & 0xFFFFFFFF
    h = ((h ^ (h >> 15)) + noise.second & 0xFFFFFFFF) * 0x846CA68B & 0xFFFFFFFF
    return (h ^ (h >> 16)) + noise.shift & 0xFFFFFFFF


def dice(noise: Noise, first: int, out: torch.Tensor) -> None:
    out.copy_(random_bits(noise, out.numel(), first, out.device))


def strata(noise: Noise, n: int, places: torch.Tensor) -> None:
    k = places.numel()
    begin = torch.arange(k + 1, device=places.device) * n // max(k, 1)
    size = begin[1:] - begin[:-1]
    thrown = random_bits(noise, k, device=places.device)
    places.copy_(begin[:-1] + (thrown * size >> 32))


def unit(random: torch.Tensor) -> torch.Tensor:
    """Converts 32-bit numbers to fp32 in [0, 1), with 24 bits."""
    return (random >> 8).float() * 2.0**-24

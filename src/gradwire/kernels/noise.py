"""Random numbers as a function of a key and an element: no state, so nothing to save.

Two rounds of a multiply-xorshift mixer with a key before each, on 32 bits. The same numbers
whatever the instruction set, the thread count, the grouping of parameters, or a resume.
"""

import hashlib
from typing import NamedTuple

import torch

from gradwire.errors import KernelError
from gradwire.kernels.native import core_for
from gradwire.kernels.tensors import check_buffer, check_domain, pointer

_GOLDEN = 0x9E3779B9  # 2^32 over the golden ratio


class Noise(NamedTuple):
    """Two keys, and what is added to every number modulo 2^32."""

    first: int
    second: int
    shift: int = 0

    @staticmethod
    def of(name: str, rank: int = 0) -> "Noise":
        """The numbers that belong to a name, as one rank draws them.

        Ranks share them up to a rotation by the golden ratio: each rank's are uniform, and two
        ranks that round the same value tend to round it in opposite directions, so the error of
        the mean is smaller than that of independent numbers (Suresh et al. 2022, "Correlated
        Quantization for Distributed Mean Estimation").
        """
        words = hashlib.blake2b(name.encode(), digest_size=8).digest()
        first, second = (int.from_bytes(words[i : i + 4], "little") for i in (0, 4))
        return Noise(first, second, rank * _GOLDEN % 2**32)


def check_noise(noise: Noise) -> None:
    """KernelError unless all three are words of 32 bits."""
    first, second, shift = noise
    if not (0 <= first < 1 << 32 and 0 <= second < 1 << 32 and 0 <= shift < 1 << 32):
        raise KernelError(
            f"the keys and the shift of noise have 32 bits each, but are {tuple(noise)}; make it "
            "by Noise.of"
        )


def _check_bits(noise: Noise, n: int, first: int) -> None:
    check_noise(noise)
    check_domain(n)
    if not 0 <= first < 1 << 32:
        raise KernelError(
            f"elements are numbered from 0 to 2^32-1, not from {first}; pass a place"
        )


def random_bits(noise: Noise, n: int, first: int = 0) -> torch.Tensor:
    """The 32-bit numbers of elements first ... first + n - 1: (n,) int64, on the CPU.

    Raises KernelError.
    """
    _check_bits(noise, n, first)
    found = core_for()
    if found is None:
        return random_bits_twin(noise, n, first)
    core, which = found
    out = torch.empty(n, dtype=torch.int32)
    core.noise(which, noise, first, n, pointer(out))
    return out.long() & 0xFFFFFFFF


def random_bits_twin(
    noise: Noise, n: int, first: int = 0, device: torch.device | str = "cpu"
) -> torch.Tensor:
    """`random_bits` in torch. Products wrap modulo 2^64, which leaves their lower halves right."""
    h = torch.arange(first, first + n, device=device) + noise.first & 0xFFFFFFFF
    h = (h ^ (h >> 16)) * 0x7FEB352D & 0xFFFFFFFF
    h = ((h ^ (h >> 15)) + noise.second & 0xFFFFFFFF) * 0x846CA68B & 0xFFFFFFFF
    return (h ^ (h >> 16)) + noise.shift & 0xFFFFFFFF


def strata(noise: Noise, n: int, places: torch.Tensor) -> None:
    """One place in each of k runs of n elements: floor(i·n/k) and what a die says.

    places: (k,) int32, k at most n, written; ascending. Raises KernelError.
    """
    check_noise(noise)
    check_domain(n)
    check_buffer("places", places, torch.int32, min(places.numel(), n))
    found = core_for(places)
    if found is None:
        strata_twin(noise, n, places)
        return
    core, which = found
    core.strata(which, noise, n, places.numel(), pointer(places))


def strata_twin(noise: Noise, n: int, places: torch.Tensor) -> None:
    """`strata` in torch."""
    k = places.numel()
    begin = torch.arange(k + 1, device=places.device) * n // max(k, 1)
    size = begin[1:] - begin[:-1]
    dice = random_bits_twin(noise, k, device=places.device)
    places.copy_(begin[:-1] + (dice * size >> 32))


def unit_twin(random: torch.Tensor) -> torch.Tensor:
    """32-bit numbers as fp32 in [0, 1), of 24 bits."""
    return (random >> 8).float() * 2.0**-24

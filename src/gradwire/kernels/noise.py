"""Random numbers as a function of a key and an element: no state, so nothing to save.

Two rounds of a multiply-xorshift mixer on 32 bits, with a key added before each. The numbers do
not depend on the instruction set, the thread count, the grouping of parameters, or a resume.
"""

import torch

from gradwire.errors import KernelError
from gradwire.kernels.rooms import room_of
from gradwire.kernels.tensors import check_buffer, check_domain
from gradwire.kernels.values import Noise


def check_noise(noise: Noise) -> None:
    """Raises KernelError unless both keys and the shift are words of 32 bits."""
    first, second, shift = noise
    if not (0 <= first < 1 << 32 and 0 <= second < 1 << 32 and 0 <= shift < 1 << 32):
        raise KernelError(
            f"the keys and the shift of noise must have 32 bits each, but are {tuple(noise)}; "
            "make it with Noise.of"
        )


def random_bits(
    noise: Noise, n: int, first: int = 0, device: torch.device | str = "cpu"
) -> torch.Tensor:
    """Returns the 32-bit numbers of elements first ... first + n - 1: (n,) int64, on the device.

    Raises KernelError.
    """
    check_noise(noise)
    check_domain(n)
    if not 0 <= first < 1 << 32:
        raise KernelError(
            f"the index of the first element must be from 0 to 2^32-1, not {first}; pass such an "
            "index"
        )
    out = torch.empty(n, dtype=torch.int32, device=device)
    room_of(out).dice(noise, first, out)
    return out.long() & 0xFFFFFFFF


def strata(noise: Noise, n: int, places: torch.Tensor) -> None:
    """Writes one random place in each of k runs of n elements; run i begins at floor(i·n/k).

    places: (k,) int32, k at most n, written; ascending. Raises KernelError.
    """
    check_noise(noise)
    check_domain(n)
    check_buffer("places", places, torch.int32, min(places.numel(), n))
    room_of(places).strata(noise, n, places)

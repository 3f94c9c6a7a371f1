"""The largest magnitude, and the order of the sums over all elements that become a scale.

The sums are taken over blocks of 4096 elements in fp32, element i in lane i mod 64 and the lanes
pairwise, and over the blocks in fp64, neighbours pairwise, then pairs of pairs: the same bits
whatever the instruction set and the number of threads.
"""

import torch

from gradwire.kernels.rooms import room_of
from gradwire.kernels.tensors import check_float


def largest(x: torch.Tensor, squares: bool = False) -> tuple[float, float]:
    """Returns the largest magnitude of x, and with `squares` the sum of its squares, else 0.

    x: (n,) fp32, bf16 or fp16. The result is inf or NaN if x is not finite. Raises KernelError.
    """
    check_float("x", x)
    return room_of(x).largest(x, squares)

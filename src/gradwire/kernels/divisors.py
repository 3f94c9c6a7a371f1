"""What sums are divided by: checked, and truly divided by."""

import torch

from gradwire.errors import KernelError
from gradwire.kernels.tensors import finite_number


def check_divisor(divisor: float) -> float:
    """The divisor as fp32; KernelError if it is 0 or not finite."""
    by = finite_number("divisor", divisor)
    if by == 0.0:
        raise KernelError("divisor must not be 0 in float32; pass the number of contributions")
    return by


def quotient(total: torch.Tensor, divisor: float) -> torch.Tensor:
    """True division: by a plain number, torch multiplies with the reciprocal on some devices."""
    return total / torch.tensor(divisor, dtype=total.dtype, device=total.device)

"""Exact top-k by magnitude.

Order: larger magnitude first, ties to the lower index; zeros of both signs tie; inf and NaN count
as zero.
Source: the top-k of Deep Gradient Compression (Lin et al., ICLR 2018), here exact and in one pass:
the candidates are the elements above a threshold carried over from the last step, and the k
largest of them are the k largest of all.
"""

import torch

from gradwire.errors import KernelError
from gradwire.kernels.rooms import room_of
from gradwire.kernels.status import check_status
from gradwire.kernels.tensors import (
    check_apart,
    check_buffer,
    check_float,
    check_same_device,
    finite_number,
    real,
)
from gradwire.kernels.values import Hint, Reaching, Words


def fallbacks() -> int:
    """Selections since the process started whose hint was too high: they read the data again."""
    return room_of().fallbacks()


def check_selection(x: torch.Tensor, k: int, indices: torch.Tensor, values: torch.Tensor) -> None:
    """KernelError unless k of x can be written to indices and values; x is known to be good."""
    if not 0 <= k <= x.numel():
        raise KernelError(
            f"k must be between 0 and the number of elements, {x.numel()}, not {k}; "
            "lower the density"
        )
    check_buffer("indices", indices, torch.int32, k)
    check_buffer("values", values, torch.float32, k)
    check_same_device(x, indices=indices, values=values)
    check_apart("indices", indices, values, x)


def hint_of(hint: Hint) -> Hint:
    """A number as fp64; words of a room as they are."""
    return hint if isinstance(hint, (Words, torch.Tensor)) else real(hint)


def topk(
    x: torch.Tensor, k: int, indices: torch.Tensor, values: torch.Tensor, status: torch.Tensor,
    hint: Hint = 0.0,
) -> Hint:  # fmt: skip
    """Writes the k elements of largest magnitude, by ascending index. Returns the hint for the
    next call on similar data, a magnitude that candidates reach; 0: unknown.

    x: (n,) fp32, bf16 or fp16, not changed. indices: (k,) int32, written. values: (k,) fp32,
    written. status: raised if x is not finite; there may be places of such elements among the k,
    with value 0. hint: of an earlier call; it changes the time, never what is selected.
    Raises KernelError.
    """
    check_float("x", x)
    check_selection(x, k, indices, values)
    check_status(x, status)
    return room_of(x).topk(x, k, indices, values, status, hint_of(hint))


def reaching(x: torch.Tensor, least: float, status: torch.Tensor) -> Reaching:
    """All elements whose magnitude is at least `least`, which is above 0.

    x: (n,) fp32, bf16 or fp16. Reads x twice where there are more than the thread met so far.
    status: raised if x is not finite; such elements are not among them.
    Memory: 10 bytes per element found and thread, kept. Raises KernelError.
    """
    check_float("x", x)
    check_status(x, status)
    if not (by := finite_number("least", least)) > 0.0:
        raise KernelError(f"least must be above 0 in float32, not {least}; pass a magnitude")
    return room_of(x).reaching(x, by, status)

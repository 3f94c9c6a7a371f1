"""Exact top-k by magnitude.

Order: larger magnitude first, ties to the lower index; zeros of both signs tie; inf and NaN count
as zero.
Source: the top-k of Deep Gradient Compression (Lin et al., ICLR 2018), here exact and in one pass:
the candidates are the elements above a threshold carried over from the last step, and the k
largest of them are the k largest of all.
"""

from collections.abc import Sequence

import torch

from gradwire.errors import KernelError
from gradwire.kernels.known import Known
from gradwire.kernels.rooms import room_of
from gradwire.kernels.segments import Reach
from gradwire.kernels.status import check_status, told_to
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

    x: (n,) fp32, bf16 or fp16. Reads x twice on a device, and where there are more than the thread
    met so far. A device is waited for.
    status: raised if x is not finite; such elements are not among them.
    Memory: 10 bytes per element found and thread, kept. Raises KernelError.
    """
    check_float("x", x)
    check_status(x, status)
    (found,) = reach([Reach(x, least)], status)
    return found


def reach(
    segments: Sequence[Reach], status: torch.Tensor, known: Known | None = None
) -> list[Reaching]:
    """`reaching` of each. On a device two passes, and between them the one read of what is found,
    for all. known: nothing is said to it. Raises KernelError."""
    room, checked = told_to(status), list[Reach]()
    for x, least in segments:
        check_float("x", x)
        check_same_device(status, x=x)
        if not (by := finite_number("least", least)) > 0.0:
            raise KernelError(f"least must be above 0 in float32, not {least}; pass a magnitude")
        checked.append(Reach(x, by))
    return room.reach(checked, status)

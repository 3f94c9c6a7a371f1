"""Exact top-k by magnitude.

Order: larger magnitude first, ties go to the lower index; 0 and -0 tie; inf and NaN count as zero.
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
    """Returns the number of selections since the process started whose hint was too high, so that
    they read the data again."""
    return room_of().fallbacks()


def check_selection(x: torch.Tensor, k: int, indices: torch.Tensor, values: torch.Tensor) -> None:
    """Raises KernelError unless k elements of x can be written to indices and values; x has been
    checked."""
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
    """Returns a number as a float, and a room's own hint unchanged."""
    return hint if isinstance(hint, (Words, torch.Tensor)) else real(hint)


def topk(
    x: torch.Tensor, k: int, indices: torch.Tensor, values: torch.Tensor, status: torch.Tensor,
    hint: Hint = 0.0,
) -> Hint:  # fmt: skip
    """Writes the k elements of largest magnitude, by ascending index. Returns the hint for the
    next call on similar data: the magnitude that candidates must reach; 0: unknown.

    x: (n,) fp32, bf16 or fp16, not changed. indices: (k,) int32, written. values: (k,) fp32,
    written. status: raised if x is not finite; such elements may be among the k, with value 0.
    hint: what an earlier call returned; it changes the time, never what is selected.
    Raises KernelError.
    """
    check_float("x", x)
    check_selection(x, k, indices, values)
    check_status(x, status)
    return room_of(x).topk(x, k, indices, values, status, hint_of(hint))


def reaching(x: torch.Tensor, least: float, status: torch.Tensor) -> Reaching:
    """Returns all elements whose magnitude is at least `least`, which is above 0.

    x: (n,) fp32, bf16 or fp16. It is read twice on a device, and on the CPU if more elements are
    found than this thread's buffer holds. The host waits for a device.
    status: raised if x is not finite; such elements are left out.
    Memory: 10 bytes per element found and thread, kept. Raises KernelError.
    """
    check_float("x", x)
    check_status(x, status)
    (found,) = reach([Reach(x, least)], status)
    return found


def reach(
    segments: Sequence[Reach], status: torch.Tensor, known: Known | None = None
) -> list[Reaching]:
    """Returns `reaching` of each segment. On a device it makes two passes, and between them the
    host reads all counts at once, for each dtype. known: not used. Raises KernelError."""
    room, checked = told_to(status), list[Reach]()
    for x, least in segments:
        check_float("x", x)
        check_same_device(status, x=x)
        if not (by := finite_number("least", least)) > 0.0:
            raise KernelError(
                f"least must be above 0 in float32, not {least}; pass a magnitude, such as 0.001"
            )
        checked.append(Reach(x, by))
    return room.reach(checked, status)

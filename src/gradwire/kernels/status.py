"""The status word: flags, on the tensors' device, that say what is wrong with their numbers.

status, (1,) int64: 0 while all is well
  ▲ raised, never cleared: NON_FINITE by code that finds inf or NaN (in a message it becomes the
  │ header's flags); DAMAGED by code that finds that what arrived cannot be used
  └─► run_unless: runs work, or not, by it

The host does not wait for the device, so nothing stalls on a GPU; code that needs the answer on
the host calls `is_raised`, once for many parameters.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from gradwire.errors import KernelError
from gradwire.kernels.rooms import exact_room_of, room_of
from gradwire.kernels.table import Room
from gradwire.kernels.tensors import check_buffer, check_float, check_memory, check_same_device

_WIDE = 1 << 63


def new_status(device: torch.device | str = "cpu") -> Tensor:
    """Returns a new status word, not raised."""
    return torch.zeros(1, dtype=torch.int64, device=device)


def check_status(x: Tensor, status: Tensor) -> None:
    """Raises KernelError unless status is a status word on the device of x."""
    if status.dtype != torch.int64 or status.shape != (1,) or status.device != x.device:
        raise KernelError(
            f"status must be torch.int64 of shape (1,) on {x.device}, not {status.dtype} of shape "
            f"{tuple(status.shape)} on {status.device}; pass the status that encode got"
        )
    check_memory("status", status)


def check_word(status: Tensor | None, *tensors: Tensor) -> None:
    """Raises KernelError unless status is None, or a status word on the device of the tensors."""
    if status is not None:
        for x in tensors:
            check_status(x, status)


def told_to(status: Tensor) -> Room:
    """Checks a status word and returns the room of its device. Raises KernelError."""
    check_status(status, status)
    return room_of(status)


def goes_on(status: Tensor) -> bool:
    """Whether sums that take this word read it on the device, so that the host need not wait for
    `add_up`."""
    return getattr(room_of(status), "GOES_ON", False)


def flag_non_finite(x: Tensor, status: Tensor) -> None:
    """Raises the word if x, (n,) fp32, bf16, fp16 or fp64, has inf or NaN. Raises KernelError."""
    check_float("x", x, double=True)
    check_status(x, status)
    exact_room_of(x).flag_non_finite(x, status)


def spoil_if(status: Tensor, x: Tensor) -> None:
    """Fills x, (n,) of a float dtype, with NaN if the word is raised. Raises KernelError."""
    check_float("x", x, double=True)
    check_status(x, status)
    room_of(x).spoil_if(status, x)


def copy_unless(status: Tensor, x: Tensor, out: Tensor) -> None:
    """Copies x to out, rounded to out's dtype, unless the word is raised. x, out: (n,) of a float
    dtype. Raises KernelError."""
    for name, tensor in (("x", x), ("out", out)):
        check_float(name, tensor, double=True)
    check_buffer("out", out, out.dtype, x.numel())
    check_same_device(x, out=out)
    check_status(x, status)
    room_of(x).copy_unless(status, x, out)


def subtract(x: Tensor, y: Tensor, out: Tensor, status: Tensor) -> None:
    """Writes out = x - y, unless the word is raised. x, out: (n,) fp32, contiguous, which may be
    the same; y: (n,) fp32, bf16 or fp16. Raises KernelError."""
    check_float("y", y)
    check_same_device(y, x=x, out=out)
    for name, tensor in (("x", x), ("out", out)):
        check_buffer(name, tensor, torch.float32, y.numel())
    check_status(y, status)
    room_of(y).subtract(x, y, out, status)


def is_raised(status: Tensor) -> bool:
    """Whether the word is raised; the host waits for the device."""
    return bool(status)


def run_unless(
    status: Tensor, work: Callable[[], None], otherwise: Callable[[], None] | None = None
) -> None:
    """Runs `work` if the word is not raised, else `otherwise`. Today the host reads the word once;
    a device might decide without it, so both should consist of kernel calls only."""
    if not is_raised(status):
        work()
    elif otherwise is not None:
        otherwise()


def stamp(words: Tensor, facts: Sequence[int]) -> None:
    """Writes facts, signed 64-bit integers, to words; the host does not wait. words: (n,) int64,
    contiguous. Raises KernelError."""
    if words.dtype != torch.int64 or words.shape != (len(facts),) or not words.is_contiguous():
        raise KernelError(
            f"words must be torch.int64 of shape ({len(facts)},), contiguous, not {words.dtype} "
            f"of shape {tuple(words.shape)}; pass those of one header"
        )
    check_memory("words", words)
    if not -_WIDE <= min(facts, default=0) <= max(facts, default=0) < _WIDE:
        raise KernelError(
            f"a header's facts must be signed numbers of 64 bits, but are {tuple(facts)}; pass a "
            "step from -2^63 to 2^63-1"
        )
    room_of(words).stamp(words, facts)


def judge(headers: Tensor, facts: Sequence[int], status: Tensor) -> None:
    """Raises the word by the flags of n headers, and by DAMAGED if one differs from these facts.

    headers: (n, 4) int64; a row is the first fact, flags, and two more facts. Raises KernelError.
    """
    if headers.dtype != torch.int64 or headers.ndim != 2 or headers.shape[1] != 4:
        raise KernelError(
            "headers must be torch.int64 of shape (n, 4), not "
            f"{headers.dtype} of shape {tuple(headers.shape)}; pass those of n messages"
        )
    if len(facts) != 3:
        raise KernelError(
            f"a header has three facts beside its flags, but {len(facts)} are given; pass those "
            "of the step"
        )
    check_memory("headers", headers)
    check_status(headers, status)
    room_of(headers).judge(headers, facts, status)


def finite_part(x: Tensor, status: Tensor | None = None) -> Tensor:
    """Returns x, or a copy with zeros for inf and NaN, which raise the status: it can be added to
    a memory and subtracted again. x: (n,) fp32, bf16 or fp16. Raises KernelError."""
    check_float("x", x)
    if status is not None:
        check_status(x, status)
    return room_of(x).finite_part(x, status)

"""The status word: whether something that was met is not finite, told where the numbers are.

    status, (1,) int64, on their device: 0 while all is well
      ▲ raised by whoever meets inf or NaN, never cleared; in a message it is the header's flags

Nobody waits for the device to be told, so on a GPU nothing stops; who must know on the host asks
`is_raised`, once for many parameters.
"""

import torch
from torch import Tensor

from gradwire.errors import KernelError
from gradwire.kernels.rooms import exact_room_of, room_of
from gradwire.kernels.table import Room
from gradwire.kernels.tensors import check_float, check_memory


def new_status(device: torch.device | str = "cpu") -> Tensor:
    """A word of its own, not raised."""
    return torch.zeros(1, dtype=torch.int64, device=device)


def check_status(x: Tensor, status: Tensor) -> None:
    """KernelError unless it is a word where x is."""
    if status.dtype != torch.int64 or status.shape != (1,) or status.device != x.device:
        raise KernelError(
            f"status must be torch.int64 of shape (1,) on {x.device}, not {status.dtype} of shape "
            f"{tuple(status.shape)} on {status.device}; pass the word that encode got"
        )
    check_memory("status", status)


def told_to(status: Tensor) -> Room:
    """The room of those whose word this is. Raises KernelError."""
    check_status(status, status)
    return room_of(status)


def flag_non_finite(x: Tensor, status: Tensor) -> None:
    """Raises the word if x, (n,) fp32, bf16, fp16 or fp64, has inf or NaN. Raises KernelError."""
    check_float("x", x, double=True)
    check_status(x, status)
    exact_room_of(x).flag_non_finite(x, status)


def spoil_if(status: Tensor, x: Tensor) -> None:
    """x, (n,) of a float dtype, becomes NaN everywhere if it is raised. Raises KernelError."""
    check_float("x", x, double=True)
    check_status(x, status)
    room_of(x).spoil_if(status, x)


def is_raised(status: Tensor) -> bool:
    """Whether it is: the host waits for the device."""
    return bool(status)


def finite_part(x: Tensor, status: Tensor | None = None) -> Tensor:
    """x, or a copy with zeros for inf and NaN, which raise the status: what may go into a memory,
    to be taken out of it again. x: (n,) fp32, bf16 or fp16. Raises KernelError."""
    check_float("x", x)
    if status is not None:
        check_status(x, status)
    return room_of(x).finite_part(x, status)

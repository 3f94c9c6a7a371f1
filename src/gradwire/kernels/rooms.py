"""The one place that decides which room does a kernel's work.

A face (kernels/casts.py and the like) checks its arguments, then calls an operation of the room
that `room_of` returns. Nothing else in the package decides whether C++ or torch runs.

    kernels/casts.py   checks ──► room_of(x) ─┬─► kernels/cpu/     addresses for the extension
                                              └─► kernels/torch/   the twins: the truth in tests

A room is a package whose functions are those of `table.Room`. To add one for another device, write
the folder and add its line to ROOMS; no face changes. The room of CUDA, kernels/cuda/ in Triton,
is imported for the first CUDA tensor. The twins take tensors of devices that have no room of their
own, those of the CPU if the extension is missing, and all with `use("twin")` or
GRADWIRE_KERNELS=twin.
"""

import functools
import importlib
import warnings

import torch

import gradwire.kernels.torch as twins
from gradwire.errors import KernelError
from gradwire.extension import TRITON, TWIN
from gradwire.kernels import cpu
from gradwire.kernels.native import chosen
from gradwire.kernels.table import Room

ROOMS: dict[str, Room] = {
    "cpu": cpu,
}
"""The room of each device type that has one of its own, and that needs no further check."""
_LEAST_CAPABILITY = (8, 0)


def room_of(*tensors: torch.Tensor | None) -> Room:
    """Returns the room for these tensors, all on one device; without tensors, that of the CPU.

    Raises KernelError for tensors of the meta device, which hold no data.
    """
    name, device, number = chosen.name or chosen.resolve(), "cpu", None
    for tensor in tensors:
        if tensor is not None and not tensor.is_cpu:
            _refuse_meta(tensor)
            device, number = tensor.device.type, tensor.device.index
            break
    if name == TWIN and (chosen.asked or device == "cpu"):
        return twins
    if name == TRITON or (device == "cuda" and device not in ROOMS):
        return _in_triton(name == TRITON, number)
    return ROOMS.get(device, twins)


def exact_room_of(x: torch.Tensor) -> Room:
    """Returns `room_of(x)`, but the twins for float64, in operations that accept it: float64 is
    never compressed, and the twins copy, sum and check it on every device."""
    room = room_of(x)
    return twins if x.dtype == torch.float64 else room


def _refuse_meta(tensor: torch.Tensor) -> None:
    if tensor.is_meta:
        raise KernelError(
            f"a kernel works on numbers, but a tensor of shape {tuple(tensor.shape)} is on the "
            "meta device, which has none; move it to a device"
        )


@functools.cache
def _in_triton(interpreted: bool, number: int | None) -> Room:
    """Returns the room for the CUDA device of this number; if Triton cannot run there, warns once
    and returns the twins. interpreted: in Triton's interpreter, on the CPU."""
    why = why_no_triton(interpreted, number)
    if not why:
        room: Room = importlib.import_module("gradwire.kernels.cuda")
        return room
    warnings.warn(
        "gradwire's CUDA kernels cannot run here, so PyTorch operations run instead, with the "
        f"same results, but slower: {why}",
        RuntimeWarning,
        stacklevel=4,
    )
    return twins


def why_no_triton(interpreted: bool = False, number: int | None = None) -> str:
    """Returns why kernels in Triton cannot run on the device of this number, by default the
    current one; "" if they can. interpreted: in Triton's interpreter, on the CPU."""
    why = "" if interpreted else _why_not(number)
    if not why:
        try:
            importlib.import_module("gradwire.kernels.cuda")
        except ImportError as error:
            why = f"Triton cannot be imported ({error}); install triton, which comes with torch"
    return why


def _why_not(number: int | None = None) -> str:
    """Returns why this device cannot run Triton's kernels; "" if it can."""
    if torch.version.hip is not None:
        return "they were never tried on ROCm"
    found = torch.cuda.get_device_capability(number)
    if found < _LEAST_CAPABILITY:
        return (
            f"they need compute capability 8.0 or more, and the device has {found[0]}.{found[1]}"
        )
    return ""

"""The one seam: which room a kernel's work is done in.

A face (kernels/casts.py and the like) checks what it is given, then calls an operation of the room
that `room_of` names. Nothing else in the package decides whether C++ or torch runs.

    kernels/casts.py   checks ──► room_of(x) ─┬─► kernels/cpu/     addresses for the extension
                                              └─► kernels/torch/   the twins: the truth in tests

A room is a package whose functions are those of `table.Room`. To add one for another device, write
the folder and add its line to ROOMS; no face changes. That of CUDA, kernels/cuda/ in Triton, is
imported for the first tensor there. Tensors of devices that have no room of their own, those of
the CPU where the extension is missing, and all that `use("twin")` or GRADWIRE_KERNELS=twin asks
for, go to the twins.
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
"""The room of each type of device that has one beside the twins', and needs nothing else."""
_LEAST_CAPABILITY = (8, 0)


def room_of(*tensors: torch.Tensor | None) -> Room:
    """Where work on these tensors, which are on one device, is done; of no tensors, on the CPU.

    KernelError for tensors of the meta device, which hold nothing.
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
    """`room_of` for operations that take float64, too: that is never compressed, it is copied,
    summed and looked at by the twins, everywhere."""
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
    """The room of tensors of the CUDA device of this number; the twins, after one warning, where
    it cannot be. interpreted: on processors."""
    why = why_no_triton(interpreted, number)
    if not why:
        room: Room = importlib.import_module("gradwire.kernels.cuda")
        return room
    warnings.warn(
        f"gradwire's CUDA kernels do not run here, and torch's operations take their place, with "
        f"the same results, slower: {why}",
        RuntimeWarning,
        stacklevel=4,
    )
    return twins


def why_no_triton(interpreted: bool = False, number: int | None = None) -> str:
    """Why kernels in Triton cannot run on the device of this number, by default the current one;
    "" where they can. interpreted: on processors."""
    why = "" if interpreted else _why_not(number)
    if not why:
        try:
            importlib.import_module("gradwire.kernels.cuda")
        except ImportError as error:
            why = f"Triton cannot be imported ({error}); install triton, which comes with torch"
    return why


def _why_not(number: int | None = None) -> str:
    """Why Triton's kernels would not run on the device of this number, if so."""
    if torch.version.hip is not None:
        return "they were never tried on ROCm"
    found = torch.cuda.get_device_capability(number)
    if found < _LEAST_CAPABILITY:
        return (
            f"they need compute capability 8.0 or more, and the device has {found[0]}.{found[1]}"
        )
    return ""

"""Checks of tensors before their addresses are passed: the extension itself checks nothing."""

import math
import struct

import torch

from gradwire.errors import KernelError

INDEX_LIMIT = 2**31 - 1
_STREAM_BYTES = 4 << 20
CODES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}


def check_index_range(n: int) -> None:
    """KernelError when n elements cannot be indexed in 32 bits, signed."""
    if n > INDEX_LIMIT:
        raise KernelError(
            f"a parameter has at most 2^31-1 = {INDEX_LIMIT} elements, this one has {n}; "
            "split it or exclude it from compression"
        )


def check_float(name: str, tensor: torch.Tensor, *, double: bool = False) -> None:
    """KernelError unless the tensor is 1-D and of a dtype that the kernels read. double: or
    float64."""
    if tensor.dtype not in CODES and not (double and tensor.dtype == torch.float64):
        raise KernelError(
            f"{name} must be float32, bfloat16 or float16, not {tensor.dtype}; convert it first"
        )
    if tensor.dim() != 1:
        raise KernelError(
            f"{name} must have one dimension, not shape {tuple(tensor.shape)}; "
            "pass tensor.view(-1)"
        )
    check_index_range(tensor.numel())


def are_doubles(*tensors: torch.Tensor) -> bool:
    """Whether all are float64, which is never compressed: it is copied, summed and looked at by
    the twins, everywhere."""
    return all(x.dtype == torch.float64 for x in tensors)


def check_same_device(first: torch.Tensor, **others: torch.Tensor | None) -> None:
    """KernelError unless all tensors are where the first is."""
    for name, tensor in others.items():
        if tensor is not None and tensor.device != first.device:
            raise KernelError(
                f"all tensors of a kernel must be on one device, but {name} is on {tensor.device} "
                f"and the first on {first.device}; move it there"
            )


def check_buffer(name: str, tensor: torch.Tensor, dtype: torch.dtype, size: int) -> None:
    """KernelError unless the tensor can be written in place: dtype, shape (size,), contiguous."""
    if tensor.dtype != dtype:
        raise KernelError(f"{name} must be {dtype}, not {tensor.dtype}; allocate it so")
    if tuple(tensor.shape) != (size,):
        raise KernelError(
            f"{name} must have shape ({size},), not {tuple(tensor.shape)}; allocate it so"
        )
    check_contiguous(name, tensor)


def check_contiguous(name: str, tensor: torch.Tensor) -> None:
    """KernelError unless the tensor is one run of memory."""
    if not tensor.is_contiguous():
        raise KernelError(
            f"{name} is written in place and must be contiguous, "
            f"but has stride {tensor.stride()}; pass a contiguous tensor"
        )


def goes_around(target: torch.Tensor) -> bool:
    """Whether it is too large for the cache, and is written around it."""
    return target.numel() * target.element_size() >= _STREAM_BYTES


def pointer(tensor: torch.Tensor | None) -> int:
    """Address of the first element; 0 for None."""
    return 0 if tensor is None else tensor.data_ptr()


def finite_number(name: str, value: float) -> float:
    """The value as fp32 rounds it; KernelError unless that is finite."""
    try:
        rounded: float = struct.unpack("f", struct.pack("f", value))[0]
        if math.isfinite(rounded):
            return rounded
    except OverflowError:
        pass
    raise KernelError(f"{name} must be finite in float32, not {value}; pass another value")

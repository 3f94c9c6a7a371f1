"""Checks of tensors and numbers before kernels receive them: the extension checks nothing."""

import math
import struct
from collections.abc import Callable, Sequence
from functools import lru_cache, reduce
from operator import attrgetter, or_
from typing import Any, TypeVar

import torch

from gradwire.errors import GradwireError, KernelError

Segment = TypeVar("Segment", bound="tuple[Any, ...]")

INDEX_LIMIT = 2**31 - 1
STREAM_BYTES = 4 << 20
"""Targets of this size in bytes or more are written around the cache (non-temporal stores)."""
_LOW = 1 << 40
"""Operating systems rarely give memory below this address: there may be a view of freed storage,
whose address is its offset."""
CODES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}


def check_index_range(n: int) -> None:
    """Raises KernelError if n elements cannot be indexed by signed 32-bit numbers."""
    if n > INDEX_LIMIT:
        raise KernelError(
            f"a parameter must have at most 2^31-1 = {INDEX_LIMIT} elements, but this one has "
            f"{n}; split it or exclude it from compression"
        )


def check_count(name: str, count: int) -> None:
    """Raises KernelError if the count is negative."""
    if count < 0:
        raise KernelError(f"{name} must not be negative, but is {count}; pass a count")


def check_domain(n: int) -> None:
    """Raises KernelError unless n can be the number of elements."""
    check_count("n", n)
    check_index_range(n)


def check_memory(name: str, tensor: torch.Tensor) -> None:
    """Raises KernelError unless the tensor has its elements in memory, aligned to their size."""
    try:
        address, size = tensor.data_ptr(), tensor.element_size()
        # A view of freed storage has its offset for an address.
        is_there = address not in (0, tensor.storage_offset() * size)
        is_empty = tensor.numel() == 0 and not tensor.is_meta
        if (is_there or is_empty) and address % size == 0 and not tensor.is_neg():
            return
        if tensor.is_neg():
            raise KernelError(
                f"{name} must have its elements in memory as they are, but is a view that negates "
                "those in memory; pass tensor.resolve_neg()"
            )
    except RuntimeError:  # a sparse tensor has no data_ptr
        pass
    raise KernelError(
        f"{name} must be dense, with its elements in memory and aligned to their size, but is a "
        f"{tensor.layout} tensor of {tensor.dtype} on {tensor.device} without storage, or not "
        "aligned; pass a dense tensor whose storage was not freed"
    )


def check_memory_of_all(name: str, tensors: Sequence[torch.Tensor]) -> None:
    """Runs `check_memory` for each tensor; fast if all pass."""
    try:
        places = list(map(torch.Tensor.data_ptr, tensors))
    except RuntimeError:  # a sparse tensor has no data_ptr
        places = [0]
    is_low = min(places, default=_LOW) < _LOW
    # No element that kernels read is larger than 4 bytes.
    if is_low or reduce(or_, places, 0) % 4 or any(map(torch.Tensor.is_neg, tensors)):
        for tensor in tensors:
            check_memory(name, tensor)


def check_float(name: str, tensor: torch.Tensor, *, double: bool = False) -> None:
    """Raises KernelError unless the tensor is 1-D and of a dtype that the kernels read. double:
    float64 is also accepted."""
    check_memory(name, tensor)
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


def facts_of(x: torch.Tensor) -> tuple[object, ...]:
    """Returns all that checks read of a tensor, except the address of its memory."""
    return x.shape, x.dtype, x.device, x.is_contiguous()


def facts_of_all(tensors: Sequence[torch.Tensor]) -> list[list[object]]:
    """Returns `facts_of` all tensors, as one list per fact, each of which one `map` makes."""
    return [list(map(fact, tensors)) for fact in _FACTS]


_FACTS: tuple[Callable[[torch.Tensor], object], ...] = (
    attrgetter("shape"), attrgetter("dtype"), attrgetter("device"), torch.Tensor.is_contiguous,
)  # fmt: skip


def are_doubles(*tensors: torch.Tensor) -> bool:
    """Whether all tensors are float64, which is never compressed: the twins copy, sum and check
    it, on every device."""
    return all(x.dtype == torch.float64 for x in tensors)


def doubles_apart(segments: Sequence[Segment]) -> list[list[Segment]]:
    """Splits segments by whether their first tensor is float64, and drops an empty part."""
    parts: tuple[list[Segment], list[Segment]] = [], []
    for one in segments:
        parts[one[0].dtype == torch.float64].append(one)
    return [part for part in parts if part]


def check_places(
    name: str,
    places: torch.Tensor,
    next_step: str = "convert them first",
    error: type[GradwireError] = KernelError,
) -> None:
    """Raises `error` unless places are int32 in one dimension; the entries are not checked."""
    if places.dtype != torch.int32 or places.dim() != 1:
        raise error(
            f"{name} must be int32 with one dimension, not {places.dtype} of shape "
            f"{tuple(places.shape)}; {next_step}"
        )
    check_memory(name, places)


def check_same_device(first: torch.Tensor, **others: torch.Tensor | None) -> None:
    """Raises KernelError unless all tensors are on the device of the first."""
    device = first.device
    for name, tensor in others.items():
        if tensor is not None and tensor.device != device:
            raise KernelError(
                f"all tensors of a kernel must be on one device, but {name} is on {tensor.device} "
                f"and the first on {device}; move it there"
            )


def check_buffer(name: str, tensor: torch.Tensor, dtype: torch.dtype, size: int) -> None:
    """Raises KernelError unless the tensor can be written in place: dtype, (size,), contiguous."""
    if tensor.dtype != dtype:
        raise KernelError(f"{name} must be {dtype}, not {tensor.dtype}; allocate it so")
    if tensor.shape != (size,):
        raise KernelError(
            f"{name} must have shape ({size},), not {tuple(tensor.shape)}; allocate it so"
        )
    check_memory(name, tensor)
    check_contiguous(name, tensor)


def check_contiguous(name: str, tensor: torch.Tensor) -> None:
    """Raises KernelError unless the tensor is contiguous."""
    if not tensor.is_contiguous():
        raise KernelError(
            f"{name} is written in place and must be contiguous, "
            f"but has stride {tensor.stride()}; pass a contiguous tensor"
        )


def check_apart(name: str, tensor: torch.Tensor, *others: torch.Tensor | None) -> None:
    """Raises KernelError if the tensor shares memory with another one: places that change while
    they are read could point outside of the tensor."""
    begin, end = _span(tensor)
    for other in others:
        if other is None or (address := other.data_ptr()) >= end:
            continue
        shared = min(end, _span(other)[1]) - max(begin, address)
        if shared > 0:
            raise KernelError(
                f"{name} must not share memory with other tensors of the call, but shares "
                f"{shared} bytes; pass a tensor of its own"
            )


def _span(tensor: torch.Tensor) -> tuple[int, int]:
    """Returns where the tensor's memory begins and ends: strided, it spans more than its elements;
    expanded, less."""
    begin, bytes = tensor.data_ptr(), tensor.nbytes
    if bytes and not tensor.is_contiguous():
        last = sum((n - 1) * stride for n, stride in zip(tensor.shape, tensor.stride()))
        bytes = (last + 1) * tensor.element_size()
    return begin, begin + bytes


def goes_around(target: torch.Tensor) -> bool:
    """Whether the target is too large for the cache, and is written around it."""
    return target.numel() * target.element_size() >= STREAM_BYTES


def pointer(tensor: torch.Tensor | None) -> int:
    """Returns the address of the first element; 0 for None."""
    return 0 if tensor is None else tensor.data_ptr()


def real(value: float) -> float:
    """Returns the value as a float; an int beyond its range becomes infinite."""
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def finite_number(name: str, value: float) -> float:
    """Returns the value rounded to fp32. Raises KernelError unless that is finite."""
    rounded = _in_fp32(value)
    if math.isfinite(rounded):
        return rounded
    raise KernelError(f"{name} must be finite in float32, not {value}; pass another value")


@lru_cache(maxsize=64)
def _in_fp32(value: float) -> float:
    """Returns the value in fp32; cached: calls have the same few numbers. A zero has no sign, as
    the cache cannot tell -0.0 from 0.0: results would depend on the numbers of earlier calls."""
    try:
        rounded: float = struct.unpack("f", struct.pack("f", value))[0]
        return rounded + 0.0
    except (OverflowError, struct.error):  # too large for fp32, or an int too large for a float
        return math.inf


def check_divisor(divisor: float) -> float:
    """Returns the divisor rounded to fp32. Raises KernelError if it is 0 or not finite."""
    by = finite_number("divisor", divisor)
    if by == 0.0:
        raise KernelError("divisor must not be 0 in float32; pass the number of contributions")
    return by


def divided(segments: Sequence[Segment]) -> Sequence[Segment]:
    """Returns the segments with their last field, a divisor, in fp32. Raises KernelError if one is
    0 or not finite."""
    divisors = [one[-1] for one in segments]
    alike = not divisors or divisors.count(divisors[0]) == len(divisors)
    if alike and all(type(by) is float and check_divisor(by) == by for by in divisors[:1]):
        return segments
    kind: Callable[..., Segment] = type(segments[0])
    return [kind(*one[:-1], check_divisor(one[-1])) for one in segments]


def quotient(total: torch.Tensor, divisor: float) -> torch.Tensor:
    """Returns total / divisor by true division: with a Python number, torch multiplies by the
    reciprocal on some devices."""
    return total / torch.tensor(divisor, dtype=total.dtype, device=total.device)

"""Checks of tensors and numbers before they are passed: the extension itself checks nothing."""

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
"""Targets of so many bytes and more are written around the cache."""
CODES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}


def check_index_range(n: int) -> None:
    """KernelError when n elements cannot be indexed in 32 bits, signed."""
    if n > INDEX_LIMIT:
        raise KernelError(
            f"a parameter has at most 2^31-1 = {INDEX_LIMIT} elements, this one has {n}; "
            "split it or exclude it from compression"
        )


def check_count(name: str, count: int) -> None:
    """KernelError for a negative one."""
    if count < 0:
        raise KernelError(f"{name} must not be negative, but is {count}; pass a count")


def check_domain(n: int) -> None:
    """KernelError unless n can be the number of elements."""
    check_count("n", n)
    check_index_range(n)


def check_memory(name: str, tensor: torch.Tensor) -> None:
    """KernelError unless elements lie in memory, where such elements may lie."""
    try:
        address = tensor.data_ptr()
        is_there = address or (tensor.numel() == 0 and not tensor.is_meta)
        if is_there and address % tensor.element_size() == 0:
            return
    except RuntimeError:  # of a sparse one
        pass
    raise KernelError(
        f"{name} must have its elements in memory, at a multiple of their size, but is a "
        f"{tensor.layout} tensor of {tensor.dtype} on {tensor.device} without, or elsewhere; pass "
        "a dense tensor whose storage was not given back"
    )


def check_memory_of_all(name: str, tensors: Sequence[torch.Tensor]) -> None:
    """`check_memory` of each."""
    try:
        places = list(map(torch.Tensor.data_ptr, tensors))
    except RuntimeError:  # of a sparse one
        places = [0]
    if 0 in places or reduce(or_, places, 0) % 4:  # no element that kernels read is larger
        for tensor in tensors:
            check_memory(name, tensor)


def check_float(name: str, tensor: torch.Tensor, *, double: bool = False) -> None:
    """KernelError unless the tensor is 1-D and of a dtype that the kernels read. double: or
    float64."""
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
    """All that checks ask of a tensor, but for where its memory is."""
    return x.shape, x.dtype, x.device, x.is_contiguous()


def facts_of_all(tensors: Sequence[torch.Tensor]) -> list[list[object]]:
    """`facts_of` each, fact by fact, each of which is a list that is made at once."""
    return [list(map(fact, tensors)) for fact in _FACTS]


_FACTS: tuple[Callable[[torch.Tensor], object], ...] = (
    attrgetter("shape"), attrgetter("dtype"), attrgetter("device"), torch.Tensor.is_contiguous,
)  # fmt: skip


def are_doubles(*tensors: torch.Tensor) -> bool:
    """Whether all are float64, which is never compressed: it is copied, summed and looked at by
    the twins, everywhere."""
    return all(x.dtype == torch.float64 for x in tensors)


def doubles_apart(segments: Sequence[Segment]) -> list[list[Segment]]:
    """Those whose first tensor is float64, and the others, as far as there are any."""
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
    """KernelError, or another, unless they are int32 in one dimension; not which they are."""
    if places.dtype != torch.int32 or places.dim() != 1:
        raise error(
            f"{name} must be int32 with one dimension, not {places.dtype} of shape "
            f"{tuple(places.shape)}; {next_step}"
        )
    check_memory(name, places)


def check_same_device(first: torch.Tensor, **others: torch.Tensor | None) -> None:
    """KernelError unless all tensors are where the first is."""
    device = first.device
    for name, tensor in others.items():
        if tensor is not None and tensor.device != device:
            raise KernelError(
                f"all tensors of a kernel must be on one device, but {name} is on {tensor.device} "
                f"and the first on {device}; move it there"
            )


def check_buffer(name: str, tensor: torch.Tensor, dtype: torch.dtype, size: int) -> None:
    """KernelError unless the tensor can be written in place: dtype, shape (size,), contiguous."""
    if tensor.dtype != dtype:
        raise KernelError(f"{name} must be {dtype}, not {tensor.dtype}; allocate it so")
    if tensor.shape != (size,):
        raise KernelError(
            f"{name} must have shape ({size},), not {tuple(tensor.shape)}; allocate it so"
        )
    check_memory(name, tensor)
    check_contiguous(name, tensor)


def check_contiguous(name: str, tensor: torch.Tensor) -> None:
    """KernelError unless the tensor is one run of memory."""
    if not tensor.is_contiguous():
        raise KernelError(
            f"{name} is written in place and must be contiguous, "
            f"but has stride {tensor.stride()}; pass a contiguous tensor"
        )


def check_apart(name: str, tensor: torch.Tensor, *others: torch.Tensor | None) -> None:
    """KernelError if it shares memory with another: places that change while they are read, or
    what they point into, would lead anywhere."""
    begin, end = _span(tensor)
    for other in others:
        if other is None or (address := other.data_ptr()) >= end:
            continue
        shared = min(end, _span(other)[1]) - max(begin, address)
        if shared > 0:
            raise KernelError(
                f"{name} must not share memory with other tensors of the call, but {shared} bytes "
                "are of both; pass one of its own"
            )


def _span(tensor: torch.Tensor) -> tuple[int, int]:
    """Where its memory begins and ends: strided, it has more than its elements; expanded, less."""
    begin, bytes = tensor.data_ptr(), tensor.nbytes
    if bytes and not tensor.is_contiguous():
        last = sum((n - 1) * stride for n, stride in zip(tensor.shape, tensor.stride()))
        bytes = (last + 1) * tensor.element_size()
    return begin, begin + bytes


def goes_around(target: torch.Tensor) -> bool:
    """Whether it is too large for the cache, and is written around it."""
    return target.numel() * target.element_size() >= STREAM_BYTES


def pointer(tensor: torch.Tensor | None) -> int:
    """Address of the first element; 0 for None."""
    return 0 if tensor is None else tensor.data_ptr()


def real(value: float) -> float:
    """The value as fp64; a whole number beyond its range is infinite."""
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def finite_number(name: str, value: float) -> float:
    """The value as fp32 rounds it; KernelError unless that is finite."""
    rounded = _in_fp32(value)
    if math.isfinite(rounded):
        return rounded
    raise KernelError(f"{name} must be finite in float32, not {value}; pass another value")


@lru_cache(maxsize=64)
def _in_fp32(value: float) -> float:
    """The same few numbers come in every call."""
    try:
        rounded: float = struct.unpack("f", struct.pack("f", value))[0]
        return rounded
    except (OverflowError, struct.error):  # of a whole number
        return math.inf


def check_divisor(divisor: float) -> float:
    """The divisor as fp32; KernelError if it is 0 or not finite."""
    by = finite_number("divisor", divisor)
    if by == 0.0:
        raise KernelError("divisor must not be 0 in float32; pass the number of contributions")
    return by


def divided(segments: Sequence[Segment]) -> Sequence[Segment]:
    """With their last part, a divisor, as fp32; KernelError if one is 0 or not finite."""
    divisors = [one[-1] for one in segments]
    alike = not divisors or divisors.count(divisors[0]) == len(divisors)
    if alike and all(type(by) is float and check_divisor(by) == by for by in divisors[:1]):
        return segments
    kind: Callable[..., Segment] = type(segments[0])
    return [kind(*one[:-1], check_divisor(one[-1])) for one in segments]


def quotient(total: torch.Tensor, divisor: float) -> torch.Tensor:
    """True division: by a plain number, torch multiplies with the reciprocal on some devices."""
    return total / torch.tensor(divisor, dtype=total.dtype, device=total.device)

"""Makes an argument wrong: types allow it, and no sane caller gives it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from harness.draws import FLOATS, Draw, Made

WHOLES = (
    *(-1, 0, 1, 2, 3, 17, -(2**31), 2**15, 2**16, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**53),
    *(2**62, 2**63 - 1, 2**63, 2**64 - 1, 2**64, 2**70, -(2**63), -(2**70)),
)
REALS = (
    *(0.0, -0.0, 1.0, -1.0, 0.5, 2.0, torch.nan, torch.inf, -torch.inf, 1e-320, 2.0**-149, 1e-300),
    *(3.4e38, 3.5e38, -1e39, 1e300, 2.0**62, 0, 1, 2**70, 10**400),
)
TEXTS = ("", " ", "int32", "TOPK", "x" * 1000, "\0", "é(1)")
DTYPES = (
    *FLOATS,
    *(torch.float64, torch.int32, torch.int64, torch.uint8, torch.int8, torch.bool),
    *(torch.complex64, torch.int16),
)
ENTRIES = (-1, 0, 1, 255, 2**31 - 1, -(2**31), 2**30, 65535)


def spoil(draw: Draw, given: dict[str, object]) -> None:
    """Makes one of the arguments wrong, in place; now and then two, or two that share memory."""
    if not given:
        return
    if draw.chance(0.12):
        _alias(draw, given)
    for _ in range(2 if draw.chance(0.15) else 1):
        name = draw.one(list(given))
        given[name] = spoiled(draw, given[name])


def spoiled(draw: Draw, value: object) -> object:
    """Returns another value of the same type."""
    match value:
        case bool():
            return not value
        case int():
            return draw.one(WHOLES) if draw.chance(0.7) else value + draw.whole(-2, 2)
        case float():
            return draw.one(REALS)
        case str():
            return draw.one(TEXTS)
        case Tensor():
            return draw.one(_TENSORS)(draw, value) if is_whole(value) else value
        case np.ndarray():
            return draw.one(_ARRAYS)(draw, value)
        case torch.dtype():
            return draw.one(DTYPES)
        case Made():
            own = dict(value.given)
            spoil(draw, own)
            return replace(value, given=own)
        case list() | tuple():
            return _list(draw, value)
        case dict():
            own = dict(value)
            if own:
                name = draw.one(list(own))
                own[name] = spoiled(draw, own[name])
            return own
    return value


def _list(draw: Draw, value: list[object] | tuple[object, ...]) -> object:
    own, kind = list(value), draw.dice.random()
    if own and (kind < 0.6 or isinstance(value, tuple)):
        at = draw.whole(0, len(own) - 1)
        own[at] = spoiled(draw, own[at])
    elif kind < 0.75:
        own = own[: draw.whole(0, len(own))]
    elif kind < 0.85:
        own = own + own
    elif kind < 0.95:
        draw.dice.shuffle(own)
    else:
        own = []
    if isinstance(value, tuple):
        return type(value)(*own) if hasattr(value, "_fields") else tuple(own)
    return own


def is_whole(x: Tensor) -> bool:
    """Whether torch itself can still read the tensor."""
    is_there = x.layout is torch.strided and not x.is_meta
    return is_there and (x.data_ptr() != 0 or not x.numel())


# -- tensors ----------------------------------------------------------------------------------


def _tensors(value: object) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, list | tuple):
        return [x for one in value for x in _tensors(one)]
    return []


def _alias(draw: Draw, given: dict[str, object]) -> None:
    """Makes one tensor a part of another's memory."""
    held = [t for value in given.values() for t in _tensors(value)]
    names = [name for name, value in given.items() if isinstance(value, Tensor)]
    if not names or len(held) < 2:
        return
    name, other = draw.one(names), draw.one(held)
    own = given[name]
    assert isinstance(own, Tensor)
    if is_whole(other) and other.is_contiguous() and other.dtype != torch.bool and own.dim() == 1:
        room = other.as_strided((other.numel(),), (1,)).view(torch.uint8)
        size, need = own.element_size(), own.numel() * own.element_size()
        if room.numel() >= need:
            begin = draw.whole(0, (room.numel() - need) // size) * size
            if (room.storage_offset() + begin) % size == 0:
                given[name] = room[begin : begin + need].view(own.dtype)
                draw.aliased = True


def _entry(draw: Draw, x: Tensor) -> Tensor:
    if not x.numel() or x.dtype == torch.bool or x.is_complex() or not x.is_contiguous():
        return x
    x = x.clone()
    at = draw.whole(0, x.numel() - 1)
    if x.is_floating_point():
        x.view(-1)[at] = draw.one((torch.nan, torch.inf, -torch.inf, 0.0, 3e38, -1.0))
    elif x.dtype == torch.uint8:
        x.view(-1)[at] ^= 1 << draw.whole(0, 7)
    else:
        other = int(x.view(-1)[draw.whole(0, x.numel() - 1)])
        near = (other, x.numel(), x.numel() - 1, other + 1, int(x.max()) * 16 % 2**31)
        entry = draw.one((*ENTRIES, *near))
        limits = torch.iinfo(x.dtype)
        x.view(-1)[at] = entry if limits.min <= entry <= limits.max else 0
    return x


def _dtype(draw: Draw, x: Tensor) -> Tensor:
    return x.to(draw.one(DTYPES))


def _length(draw: Draw, x: Tensor) -> Tensor:
    n = x.shape[0] if x.dim() else 1
    size = draw.one((0, 1, max(n - 1, 0), n + 1, 2 * n, n + 16))
    return x.new_zeros(size, *x.shape[1:]) if draw.chance(0.5) else x[:size] if x.dim() else x


def _shape(draw: Draw, x: Tensor) -> Tensor:
    return draw.one((
        x.unsqueeze(0), x.unsqueeze(-1), x.new_zeros(()), x.new_zeros(2, 0), x.new_zeros(1, 2, 3),
    ))  # fmt: skip


def _stride(draw: Draw, x: Tensor) -> Tensor:
    if x.dim() == 2:
        return x.t().contiguous().t()
    wide = x.new_zeros(2 * x.numel() + 1)
    own = wide[1::2] if draw.chance(0.5) else wide[: 2 * x.numel() : 2]
    return own.copy_(x.reshape(-1)[: own.numel()])


def _expanded(draw: Draw, x: Tensor) -> Tensor:
    one = x.new_zeros(1) if draw.chance(0.7) or not x.dim() else x[:1]
    return one.expand(x.numel()) if one.dim() == 1 else one.expand_as(x)


def _apart(draw: Draw, x: Tensor) -> Tensor:
    """A copy that does not begin at a cache line."""
    off = draw.whole(1, 15)
    return x.new_empty(x.numel() + off)[off:].copy_(x.reshape(-1)).view(x.shape)


def _unaligned(draw: Draw, x: Tensor) -> Tensor:
    """A copy at an address that is no multiple of an element's size."""
    if not x.numel():
        return x
    size = x.numel() * x.element_size()
    memory = bytearray(size + 1)
    own = torch.frombuffer(memory, dtype=x.dtype, offset=1, count=x.numel())
    return own.copy_(x.reshape(-1)).view(x.shape)


def _grad(draw: Draw, x: Tensor) -> Tensor:
    return x.detach().clone().requires_grad_() if x.is_floating_point() else x


def _sparse(draw: Draw, x: Tensor) -> Tensor:
    return x.to_sparse()


def _meta(draw: Draw, x: Tensor) -> Tensor:
    return x.to("meta")


def _freed(draw: Draw, x: Tensor) -> Tensor:
    """A tensor whose memory is freed, as sharding does between steps."""
    x = x.detach().clone(memory_format=torch.contiguous_format)
    x.untyped_storage().resize_(0)
    return x


_TENSORS: tuple[Callable[[Draw, Tensor], Tensor], ...] = (
    *(_entry, _entry, _entry, _entry, _dtype, _dtype, _length, _length, _length, _shape),
    *(_stride, _stride, _expanded, _apart, _unaligned, _grad, _sparse, _meta, _freed),
)


# -- arrays -----------------------------------------------------------------------------------


def _array_entry(draw: Draw, x: np.ndarray) -> np.ndarray:
    if not x.size or x.dtype.kind not in "iuf":
        return x
    x = x.copy()
    wide = (-1, 0, 1, x.size, 2**31 - 1, 2**31, 2**62, 2**63 - 1, -(2**63), -(2**31))
    entry = draw.one(REALS[:16] if x.dtype.kind == "f" else wide)
    if x.dtype.kind == "f" or np.iinfo(x.dtype).min <= entry <= np.iinfo(x.dtype).max:
        x.reshape(-1)[draw.whole(0, x.size - 1)] = entry
    return x


def _array_length(draw: Draw, x: np.ndarray) -> np.ndarray:
    n = len(x) if x.ndim else 0
    return np.resize(x, draw.one((0, 1, max(n - 1, 0), n + 1, 2 * n))) if x.size else x


def _array_dtype(draw: Draw, x: np.ndarray) -> np.ndarray:
    with np.errstate(all="ignore"):
        return x.astype(draw.one((np.int32, np.int64, np.float64, np.uint64, np.bool_, np.int8)))


def _array_shape(draw: Draw, x: np.ndarray) -> np.ndarray:
    return x[:, None] if x.ndim == 1 else x.reshape(-1)


def _array_stride(draw: Draw, x: np.ndarray) -> np.ndarray:
    return np.repeat(x, 2)[::2] if x.ndim == 1 else x


_ARRAYS: tuple[Callable[[Draw, np.ndarray], np.ndarray], ...] = (
    *(_array_entry, _array_entry, _array_entry, _array_length, _array_dtype, _array_shape),
    _array_stride,
)

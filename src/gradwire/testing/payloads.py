"""Payloads of one tensor, and their bytes, for the laws."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from gradwire.kernels import new_status
from gradwire.strategy import Compressor, Key

KEY = Key(seed=0, step=0, parameter="w")


def dtype_name(x: Tensor) -> str:
    """Returns the dtype's name as claims write it."""
    return str(x.dtype).removeprefix("torch.")


def bits(x: Tensor) -> list[int]:
    """Returns the bytes, to compare bit for bit: -0.0 differs from 0.0, and NaNs may differ."""
    return x.detach().contiguous().view(-1).view(torch.uint8).tolist()


def same(one: Tensor, other: Tensor, what: str) -> None:
    """Raise unless both are equal bit for bit."""
    assert one.dtype == other.dtype, f"{what}: {one.dtype} is not {other.dtype}"
    assert bits(one) == bits(other), f"{what}: {one} is not {other}"


def sections_for(compressor: Compressor, n: int, dtype: str, fill: int = 0xA5) -> list[Tensor]:
    """Returns the sections that are claimed, filled with garbage."""
    return [
        torch.full((count * getattr(torch, name).itemsize,), fill, dtype=torch.uint8).view(
            getattr(torch, name)
        )
        for name, count in compressor.claims(n, dtype).sections
    ]


def encoded(compressor: Compressor, x: Tensor, key: Key = KEY, fill: int = 0xA5) -> list[Tensor]:
    """Returns the payload of x, in sections that were filled with garbage."""
    sections = sections_for(compressor, len(x), dtype_name(x), fill)
    compressor.encode(x, sections, key, new_status())
    return sections


def decoded(compressor: Compressor, sections: Sequence[Tensor], n: int, key: Key = KEY) -> Tensor:
    """Returns a decoded payload, in fp32."""
    x = torch.full((n,), math.nan, dtype=torch.float32)
    compressor.decode(sections, x, key)
    return x


def through(compressor: Compressor, x: Tensor, key: Key = KEY) -> Tensor:
    """Returns x after encode and decode, in fp32."""
    return decoded(compressor, encoded(compressor, x, key), len(x), key)

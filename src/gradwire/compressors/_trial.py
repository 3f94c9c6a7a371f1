"""A quick test of another package's compressor, before anything relies on it."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor

from gradwire.kernels import is_raised, new_status
from gradwire.strategy import Claims, Compressor, Key

_N = 96
_KEY = Key(seed=0, step=0, parameter="w")


def trial(compressor: Compressor) -> str | None:
    """Try it on one small tensor. Returns what is wrong; None if nothing is. The laws of
    `gradwire.testing` check more."""
    x = torch.linspace(-1.0, 1.0, _N, dtype=torch.float32, device="cpu").pow(3)
    claims: Any = compressor.claims(_N)
    if not isinstance(claims, Claims):
        return f"claims({_N}) must return Claims; it returned {claims!r}"
    sections = _sections(claims)
    if isinstance(sections, str):
        return sections
    if wrong := _encoding(compressor, x, sections):
        return wrong
    y, mean = torch.full((2, _N), torch.nan, dtype=torch.float32, device="cpu").unbind()
    compressor.decode(sections, y, _KEY)
    if not bool(y.isfinite().all()):
        return "decode must overwrite all elements with finite ones; it did not"
    compressor.accumulate([sections, sections], mean, 2.0, _KEY)
    if not torch.allclose(mean, y, rtol=1e-5, atol=1e-7):
        return (
            "accumulate of two equal payloads, divided by 2, must equal what decode writes; it "
            "does not"
        )
    if wrong := _unlike(compressor, claims, sections, y):
        return wrong
    lost, whole = float((x - y).square().sum()), float(x.square().sum())
    if claims.lossless and lost:
        return "it claims to be lossless, but what arrives is not what was sent"
    if claims.contraction is not None and lost > (1 - claims.contraction) * whole * (1 + 1e-6):
        return (
            f"it claims a contraction of {claims.contraction:.3g}, which allows it to lose at "
            f"most {(1 - claims.contraction) * whole:.3g} of |x|²; it lost {lost:.3g}"
        )
    return None


def _unlike(
    compressor: Compressor, claims: Claims, sections: list[Tensor], y: Tensor
) -> str | None:  # fmt: skip
    """Returns which claim of another way to y, what `decode` writes, is wrong; None if none is."""
    if claims.entries:
        places, values = compressor.read(sections, _N)
        found = torch.zeros_like(y).index_put_((places.long(),), values.float())
        ascend = places.dtype == torch.int32 and bool((places.diff() > 0).all())
        if not ascend or not torch.equal(found, y):
            return (
                "with entries, read must return places, int32 and ascending, and the values that "
                f"decode writes there; it returned {places} and {values}"
            )
    if claims.sums:
        twice = torch.full_like(y, torch.nan)
        compressor.decode([section + section for section in sections], twice, _KEY)
        if not torch.allclose(twice, 2 * y, rtol=1e-2, atol=1e-7):
            return "with sums, two payloads that are added must decode to the sum; they do not"
    return None


def _encoding(compressor: Compressor, x: Tensor, sections: list[Tensor]) -> str | None:
    """Returns what is wrong with `encode`; None if nothing is, and sections hold x then."""
    try:
        inspect.signature(compressor.encode).bind(x, sections, _KEY, new_status())
    except TypeError:
        return (
            "encode must take x, sections, key and status, and raise the status, on the device, "
            "if an element is not finite (`status |= ~x.isfinite().all()`, see docs/extend.md); "
            "in earlier versions it returned whether all was finite"
        )
    bad, given, raised, quiet = x.clone(), x.clone(), new_status(), new_status()
    bad[1] = torch.nan
    compressor.encode(bad, sections, _KEY, raised)
    compressor.encode(x, sections, _KEY, quiet)
    if not torch.equal(x, given):
        return "encode must not change its input; it did"
    if is_raised(quiet) or not is_raised(raised):
        return "encode must raise the status for inf and NaN, and for nothing else; it did not"
    return None


def _sections(claims: Claims) -> list[Tensor] | str:
    """Returns buffers for a payload, or what is wrong with the claim."""
    room = []
    for part in claims.sections:
        name, count = part
        dtype = getattr(torch, name, None)
        if not isinstance(dtype, torch.dtype) or type(count) is not int or count < 0:
            return (
                "each section that it claims must be a pair, the name of a dtype and a count; got "
                f"{part!r}"
            )
        room.append(torch.zeros(count, dtype=dtype))
    return room

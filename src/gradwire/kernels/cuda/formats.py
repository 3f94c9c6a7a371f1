"""Codes of blocks on the device, for those formats of kernels/formats.py that have a scale for
each block.

Part p of a block lies in the same bits of every byte: a tile of R whole blocks is processed piece
by piece, each some columns of one part, (R, C), so that a thread has all codes of its bytes.
"""

from __future__ import annotations

from typing import NamedTuple

import triton
import triton.language as tl

from gradwire.kernels.cuda.device import INFINITE, is_finite, random_bits
from gradwire.kernels.formats import (
    E4M3,
    E5M2,
    INT8,
    LEAST_SCALED,
    LEVELS2,
    LEVELS4,
    LEVELS8,
    LLOYD1,
    LLOYD2,
    THRESHOLD,
    Format,
)
from gradwire.kernels.formats import INNER as NEAR
from gradwire.kernels.formats import OUTER as FAR

NEAREST, LEVELS, SIGNS, QUARTERS, FLOAT3, FLOAT2 = (tl.constexpr(i) for i in range(6))
"""Ways to find a code: the nearest whole number; one of two, by dice; x < 0; also by a threshold;
the nearest 8-bit float, with so many bits of mantissa."""
_LEAST, _LIMIT = tl.constexpr(LEAST_SCALED), tl.constexpr(THRESHOLD)
_MOST = tl.constexpr(float.fromhex("0x1.fffffep127"))
INNER, OUTER = tl.constexpr(NEAR), tl.constexpr(FAR)


LANES = tl.constexpr(64)
"""The number of lanes that sum magnitudes side by side, one row of a block after the other."""


class Written(NamedTuple):
    """A format as compile-time constants of the kernels."""

    way: int
    bits: int
    steps: int
    block: int

    @property
    def columns(self) -> int:
        """The columns of a piece: a part of a block, or the number of lanes of its sum."""
        means = self.way in (SIGNS.value, QUARTERS.value)
        return LANES.value if means else self.block * self.bits // 8


_WAYS = {
    INT8: NEAREST, LEVELS2: LEVELS, LEVELS4: LEVELS, LEVELS8: LEVELS, LLOYD1: SIGNS,
    LLOYD2: QUARTERS, E4M3: FLOAT3, E5M2: FLOAT2,
}  # fmt: skip


def written(form: Format) -> Written | None:
    """Returns the constants of a format; None if it has no kernels here."""
    way = _WAYS.get(form)
    return None if way is None else Written(way.value, form.bits, int(form.steps), form.block)


@triton.jit
def tree(x, R: tl.constexpr):
    """Returns the sums of rows of (R, 64), taken pairwise by halves: (R, 1)."""
    x = tl.sum(tl.reshape(x, [R, 2, 32]), 1)
    x = tl.sum(tl.reshape(x, [R, 2, 16]), 1)
    x = tl.sum(tl.reshape(x, [R, 2, 8]), 1)
    x = tl.sum(tl.reshape(x, [R, 2, 4]), 1)
    x = tl.sum(tl.reshape(x, [R, 2, 2]), 1)
    return tl.reshape(tl.sum(tl.reshape(x, [R, 2, 1]), 1), [R, 1])


@triton.jit
def gathered(top, x, way: tl.constexpr):
    """Returns a block's magnitudes gathered with one more piece: the largest of each column; or,
    for a mean, each lane's sum, scaled by 2^-9, so that no sum overflows."""
    if (way == SIGNS) | (way == QUARTERS):
        top += tl.abs(x) * 0.001953125
    else:
        top = tl.maximum(top, tl.abs(x))
    return top


@triton.jit
def scale_of(top, m, most, way: tl.constexpr, steps: tl.constexpr, R: tl.constexpr):
    """Returns the number to multiply x by, or to compare it with; the scale; and the largest or
    mean magnitude: (R, 1) each.

    top: what `gathered` returned, (R, C). m: how many elements each block has.
    """
    if (way == SIGNS) | (way == QUARTERS):
        whole = tl.div_rn(tl.zeros([R, 1], tl.float32) + 512.0, tl.zeros([R, 1], tl.float32) + m)
        total = tree(top, R)
        top = tl.where(is_finite(total), tl.minimum(total * whole, _MOST), total)
        step = top
        by = top
    else:
        top = tl.max(top, 1, keep_dims=True)
        one: tl.constexpr = 16777216.0 if way == LEVELS else 1.0
        step = tl.div_rn(top, tl.zeros_like(top) + steps)
        by = tl.div_rn(tl.zeros_like(top) + steps * one, top)
    scaled = top >= _LEAST
    return tl.where(scaled, by, 0.0), tl.where(scaled, tl.minimum(step, most), 0.0), top


@triton.jit
def to_float8(x, way: tl.constexpr):
    """Returns the nearest 8-bit float, half to even, of x within its range. Subnormals have equal
    steps: they are rounded by adding a number whose own steps have that size."""
    bits: tl.constexpr = 3 if way == FLOAT3 else 2
    bias: tl.constexpr = 7 if way == FLOAT3 else 15
    b = x.to(tl.int32, bitcast=True)
    size = b & 0x7FFFFFFF
    odd = (size >> (23 - bits)) & 1
    normal = (size - ((127 - bias) << 23) + ((1 << (22 - bits)) - 1) + odd) >> (23 - bits)
    much: tl.constexpr = (151 - bias - bits) << 23
    magic = tl.full(x.shape, much, tl.int32).to(tl.float32, bitcast=True)
    small = (tl.abs(x) + magic).to(tl.int32, bitcast=True) - much
    code = tl.where(size < ((128 - bias) << 23), small, normal)
    return code | ((b >> 24) & 128)


@triton.jit
def from_float8(code, way: tl.constexpr):
    """Decodes an 8-bit float; e4m3 to a 256th of its value (`unit_of`), with e5m2's exponents."""
    bits: tl.constexpr = 3 if way == FLOAT3 else 2
    b = (code & 127) << (23 - bits)
    size = b.to(tl.float32, bitcast=True) * 5192296858534827628530496329220096.0  # 2**112
    if way == FLOAT2:
        size = tl.where((code & 127) < 124, size, (b | INFINITE).to(tl.float32, bitcast=True))
    signed = size.to(tl.int32, bitcast=True) | ((code & 128) << 24)  # 0 - 0 has no sign
    return signed.to(tl.float32, bitcast=True)


@triton.jit
def unit_of(scale, way: tl.constexpr):
    """Returns the factor that turns `value_of` into a number: the scale, in units."""
    if way == FLOAT3:
        scale = scale * 256.0
    return scale


@triton.jit
def code_of(x, by, i, first, second, shift, way: tl.constexpr, steps: tl.constexpr):
    """Returns the code of each element, from 0 if it has less than 8 bits, and its value, in
    units."""
    if way == NEAREST:
        code = ((x * by + 12582912.0) - 12582912.0).to(tl.int32)  # half to even
        value = code.to(tl.float32)
    elif way == LEVELS:
        dice = random_bits(i, first, second, shift) >> 8
        level = ((tl.abs(x) * by).to(tl.uint32) + dice) >> 24
        level = tl.minimum(level.to(tl.int32), steps)
        code = tl.where(x < 0, -level, level)
        value = code.to(tl.float32)
        if steps < 100:
            code += steps
    elif way == SIGNS:
        code = tl.where(x < 0, 0, 1)
        value = tl.where(x < 0, -1.0, 1.0)
    elif (way == FLOAT3) | (way == FLOAT2):
        code = to_float8(x * by, way)
        value = from_float8(code, way)
    else:
        far = (tl.abs(x) > by * _LIMIT).to(tl.int32)
        code = tl.where(x < 0, 1 - far, 2 + far)
        size = tl.where(far == 1, OUTER, INNER)
        value = tl.where(x < 0, -size, size)
    return code, value


@triton.jit
def value_of(code, way: tl.constexpr, steps: tl.constexpr, bits: tl.constexpr):
    """Returns the value of a code that has been unpacked, in units."""
    if (way == FLOAT3) | (way == FLOAT2):
        value = from_float8(code, way)
    elif bits == 8:
        value = code.to(tl.int8).to(tl.float32)
    elif way == LEVELS:
        value = (code - steps).to(tl.float32)
    elif way == SIGNS:
        value = tl.where(code == 0, -1.0, 1.0)
    else:
        size = tl.where((code == 0) | (code == 3), OUTER, INNER)
        value = tl.where(code < 2, -size, size)
    return value

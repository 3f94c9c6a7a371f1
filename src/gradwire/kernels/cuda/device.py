"""Functions that the kernels share on the device: numbers' bits, recurrences, dice, and packing.

Every operation is rounded on its own (`enable_fp_fusion=False`, `tl.div_rn`), so that the results
are bit for bit those of the twins.
"""

from __future__ import annotations

import triton
import triton.language as tl

INFINITE = tl.constexpr(0x7F800000)
FEEDBACK, MOMENTUM, NESTEROV = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)
NON_FINITE = tl.constexpr(1)


@triton.jit
def is_finite(x):
    return (x.to(tl.int32, bitcast=True) & INFINITE) != INFINITE


@triton.jit
def magnitude(x):
    """Returns |x| as an integer with the same order; inf and NaN count as zero."""
    b = x.to(tl.int32, bitcast=True) & 0x7FFFFFFF
    return tl.where(b < INFINITE, b, 0)


@triton.jit
def number(word):
    """Returns the fp32 number in the lower half of a table's word."""
    return word.to(tl.int32).to(tl.float32, bitcast=True)


@triton.jit
def address(word, dtype: tl.constexpr, aligned: tl.constexpr):
    """Returns the pointer in a table's word. aligned: it is a multiple of 16 bytes."""
    p = word.to(tl.pointer_type(dtype))
    if aligned:
        p = tl.multiple_of(p, 16)
    return p


@triton.jit
def block_of(blocks):
    """Returns the segment that this program works on, and where its block begins there."""
    return block_at(blocks, tl.program_id(0))


@triton.jit
def block_at(blocks, number_of):
    """Returns the segment of a block, and where the block begins there."""
    at = blocks + 2 * number_of
    return tl.load(at), tl.multiple_of(tl.load(at + 1), 16)


@triton.jit
def part_of(n, BLOCK: tl.constexpr):
    """Returns the indices of this program's elements, and whether all of them are below n."""
    first = tl.program_id(0) * BLOCK
    return first + tl.arange(0, BLOCK), first <= n - BLOCK


@triton.jit
def widened(x):
    """Returns fp32, bf16 or fp16 as fp32. bf16 goes by its bits: the interpreter would lose its
    smallest numbers."""
    if x.dtype == tl.bfloat16:
        y = (x.to(tl.int16, bitcast=True).to(tl.int32) << 16).to(tl.float32, bitcast=True)
    else:
        y = x.to(tl.float32)
    return y


@triton.jit
def read(p, i, n, whole):
    """Returns p[i] in fp32, and zeros from n on. whole: all i are below n: no mask is needed."""
    if whole:  # noqa: SIM108 - no expression: both would be compiled as one
        x = tl.load(p + i)
    else:
        x = tl.load(p + i, mask=i < n, other=0.0)
    return widened(x)


@triton.jit
def write(p, i, x, n, whole):
    """Writes p[i] = x for i below n."""
    if whole:
        tl.store(p + i, x)
    else:
        tl.store(p + i, x, mask=i < n)


@triton.jit
def advanced(g, u, v, m, s, d, mode: tl.constexpr):
    """Returns u and v after the recurrence of kernels/update.py, and whether both would be finite;
    where not, both are unchanged."""
    sg = g * s
    if mode == FEEDBACK:
        u1 = u
        v1 = v * d + sg
    elif mode == MOMENTUM:
        u1 = u * m + sg
        v1 = v + u1
    else:
        u1 = (u + sg) * m
        v1 = (v + u1) + sg
    good = is_finite(v1)
    if mode != FEEDBACK:
        good = good & is_finite(u1)
    return tl.where(good, u1, u), tl.where(good, v1, v), good


@triton.jit
def raise_if(status, flag):
    """Raises the status by NON_FINITE if any of the flags is set."""
    if tl.max(flag.to(tl.int32), 0) != 0:
        tl.atomic_or(status, tl.full([], 1, tl.int64))


@triton.jit
def random_bits(i, first, second, shift):
    """Returns the numbers of kernels/noise.py for elements i, uint32."""
    h = i.to(tl.uint32) + first.to(tl.uint32)
    h = (h ^ (h >> 16)) * 0x7FEB352D
    h = ((h ^ (h >> 15)) + second.to(tl.uint32)) * 0x846CA68B
    return (h ^ (h >> 16)) + shift.to(tl.uint32)


@triton.jit
def packed(flags, n: tl.constexpr):
    """Packs n flags into n / 8 bytes, the first in the lowest bit. The result has 32 bits, as a
    second flag may be in bit 16 of each: its byte is then in bits 16 to 23."""
    bits = tl.reshape(flags.to(tl.int32), [n // 8, 8]) << tl.arange(0, 8)[None, :]
    return tl.sum(bits, 1)


@triton.jit
def rounded(x, dtype: tl.constexpr):
    """Rounds fp32 to another type, to nearest even. bf16 goes by its bits: the interpreter would
    truncate it."""
    if dtype == tl.bfloat16:
        b = x.to(tl.int32, bitcast=True)
        up = (b + 0x7FFF + ((b >> 16) & 1)) >> 16
        y = tl.where(x != x, 0x7FC0, up).to(tl.int16).to(tl.bfloat16, bitcast=True)
    else:
        y = x.to(dtype)
    return y

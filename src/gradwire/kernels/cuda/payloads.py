"""What kernels know of a segment that is encoded, or of payloads that are added up: the columns of
its row. Of formats whose blocks are coded by themselves, when waited for: `codes`.
"""

from __future__ import annotations

from collections.abc import Sequence

import triton
import triton.language as tl
from torch import Tensor

from gradwire.kernels.cuda.tables import blocks_on, rows_on
from gradwire.kernels.segments import EncodeCodes

X, N, CODES, VALUES, PROGRAM, DICE1, DICE2, DICE3 = (tl.constexpr(i) for i in range(8))
ENCODED = tl.constexpr(8)
"""Columns of what is encoded. PROGRAM: the number of its first one."""
OUT, BY, FIRST, COUNT, MOST, SCALES = (tl.constexpr(i) for i in (0, 2, 3, 4, 5, 6))
WIDTH = tl.constexpr(7)
"""Columns of a sum: its payloads are COUNT rows of theirs, from FIRST on, with so many SCALES
each, at MOST so large."""


def encoded(segments: Sequence[EncodeCodes], span: int) -> tuple[Tensor, Tensor]:
    """Their rows, and the blocks of programs that work on so many elements."""
    device, rows, program = segments[0].codes.device, list[list[int]](), 0
    sizes = tuple(one.x.numel() for one in segments)
    for (_, x, codes, scales, noise), n in zip(segments, sizes):
        rows.append([x.data_ptr(), n, codes.data_ptr(), scales.data_ptr(), program, *noise])
        program += max(1, -(-n // span))
    return rows_on(device, rows), blocks_on(device, sizes, span)


@triton.jit
def quotient(total, by):
    """total / by, rounded once. By a power of two that is a product, which is far cheaper."""
    bits = by.to(tl.int32, bitcast=True)
    if ((bits & 0x7FFFFF) == 0) & (bits >= 0x3F800000) & (bits < 0x7E800000):
        total = total * (0x7F000000 - bits).to(tl.float32, bitcast=True)
    else:
        total = tl.div_rn(total, tl.zeros_like(total) + by)
    return total

"""The columns of a segment's row where it is encoded without a recurrence, and where payloads are
added up. `codes` has the columns of fused encodings.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import accumulate

import triton
import triton.language as tl
from torch import Tensor

from gradwire.kernels.cuda.tables import Columns, addresses, blocks_on, columns_of, rows_on
from gradwire.kernels.segments import EncodeCodes

X, N, CODES, VALUES, PROGRAM, DICE1, DICE2, DICE3, CLIP = (tl.constexpr(i) for i in range(9))
ENCODED = tl.constexpr(9)
"""The columns for encoding. PROGRAM: the number of its first program. CLIP: the bits of fp64."""
OUT, BY, FIRST, COUNT, MOST, SCALES = (tl.constexpr(i) for i in (0, 2, 3, 4, 5, 6))
WIDTH = tl.constexpr(7)
"""The columns of a sum: its payloads are COUNT rows of another table, from FIRST on. SCALES: the
number of scales of each; MOST: the largest valid scale."""


def encoded(segments: Sequence[EncodeCodes], span: int) -> tuple[Tensor, Tensor]:
    """Returns the rows of segments, and the blocks of programs that work on `span` elements."""
    every, device = columns_of(segments), segments[0].codes.device
    sizes = tuple(map(Tensor.numel, every.x))
    programs = accumulate((max(1, -(-n // span)) for n in sizes), initial=0)
    clips = [clip or 0.0 for clip in every.clip]
    rows = Columns(
        len(sizes), addresses(every.x), sizes, addresses(every.codes), addresses(every.scales),
        tuple(programs)[:-1], *zip(*every.noise), array("q", array("d", clips).tobytes()),
    )  # fmt: skip
    return rows_on(device, rows), blocks_on(device, sizes, span)


@triton.jit
def quotient(total, by):
    """Returns total / by, rounded once; for a power of two by a product, which is far cheaper."""
    bits = by.to(tl.int32, bitcast=True)
    if ((bits & 0x7FFFFF) == 0) & (bits >= 0x3F800000) & (bits < 0x7E800000):
        total = total * (0x7F000000 - bits).to(tl.float32, bitcast=True)
    else:
        total = tl.div_rn(total, tl.zeros_like(total) + by)
    return total

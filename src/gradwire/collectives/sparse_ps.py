"""sparse_ps: owners of even ranges sum. (n-1)/n · (d + D) of the tensor, if entries are even."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from gradwire.strategy import Collective, Context, Rounds
from gradwire.streams import Ranges
from gradwire.streams.owners import push_and_pull


@dataclass(frozen=True)
class SparsePS(Collective):
    """Every rank owns a contiguous part of the flat tensor, sums it, and sends the average to all.

    Its time is that of the fullest part: if most non-zeros lie together, as the frequent words of
    an embedding do, one owner has most of the work. `zen` does the same with balanced parts.
    Source: Wang et al. 2025, "Zen", appendix B.
    """

    name: ClassVar[str] = "sparse_ps"
    sizes: ClassVar = "expected"
    needs: ClassVar[tuple[str, ...]] = ("entries",)
    takes_rows: ClassVar[bool] = True

    def rounds(self, ctx: Context) -> Rounds[None]:
        mine = ctx.streams.entries()
        means = yield from push_and_pull(ctx, mine, Ranges.even(mine.n, ctx.world))
        if means is not None:
            ctx.streams.write(means)

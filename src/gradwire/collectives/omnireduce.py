"""omnireduce: non-zero blocks of 256, summed by owners of even ranges. No index of elements."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from typing import ClassVar

import torch

from gradwire import kernels
from gradwire.strategy import Collective, Context, Rounds
from gradwire.streams import Ranges, Stream
from gradwire.streams.owners import push_and_pull
from gradwire.streams.rows import BLOCK, Rows


@dataclass(frozen=True)
class OmniReduce(Collective):
    """Sends each non-zero block whole to the owner of its range, and averages to all.

    Good if zeros come in long runs; if they lie anywhere, nearly every block travels. Skewed
    tensors burden one owner. Sums in rank order. Memory: the non-zero blocks, sent and received.
    Source: Fei et al. 2021, "Efficient Sparse Collective Communication and its application to
    accelerate distributed deep learning", section 3, with ranks for aggregators and one message
    for its stream of slots.
    """

    name: ClassVar[str] = "omnireduce"
    sizes: ClassVar = "measured"
    needs: ClassVar[tuple[str, ...]] = ("entries", "exact")
    own_feedback: ClassVar[bool] = True
    partner: ClassVar[str] = "nonzero"
    takes_rows: ClassVar[bool] = True

    def rounds(self, ctx: Context) -> Rounds[None]:
        if ctx.has_rows:  # rows take the part of blocks
            mine = ctx.streams.entries()
            means = yield from push_and_pull(ctx, mine, Ranges.even(mine.n, ctx.world))
            if means is not None:
                ctx.streams.write(means)
            return
        tables = [Rows(local, BLOCK) for local in ctx.locals()]
        first = (0, *accumulate(table.count for table in tables))
        ids = [table.nonzero() for table in tables]
        mine = Stream(
            torch.cat([own + at for own, at in zip(ids, first)]),
            torch.cat([table.take(own) for table, own in zip(tables, ids)]), first[-1],
        )  # fmt: skip
        finite = kernels.is_finite(mine.values.view(-1))
        owners = Ranges.even(first[-1], ctx.world)
        means = yield from push_and_pull(ctx, mine, owners, finite)
        if means is None:
            return
        blocks = torch.cat([mean.places for mean in means])  # ascending, as owners have ranges
        rows = torch.cat([mean.values for mean in means])
        cuts = torch.searchsorted(
            blocks, torch.tensor(first, dtype=torch.int32, device="cpu")
        ).tolist()
        for table, at, begin, end in zip(tables, first, cuts, cuts[1:]):
            table.expect(blocks[begin:end] - at)
            table.put(rows[begin:end], (0, BLOCK))
            table.finish()

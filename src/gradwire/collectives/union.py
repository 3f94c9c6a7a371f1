"""union: ranks find the union of their places, then all-reduce the values there."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch

from gradwire import kernels
from gradwire.errors import PayloadError
from gradwire.moves import AllReduce
from gradwire.strategy import Collective, Context, Rounds
from gradwire.streams import Ranges, whole
from gradwire.streams.owners import push_and_pull


@dataclass(frozen=True)
class Union(Collective):
    """Owners of even ranges unite the places and send them to all; values go by all-reduce.

    The network adds, so that values travel as in a dense all-reduce, 2(n-1)/n of the union:
    good if ranks share most places, and with few ranks. Sums in the backend's order, in fp32.
    Memory: one fp32 value per place of the union.
    Source: the "union and dense all-reduce" baseline of OmniReduce's collective-only form, with
    coded places instead of block bitmaps.
    """

    name: ClassVar[str] = "union"
    sizes: ClassVar = "measured"
    needs: ClassVar[tuple[str, ...]] = ("entries",)

    def rounds(self, ctx: Context) -> Rounds[None]:
        mine = ctx.streams.entries()
        alone = replace(mine, values=mine.values.new_empty(mine.count, 0))
        owned = yield from push_and_pull(ctx, alone, Ranges.even(mine.n, ctx.world))
        if owned is None:
            return
        places = torch.cat([part.places for part in owned])  # ascending, as owners have ranges
        if not bool(mine.among(replace(mine, places=places)).all()):
            raise PayloadError(
                "the union must have every index that a rank has; one of this rank's is not in "
                "what arrived. The message is damaged: run `gradwire doctor`."
            )
        total = whole((yield AllReduce(mine.at(places))), places.numel())
        means = kernels.quotient(total, float(ctx.world)).to(ctx.streams.mean_dtype)
        ctx.streams.write([replace(mine, places=places, values=means)])

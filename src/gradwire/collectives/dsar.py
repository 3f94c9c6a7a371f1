"""dsar: sparse entries go to owners, dense averages come back. For sums that are nearly dense."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from gradwire.moves import AllGather
from gradwire.strategy import Collective, Context, Rounds
from gradwire.streams import Ranges
from gradwire.streams.owners import push


@dataclass(frozen=True)
class DSAR(Collective):
    """Sends entries to owners of even ranges, whole ranges to all: half of dense bytes, at best.

    Source: Renggli et al. 2019, "SparCML", section 5.3.3 (DSAR_Split_allgather).
    """

    name: ClassVar[str] = "dsar"
    sizes: ClassVar = "measured"
    needs: ClassVar[tuple[str, ...]] = ("entries",)

    def rounds(self, ctx: Context) -> Rounds[None]:
        work = ctx.streams
        mine = work.entries()
        domains = Ranges.even(mine.n, ctx.world)
        mean = yield from push(ctx, mine, domains)
        if mean is None or (yield from work.tell()) is None:
            return
        most = max(domains.sizes)
        piece = torch.zeros(most, dtype=mean.values.dtype, device=mean.values.device)
        piece[mean.places.long()] = mean.values
        pieces = yield AllGather(piece)
        whole = torch.cat([row[:n] for row, n in zip(pieces, domains.sizes)])
        work.write(whole)

"""sparcml_split: owners of even ranges sum; averages reach all ranks in log2(n) rounds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from gradwire.moves import Exchange
from gradwire.strategy import Collective, Context, Rounds
from gradwire.streams import Ranges, from_rank, whole
from gradwire.streams.owners import push


@dataclass(frozen=True)
class SparCMLSplit(Collective):
    """Works as `sparse_ps`, but averages travel in growing bundles: fewer messages, more waiting.

        round j: what I know (2^j parts) ──► rank - 2^j        for any number of ranks

    Source: Renggli et al. 2019, "SparCML", section 5.3.2 (SSAR_Split_allgather), with Bruck's
    concatenation; nothing is dropped for being small.
    """

    name: ClassVar[str] = "sparcml_split"
    sizes: ClassVar = "measured"
    needs: ClassVar[tuple[str, ...]] = ("entries",)
    takes_rows: ClassVar[bool] = True

    def rounds(self, ctx: Context) -> Rounds[None]:
        work, me, world = ctx.streams, ctx.rank, ctx.world
        mine = work.entries()
        domains = Ranges.even(mine.n, world)
        mean = yield from push(ctx, mine, domains)
        if mean is None:
            return
        packed = mean.packed()
        told = yield from work.tell(packed.numel(), most=mean.most_packed_bytes(domains))
        if told is None:
            return
        sizes, known = [size for (size,) in told], [packed]  # known: from ranks me, me + 1, …
        while len(known) < world:
            step = len(known)
            fresh = [(me + step + i) % world for i in range(min(step, world - step))]
            arrived = yield Exchange(
                {(me - step) % world: torch.cat(known[: len(fresh)])},
                {(me + step) % world: sum(sizes[r] for r in fresh)},
            )
            expected = [sizes[r] for r in fresh]
            bundle = whole(arrived[(me + step) % world], sum(expected)).clone()
            known += torch.split(bundle, expected)
        parts = {}
        for i, message in enumerate(known):
            r = (me + i) % world
            parts[r] = from_rank(r, mean.over(domains, r).unpacked, message).flat(domains, r)
        work.write([parts[r] for r in range(world)])

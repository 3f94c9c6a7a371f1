"""sparcml_split: owners of even ranges; averages pass from rank to rank in log2(n) rounds."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch

from gradwire.collectives._owners import most_bytes, push
from gradwire.moves import Exchange, Move
from gradwire.strategy import Collective, Context


@dataclass(frozen=True)
class SparCMLSplit(Collective):
    """Works as `sparse_ps`, but averages travel in ever larger bundles: fewer messages, more
    waiting.

        round j: what I know (2^j parts) ──► rank - 2^j        for any number of ranks

    Source: Renggli et al. 2019, "SparCML", section 5.3.2 (SSAR_Split_allgather), with Bruck's
    concatenation; nothing is dropped for being small.
    """

    name: ClassVar[str] = "sparcml_split"
    sizes: ClassVar = "measured"
    needs: ClassVar[tuple[str, ...]] = ("entries",)

    def rounds(self, ctx: Context) -> Generator[Move, Any, None]:
        work, me, world = ctx.streams(), ctx.rank, ctx.world
        domains = work.ranges(work.size)
        mean = yield from push(ctx, work, work.entries(), domains)
        if mean is None:
            return
        packed = work.packed(domains.sizes[me], mean)
        announced = yield work.announce(packed.numel())
        told = work.heard(announced, most_bytes(work, mean, domains))
        if told is None:
            return
        sizes, known = [size for (size,) in told], [packed]  # known: of me, me + 1, …
        while len(known) < world:
            step = len(known)
            fresh = [(me + step + i) % world for i in range(min(step, world - step))]
            arrived = yield Exchange(
                {(me - step) % world: torch.cat(known[: len(fresh)])},
                {(me + step) % world: sum(sizes[r] for r in fresh)},
            )
            expected = [sizes[r] for r in fresh]
            bundle = work.whole(arrived[(me + step) % world], sum(expected)).clone()
            known += torch.split(bundle, expected)
        parts = {}
        for i, message in enumerate(known):
            r = (me + i) % world
            read = work.unpacked(domains.sizes[r], mean, message)
            parts[r] = replace(read, places=domains.flat(r, read.places))
        work.write([parts[r] for r in range(world)])

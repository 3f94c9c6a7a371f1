"""zen: owners of random chunks, balanced whatever the tensor. (n-1)/n · (d + D) of the tensor."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, ClassVar

from gradwire.collectives._owners import push_and_pull
from gradwire.moves import Move
from gradwire.strategy import Collective, Context


@dataclass(frozen=True)
class Zen(Collective):
    """Entries to the owners of their chunks, summed there in rank order, averages to all.

    Who owns which 16 elements is drawn once from the seed, so that no pattern in the tensor makes
    one owner's part larger: pushes and pulls are balanced like balls in bins. Within a part places
    stay sorted, so they are coded in 2 + log2(n/k) bits, or as a bitmap, whichever is smaller, and
    owners merge sorted lists: no hash table, no buffer of the tensor's size.
    Memory: half a byte per element for the chunks, and the messages.
    Source: Wang et al. 2025, "Zen", sections 3.1 to 3.3, with chunks for elements, coded places
    for pairs, and no hash memory.
    """

    name: ClassVar[str] = "zen"
    needs: ClassVar[tuple[str, ...]] = ("entries",)

    def rounds(self, ctx: Context) -> Generator[Move, Any, None]:
        work = ctx.streams()
        means = yield from push_and_pull(ctx, work, work.entries(), work.chunks())
        if means is not None:
            work.write(means)

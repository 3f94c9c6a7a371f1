"""zen: owners of random chunks sum, balanced for any tensor. (n-1)/n · (d + D) of the tensor."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from gradwire.errors import StrategyError
from gradwire.strategy import Collective, Context, Rounds
from gradwire.streams import Chunks, Form, HashedElements, Ranges, Rows, Stream, chunks_or_ranges
from gradwire.streams.owners import push_and_pull

_VARIANTS = ("chunks", "paper")
_SMALLEST: tuple[Form, Form] = ("smallest", "smallest")
_PUBLISHED: tuple[Form, Form] = ("coo", "bitmap")


@dataclass(frozen=True)
class Zen(Collective):
    """Sends entries to the owners of their chunks, which sum in rank order, and averages to all.

    "chunks": the owner of each 16 elements, or of each row of a table, is drawn from the seed, so
    that no pattern in the tensor makes one owner's part larger: pushes and pulls are balanced
    like balls in bins. Within a part places stay sorted, so they are coded in 2 + log2(n/k) bits,
    or as a bitmap, and in less if they lie together, as rows do: half a bit. Owners merge sorted
    lists: no hash table, no buffer of the tensor's size. At most 0.85 of the bytes of "paper" on
    typical models' tensors. Memory: the messages, and no table of owners.
    "paper": as published, to compare with: the hash of an element is its owner; split by hash
    memory; pairs of int32 and value to owners; a bitmap of the owner's elements and values to all,
    so (n-1)/n · (2d + D + 1/32). Memory: 4 bytes per element for the lists of owned elements.
    Source: Wang et al. 2025, "Zen", sections 3.1 to 3.3, algorithms 1 and 2.
    """

    variant: Literal["chunks", "paper"] = "chunks"
    name: ClassVar[str] = "zen"
    sizes: ClassVar = "expected"
    needs: ClassVar[tuple[str, ...]] = ("entries",)
    takes_rows: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.variant not in _VARIANTS:
            raise StrategyError(
                f"zen's variant must be one of {', '.join(_VARIANTS)}; got {self.variant!r}. Use "
                'zen, or zen(variant="paper").'
            )

    def rounds(self, ctx: Context) -> Rounds[None]:
        mine = ctx.streams.entries()
        forms = _PUBLISHED if self.variant == "paper" else _SMALLEST
        means = yield from push_and_pull(ctx, mine, self._domains(ctx, mine), forms=forms)
        if means is not None:
            ctx.streams.write(means)

    def _domains(self, ctx: Context, mine: Stream) -> Chunks | HashedElements | Ranges:
        """Returns the owners' domains, made once for a bucket."""
        made: dict[str, Chunks | HashedElements | Ranges] = ctx.memory
        if "domains" not in made:
            if self.variant == "paper":
                device = mine.places.device
                made["domains"] = HashedElements(mine.n, ctx.world, ctx.seed, device)
            elif mine.values.dim() > 1:
                made["domains"] = Rows(mine.n, ctx.world, ctx.seed)
            else:
                made["domains"] = chunks_or_ranges(mine.n, ctx.world, ctx.seed)
        return made["domains"]

"""alltoall: every rank owns a part of the sum. Two moves, 2(n-1)/n·b bytes."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, ClassVar

from gradwire.collectives._owners import through_owners
from gradwire.moves import Move
from gradwire.strategy import Collective, Context


@dataclass(frozen=True)
class AllToAllSum(Collective):
    """Pieces to their owners, summed there in fp32, compressed again, gathered by all.

        rank r:  pieces ──► owner: decode, sum in rank order, ÷ n, encode ──► everybody

    As many bytes per rank as a ring all-reduce of the codes, whatever the number of ranks;
    `allgather` sends n/2 times as many. With feedback, what the second compression loses waits at
    the owner. Scales are per piece.
    Source: Tang et al. 2021, "1-bit Adam", section 4; Wang et al. 2023, "ZeRO++", section 3.3.
    """

    name: ClassVar[str] = "alltoall"
    needs: ClassVar[tuple[str, ...]] = ("fixed",)
    compresses_again: ClassVar[bool] = True

    def rounds(self, ctx: Context) -> Generator[Move, Any, None]:
        yield from through_owners(ctx)

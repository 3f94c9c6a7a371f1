"""allreduce: the network adds payloads. One move, 2(n-1)/n · b bytes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from gradwire.moves import AllReduce
from gradwire.strategy import Collective, Context, Rounds


@dataclass(frozen=True)
class AllReduceSum(Collective):
    """Sums in the wire's format and in the backend's order."""

    name: ClassVar[str] = "allreduce"
    takes_float64: ClassVar[bool] = True
    needs: ClassVar[tuple[str, ...]] = ("sums",)

    def rounds(self, ctx: Context) -> Rounds[None]:
        total = yield AllReduce(ctx.numbers())
        ctx.divide(total)

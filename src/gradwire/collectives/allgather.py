"""allgather: everybody gets every payload and adds. One move, (n-1)·b bytes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from gradwire.moves import AllGather
from gradwire.strategy import Collective, Context, Rounds


@dataclass(frozen=True)
class AllGatherSum(Collective):
    """Sums in fp32 and in rank order, so ranks end bitwise equal; fits every compressor.

    With sparse payloads this is what PyTorch calls a sparse all-reduce. It beats AllReduce while
    density · n stays well under 1.
    """

    name: ClassVar[str] = "allgather"
    takes_float64: ClassVar[bool] = True

    def rounds(self, ctx: Context) -> Rounds[None]:
        message = ctx.message()
        if ctx.ragged:
            lengths = yield AllGather(ctx.length)
            message = message[: int(lengths.max())]
        messages = yield AllGather(message)
        ctx.accumulate(messages)

"""allgather: every rank gets all payloads and adds them. One move, (n-1)·b bytes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from gradwire.moves import AllGather
from gradwire.strategy import Collective, Context, Rounds
from gradwire.streams import longest
from gradwire.streams.owners import gather_streams


@dataclass(frozen=True)
class AllGatherSum(Collective):
    """Sums in fp32 and in rank order, so ranks end bitwise equal; fits every compressor.

    With sparse payloads this is what PyTorch calls a sparse all-reduce. It is faster than
    AllReduce while density · n is well under 1.
    """

    name: ClassVar[str] = "allgather"
    takes_float64: ClassVar[bool] = True
    takes_rows: ClassVar[bool] = True

    def rounds(self, ctx: Context) -> Rounds[None]:
        if ctx.has_rows:
            mean = yield from gather_streams(ctx, ctx.streams.entries())
            if mean is not None:
                ctx.streams.write([mean])
            return
        message = ctx.message()
        if ctx.ragged:
            lengths = yield AllGather(ctx.length)
            message = message[: longest(lengths, message.numel())]
        messages = yield AllGather(message)
        ctx.accumulate(messages)

"""Sums through owners: every rank sums a part, and sends the result to all."""

from __future__ import annotations

from gradwire.moves import AllGather
from gradwire.strategy import Compressor, Context, Rounds


def through_owners(ctx: Context, means: Compressor | None = None) -> Rounds[None]:
    """Send pieces to their owners, which sum and compress them again, by `means` if it is given;
    then gather them on all ranks. Two moves."""
    arrived = yield ctx.scatter(means)
    messages = yield AllGather(ctx.reduce(arrived))
    ctx.collect(messages)

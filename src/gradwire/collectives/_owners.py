"""What alltoall and vote share: the way through the owners."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from gradwire.moves import AllGather, Move
from gradwire.strategy import Context


def through_owners(ctx: Context) -> Generator[Move, Any, None]:
    """Pieces to their owners, summed and compressed again there, gathered by all. Two moves."""
    arrived = yield ctx.scatter()
    messages = yield AllGather(ctx.reduce(arrived))
    ctx.collect(messages)

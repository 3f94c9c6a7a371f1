"""halves: every rank gets every payload in two parts. Three moves, (n-1)·(16 + b) bytes."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, ClassVar

from gradwire.moves import AllGather, Move
from gradwire.strategy import Collective, Context
from gradwire.streams import longest


@dataclass(frozen=True)
class Halves(Collective):
    """Gathers the length of the longest message, its first half and its second half; sums in rank
    order."""

    name: ClassVar[str] = "halves"

    def rounds(self, ctx: Context) -> Generator[Move, Any, None]:
        message = ctx.message()
        lengths = yield AllGather(ctx.length)
        length = longest(lengths, message.numel())  # each is checked: one may be damaged
        middle = length // 2
        first = yield AllGather(message[:middle])
        whole = first.new_empty(ctx.world, length)
        whole[:, :middle] = first  # what arrives is valid until the next move
        whole[:, middle:] = yield AllGather(message[middle:length])
        ctx.accumulate(whole)

"""vote: the sign that most ranks have. One bit per element each way."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from gradwire.collectives._owners import through_owners
from gradwire.strategy import Collective, Context, Rounds


@dataclass(frozen=True)
class MajorityVote(Collective):
    """Owners count signs, and send the majority's sign to all; the result is -1 or 1.

    A tie is decided at random, alike on every rank.
    Source: Bernstein et al. 2018, "signSGD", algorithm 3, with owners for the parameter server.
    """

    name: ClassVar[str] = "vote"
    needs: ClassVar[tuple[str, ...]] = ("direction",)
    selects: ClassVar[bool] = True

    def rounds(self, ctx: Context) -> Rounds[None]:
        yield from through_owners(ctx)

"""gradwire.testing.check: every member obeys the laws that fit it, and a wrong one is caught."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import pytest
from torch import Tensor

from gradwire.collectives import AllGatherSum
from gradwire.compressors import Identity, TopK
from gradwire.errors import StrategyError
from gradwire.families import COLLECTIVES, COMPRESSORS, FEEDBACK
from gradwire.feedback import ErrorFeedback
from gradwire.member import Member
from gradwire.network.routing import Ecmp
from gradwire.strategy import Key, Sections, State
from gradwire.testing import check

NEEDED = {"topk": (0.1,), "randk": (0.2,), "threshold": (0.5,), "shared_momentum": ()}
"""The parameters of members that have no default."""


def of(name: str) -> Member:
    family = next(own for own in (COMPRESSORS, FEEDBACK, COLLECTIVES) if name in own.own)
    made: Member = family[name](*NEEDED.get(name, ()))
    return made


@pytest.mark.parametrize("name", ["none", "int8", "sign", "topk", "nonzero", "qsgd"])
def test_our_compressors_obey(name: str) -> None:
    assert "law_contraction" in check(of(name))


@pytest.mark.parametrize("name", ["ef", "dgc", "momentum"])
def test_our_feedbacks_obey(name: str) -> None:
    tried = check(of(name))
    assert ("law_nothing_is_lost" in tried) == (name == "ef")


@pytest.mark.parametrize("name", ["allgather", "alltoall", "vote", "gtopk", "zen", "columns"])
def test_our_collectives_obey(name: str) -> None:
    assert "law_ranks_end_equal" in check(of(name))


@dataclass(frozen=True)
class Rounded(Identity):
    """Claims to be lossless, but rounds."""

    name: ClassVar[str] = "rounded"

    def encode(self, x: Tensor, sections: Sections, key: Key, status: Tensor) -> None:
        super().encode(x.bfloat16().float(), sections, key, status)


@dataclass(frozen=True)
class Leaking(ErrorFeedback):
    """Loses a little of the residual."""

    name: ClassVar[str] = "leaking"

    def recurrence(self) -> None:  # type: ignore[override]
        return None

    def after(self, x: Tensor, sent: Tensor, state: State) -> State:
        return {"residual": (x - sent) * 0.99}


@dataclass(frozen=True)
class Own(AllGatherSum):
    """Rank 0 keeps a result of its own."""

    name: ClassVar[str] = "own"

    def rounds(self, ctx):  # type: ignore[no-untyped-def]
        yield from super().rounds(ctx)
        if ctx.rank == 0 and ctx.world > 1:
            ctx.results[0].mul_(1.5)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [(Rounded(), "claimed lossless"), (Leaking(), "lost up to"), (Own(), "differs from rank 0")],
)
def test_what_is_wrong_is_caught(wrong: Member, said: str) -> None:
    with pytest.raises(AssertionError, match=said):
        check(wrong)


def test_others_have_other_laws() -> None:
    with pytest.raises(StrategyError, match="only compressors, feedbacks"):
        check(Ecmp())
    assert isinstance(of("topk"), TopK)

"""gradwire.testing.check: every member obeys the laws that fit it, and a wrong one is caught."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch
from torch import Tensor

from gradwire.collectives import AllGatherSum
from gradwire.collectives.gtopk import GTopK
from gradwire.compressors import Identity, TopK
from gradwire.compressors._trial import trial
from gradwire.errors import StrategyError
from gradwire.families import COLLECTIVES, COMPRESSORS, FEEDBACK
from gradwire.feedback import ErrorFeedback
from gradwire.member import Member
from gradwire.moves import AllGather
from gradwire.network.routing import Ecmp
from gradwire.strategy import Claims, Compressor, Key, Sections, State
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


@pytest.mark.parametrize(
    ("name", "laws"),
    [
        ("allgather", {"law_is_the_mean", "law_nothing_is_lost"}),
        ("allreduce", {"law_is_the_mean"}),
        ("alltoall", {"law_is_the_mean", "law_nothing_is_lost"}),
        ("vote", set()),
        ("gtopk", {"law_nothing_is_lost"}),
        ("zen", {"law_is_the_mean", "law_nothing_is_lost"}),
        ("columns", {"law_is_the_mean"}),
        ("hierarchical", {"law_is_the_mean"}),
    ],
)
def test_our_collectives_obey(name: str, laws: set[str]) -> None:
    tried = check(of(name))
    assert "law_ranks_end_equal" in tried
    assert laws == {"law_is_the_mean", "law_nothing_is_lost"} & set(tried)


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


@dataclass(frozen=True)
class Summed(AllGatherSum):
    """Delivers the sum instead of the mean, alike on all ranks."""

    name: ClassVar[str] = "summed"

    def rounds(self, ctx):  # type: ignore[no-untyped-def]
        yield from super().rounds(ctx)
        ctx.results[0].mul_(ctx.world)


@dataclass(frozen=True)
class FirstOnly(AllGatherSum):
    """Delivers rank 0's gradient on all ranks."""

    name: ClassVar[str] = "first_only"

    def rounds(self, ctx):  # type: ignore[no-untyped-def]
        messages = yield AllGather(ctx.message())
        messages[1:] = messages[:1]
        ctx.accumulate(messages)


@dataclass(frozen=True)
class Doubled(GTopK):
    """Delivers twice what was sent, alike on all ranks."""

    name: ClassVar[str] = "doubled"

    def rounds(self, ctx):  # type: ignore[no-untyped-def]
        yield from super().rounds(ctx)
        ctx.results[0].mul_(2)


@dataclass(frozen=True)
class OwnMean(ErrorFeedback):
    """Changes the mean by what its rank alone knows, and promises nothing of residuals."""

    name: ClassVar[str] = "own_mean"
    makes_good: ClassVar[bool] = False

    def received(self, mean: Tensor, state: State) -> State:
        mean.add_(state["residual"])
        return {}


@dataclass(frozen=True)
class AddsAll(Identity):
    """Its `add` forgets the factor."""

    name: ClassVar[str] = "adds_all"

    def add(self, sections: Sections, v: Tensor, factor: float, key: Key | None = None) -> None:
        v.add_(sections[0])


@dataclass(frozen=True)
class Listed(Identity):
    """Sends all places and values; wrong in one way."""

    how: str = ""
    name: ClassVar[str] = "listed"

    def claims(self, n: int, dtype: str = "float32") -> Claims:
        k, exact = n + (self.how == "count"), None if self.how == "short" else 1.0
        return Claims((("float32", n),), entries=True, contraction=exact, elements=k)

    def encode(self, x: Tensor, sections: Sections, key: Key, status: Tensor) -> None:
        one = x.float() * 2 if self.how == "short" and x.dtype != torch.float32 else x.float()
        super().encode(one, sections, key, status)

    def read(self, sections: Sections, n: int) -> tuple[Tensor, Tensor]:
        places = torch.arange(n, dtype=torch.int64 if self.how == "dtype" else torch.int32)
        values = sections[0] * (2 if self.how == "values" else 1)
        turned = self.how == "order"
        return (places.flip(0), values.flip(0)) if turned else (places, values)

    def accumulate(
        self, payloads: Sequence[Sections], x: Tensor, divisor: float, key: Key | None = None
    ) -> None:
        total = payloads[0][0] if self.how == "payload" else payloads[0][0].clone()
        for (values,) in payloads[1:]:
            total += values
        x.copy_(total / divisor)


@dataclass(frozen=True)
class Bytes(Compressor):
    """Claims that int8 can be summed, however large the sum is."""

    name: ClassVar[str] = "bytes"

    def claims(self, n: int, dtype: str = "float32") -> Claims:
        return Claims((("int8", n),), sums=True)

    def encode(self, x: Tensor, sections: Sections, key: Key, status: Tensor) -> None:
        sections[0].copy_(x.float().round().clamp(-127, 127))
        status |= ~x.isfinite().all()

    def decode(self, sections: Sections, x: Tensor, key: Key | None = None) -> None:
        x.copy_(sections[0])

    def accumulate(
        self, payloads: Sequence[Sections], x: Tensor, divisor: float, key: Key | None = None
    ) -> None:
        x.copy_(torch.stack([values.float() for (values,) in payloads]).sum(0) / divisor)


def test_a_right_one_of_these_obeys() -> None:
    assert "law_places_are_what_decode_writes" in check(Listed())


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("values", "read must return"), ("order", "read must return"),
        ("dtype", "read must return"), ("", ""),
    ],
)  # fmt: skip
def test_a_strategy_refuses_entries_that_are_not_what_is_decoded(how: str, said: str) -> None:
    assert said in (trial(Listed(how)) or "")


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (Rounded(), "claimed lossless"), (Leaking(), "lost up to"), (Own(), "differs from rank 0"),
        (Summed(), "is not tensor"), (FirstOnly(), "is not tensor"), (Doubled(), "lost up to"),
        (OwnMean(), "differs from rank 0"),
        (AddsAll(), "add made"), (Bytes(), "the sum came back as"),
        (Listed("values"), "by places and values"), (Listed("order"), "ascend"),
        (Listed("dtype"), "must be int32"), (Listed("count"), "claims 1 elements, and has 0"),
        (Listed("short"), "not tensor"), (Listed("payload"), "changed a payload"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_caught(wrong: Member, said: str) -> None:
    with pytest.raises(AssertionError, match=said):
        check(wrong)


def test_others_have_other_laws() -> None:
    with pytest.raises(StrategyError, match="only compressors, feedbacks"):
        check(Ecmp())
    assert isinstance(of("topk"), TopK)

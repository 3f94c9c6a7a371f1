"""Members that are wrong on purpose: each law must catch the ones it was made for.

A row says what is wrong, which law notices, and how the law is asked. The same call on the right
member passes: that is tested too.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple

import laws
import pytest
import torch
from inputs import integers, normal, ranks
from test_oracles import law_follows_the_authors
from torch import Tensor

from gradwire import Strategy
from gradwire.collectives import AllGatherSum, AllReduceSum
from gradwire.compressors import QSGD, Float16, Identity, TopK
from gradwire.errors import MoveError
from gradwire.feedback import EF21, ErrorFeedback, MomentumCorrection
from gradwire.kernels import Work
from gradwire.local import Own
from gradwire.moves import AllGather, Move
from gradwire.runtime.encoder import ComposedEncoder, make_encoder
from gradwire.strategy import (
    Claims,
    Collective,
    Compressor,
    Context,
    Encoder,
    Feedback,
    Key,
    Sections,
    State,
    StepInfo,
)

N = 45

# -- compressors -------------------------------------------------------------------------------


class OneTooFew(TopK):
    """k is rounded down."""

    def k(self, n: int) -> int:
        return min(n, max(1, int(self.density * n)))


class TiesToTheHigherIndex(TopK):
    def encode(self, x: Tensor, sections: Sections, key: Key, status: Tensor) -> None:
        super().encode(x.flip(0), sections, key, status)
        indices, values = sections
        indices.copy_((len(x) - 1 - indices).flip(0))
        values.copy_(values.flip(0).clone())


class LargestNotLargestMagnitude(TopK):
    def encode(self, x: Tensor, sections: Sections, key: Key, status: Tensor) -> None:
        chosen = x.float().topk(sections[0].numel()).indices.sort().values
        sections[0].copy_(chosen)
        sections[1].copy_(x.float()[chosen])


class SumInReverseOrder(Identity):
    def accumulate(
        self, payloads: Sequence[Sections], x: Tensor, divisor: float, key: Key | None = None
    ) -> None:
        super().accumulate(payloads[::-1], x, divisor)


class DividedTwice(Identity):
    def accumulate(
        self, payloads: Sequence[Sections], x: Tensor, divisor: float, key: Key | None = None
    ) -> None:
        super().accumulate(payloads, x, divisor * divisor)


class DividedByTheNumberOfPayloads(Identity):
    def accumulate(
        self, payloads: Sequence[Sections], x: Tensor, divisor: float, key: Key | None = None
    ) -> None:
        super().accumulate(payloads, x, len(payloads))


class DividedBeforeTheSum(Identity):
    """Divides each term: as many roundings as ranks."""

    def accumulate(
        self, payloads: Sequence[Sections], x: Tensor, divisor: float, key: Key | None = None
    ) -> None:
        super().accumulate([[values / divisor] for (values,) in payloads], x, 1.0)


class SignFlipped(TopK):
    def encode(self, x: Tensor, sections: Sections, key: Key, status: Tensor) -> None:
        super().encode(-x, sections, key, status)


class LastElementForgotten(Identity):
    def encode(self, x: Tensor, sections: Sections, key: Key, status: Tensor) -> None:
        super().encode(x[:-1], [sections[0][:-1]], key, status)


class ClaimsTooMuch(TopK):
    def claims(self, n: int, dtype: str = "float32") -> Claims:
        right = super().claims(n, dtype)
        return replace(right, contraction=min(1.0, right.contraction + 0.3))


class ClaimsToBeLossless(Float16):
    def claims(self, n: int, dtype: str = "float32") -> Claims:
        return replace(super().claims(n, dtype), lossless=True)


class ClaimsToAdd(TopK):
    def claims(self, n: int, dtype: str = "float32") -> Claims:
        return replace(super().claims(n, dtype), sums=True)


class AddForgetsTheFactor(Identity):
    def add(self, sections: Sections, v: Tensor, factor: float, key: Key | None = None) -> None:
        v.add_(sections[0])


class PlacesDescend(TopK):
    def read(self, sections: Sections, n: int) -> tuple[Tensor, Tensor]:
        places, values = super().read(sections, n)
        return places.flip(0), values.flip(0)


class ShortIsDoubled(Float16):
    """Takes 16-bit gradients for halves of themselves."""

    def encode(self, x: Tensor, sections: Sections, key: Key, status: Tensor) -> None:
        short = x.dtype != torch.float32
        super().encode(x.float() * 2 if short else x, sections, key, status)


class DiceOfItsOwn(Identity):
    """Throws dice that do not follow from the key."""

    def encode(self, x: Tensor, sections: Sections, key: Key, status: Tensor) -> None:
        super().encode(x * (1 + torch.rand(len(x)) * 1e-6), sections, key, status)


class InPlace(Identity):
    def encode(self, x: Tensor, sections: Sections, key: Key, status: Tensor) -> None:
        super().encode(x.mul_(1.5), sections, key, status)


class Shrinking(Float16):
    """Makes everything a little smaller, every time."""

    def encode(self, x: Tensor, sections: Sections, key: Key, status: Tensor) -> None:
        super().encode(x.float() * 0.99, sections, key, status)


class RoundsToNearest(QSGD):
    """Claims to be unbiased, and throws the same dice always."""

    def encode(self, x: Tensor, sections: Sections, key: Key, status: Tensor) -> None:
        super().encode(x, sections, Key(0, 0, "always the same"), status)


class SaysNothing(Identity):
    """Does not report inf."""

    def encode(self, x: Tensor, sections: Sections, key: Key, status: Tensor) -> None:
        super().encode(x, sections, key, torch.zeros_like(status))


class SaysAllIsWell(Identity):
    """Clears a status that others have raised."""

    def encode(self, x: Tensor, sections: Sections, key: Key, status: Tensor) -> None:
        status.zero_()
        super().encode(x, sections, key, status)


class Overflowing(Float16):
    """Leaves inf where half a range is not enough."""

    def encode(self, x: Tensor, sections: Sections, key: Key, status: Tensor) -> None:
        sections[0].copy_(x)
        status |= ~sections[0].isfinite().all()


# -- feedback ----------------------------------------------------------------------------------


class Composed(MomentumCorrection):
    """The right feedback without its kernel, so that `before` and `after` are what runs."""

    def recurrence(self) -> None:  # type: ignore[override]
        return None


class DoubleMomentum(Composed):
    """Adds momentum to what momentum correction has already done."""

    def before(self, x: Tensor, state: State, info: StepInfo) -> tuple[Tensor, State]:
        extra = state.get("velocity", torch.zeros_like(x)) * self.momentum
        return super().before(x + extra, state, info)


class MaskByGradient(Composed):
    """Masks where |g| is large instead of where v was sent."""

    def before(self, x: Tensor, state: State, info: StepInfo) -> tuple[Tensor, State]:
        y, midway = super().before(x, state, info)
        return y, {**midway, "gradient": x}

    def after(self, x: Tensor, sent: Tensor, state: State) -> State:
        u, g = state["velocity"], state["gradient"]
        largest = g.abs().topk(int((sent != 0).sum())).indices
        return {"velocity": u.index_fill(0, largest, 0.0), "residual": x - sent}

    def masked(self, state: State, places: Callable[[], Tensor | None]) -> State:
        return state


class MaskForgotten(Composed):
    def masked(self, state: State, places: Callable[[], Tensor | None]) -> State:
        return state


class MaskByValue(MaskForgotten):
    """Masks where what was sent is not zero, and so not where a zero was sent."""

    def after(self, x: Tensor, sent: Tensor, state: State) -> State:
        u = torch.where(sent != 0, 0.0, state["velocity"])
        return {"velocity": u, "residual": x - sent}


class NesterovWithoutTheGradient(Composed):
    """v += u instead of v += u + g."""

    def before(self, x: Tensor, state: State, info: StepInfo) -> tuple[Tensor, State]:
        y, midway = super().before(x, state, info)
        return y - x, midway


class ComposedErrorFeedback(ErrorFeedback):
    def recurrence(self) -> None:  # type: ignore[override]
        return None


class ResidualNotCleared(ComposedErrorFeedback):
    def after(self, x: Tensor, sent: Tensor, state: State) -> State:
        return {"residual": x}


class ResidualOverwritten(ComposedErrorFeedback):
    """Keeps what this step did not send, and drops the earlier residual."""

    def before(self, x: Tensor, state: State, info: StepInfo) -> tuple[Tensor, State]:
        return x, {}


class RoundingErrorDropped(ComposedErrorFeedback):
    """Zeroes the residual where something was sent: the 16-bit cast's error is gone."""

    def after(self, x: Tensor, sent: Tensor, state: State) -> State:
        return {"residual": torch.where(sent != 0, torch.zeros_like(x), x)}


class ResidualWithTheWrongSign(ComposedErrorFeedback):
    def after(self, x: Tensor, sent: Tensor, state: State) -> State:
        return {"residual": sent - x}


class ChangesItsState(ComposedErrorFeedback):
    def before(self, x: Tensor, state: State, info: StepInfo) -> tuple[Tensor, State]:
        if "residual" not in state:
            return x, {}
        return state["residual"].add_(x), {}


class StateInHalf(ComposedErrorFeedback):
    def after(self, x: Tensor, sent: Tensor, state: State) -> State:
        return {"residual": (x - sent).half()}


# -- encoders ----------------------------------------------------------------------------------


class UndoForgotten(ComposedEncoder):
    def undo(self, x: Tensor, state: State, sections: Sections, info: StepInfo) -> None:
        self.release()


class GiveBackForgotten(ComposedEncoder):
    def give_back(self, state: State, sections: Sections) -> None:
        self.release()


class GivesBackTwice(ComposedEncoder):
    def give_back(self, state: State, sections: Sections) -> None:
        super().give_back(state, sections)
        state["residual"] = state["residual"] * 2


class NanIsWelcome(TopK):
    """Fuses an encoder that lets everything into the residual and calls it finite."""

    def fuse(self, recurrence: object) -> Encoder:
        return _NanIsWelcome(self, None)


class _NanIsWelcome(ComposedEncoder):
    def work(self, own: Own, sections: Sections, status: Tensor) -> Work:
        x, state, _, key = own
        state["residual"] = state.get("residual", torch.zeros_like(x)) + x
        self.compressor.encode(state["residual"], sections, key, torch.zeros_like(status))
        yield from ()


class OffByOneBit(ComposedEncoder):
    """Computes in another order: the result is equal but for rounding."""

    def encode(
        self, x: Tensor, state: State, sections: Sections, info: StepInfo, key: Key, status: Tensor
    ) -> None:
        super().encode(x * 3 / 3, state, sections, info, key, status)


# -- collectives -------------------------------------------------------------------------------


@dataclass(frozen=True)
class ForgetsTheLastRank(Collective):
    name: ClassVar[str] = "forgets_the_last_rank"

    def rounds(self, ctx: Context) -> Generator[Move, Any, None]:
        messages = yield AllGather(ctx.message())
        messages[-1] = messages[0]
        ctx.accumulate(messages)


@dataclass(frozen=True)
class OwnFirst(Collective):
    """Begins the sum with its own contribution: every rank rounds otherwise."""

    name: ClassVar[str] = "own_first"

    def rounds(self, ctx: Context) -> Generator[Move, Any, None]:
        messages = yield AllGather(ctx.message())
        ctx.accumulate(messages.roll(-ctx.rank, 0))


@dataclass(frozen=True)
class AsksForEachOther(Collective):
    """Makes a second move if the first brought something: their number depends on the data."""

    name: ClassVar[str] = "asks_again"

    def rounds(self, ctx: Context) -> Generator[Move, Any, None]:
        messages = (yield AllGather(ctx.message())).clone()
        if bool(messages[:, 32:].any()):
            yield AllGather(messages[0])
        ctx.accumulate(messages)


@dataclass(frozen=True)
class OverwritesTheGradient(Collective):
    name: ClassVar[str] = "overwrites_the_gradient"

    def rounds(self, ctx: Context) -> Generator[Move, Any, None]:
        messages = yield AllGather(ctx.message())
        ctx.codec.gradients[0].zero_()  # type: ignore[attr-defined]
        ctx.accumulate(messages)


@dataclass(frozen=True)
class SendsItTwice(Collective):
    name: ClassVar[str] = "sends_it_twice"

    def rounds(self, ctx: Context) -> Generator[Move, Any, None]:
        message = ctx.message()
        yield AllGather(message)
        ctx.accumulate((yield AllGather(message)))


# -- the table ---------------------------------------------------------------------------------


class Mutant(NamedTuple):
    """law(ask(wrong)) must fail; law(ask(right)) must not."""

    law: Callable[..., None]
    wrong: Any
    right: Any
    ask: Callable[[Any], tuple[Any, ...]]

    def __str__(self) -> str:
        return f"{self.law.__name__}-{_name(self.wrong)}"


def _name(member: Any) -> str:
    return member.__name__ if isinstance(member, type) else type(member).__name__


def alone(x: Tensor) -> Callable[[Compressor], tuple[Any, ...]]:
    return lambda compressor: (compressor, x)


def remembering(compressor: Compressor) -> Callable[[Feedback], tuple[Any, ...]]:
    """Asks a law about six steps of three ranks over allgather."""
    steps = [ranks(3, N, step) for step in range(6)]
    return lambda memory: (Strategy(compressor, AllGatherSum(), memory), steps)


def encoding(compressor: Compressor, *more: Any) -> Callable[[Any], tuple[Any, ...]]:
    """Asks a law about an encoder class at work with error feedback."""
    steps = [normal(N, seed) for seed in range(4)]
    return lambda encoder: (lambda: encoder(compressor, ErrorFeedback()), compressor, steps, *more)


def travelling(*more: Any) -> Callable[[Collective], tuple[Any, ...]]:
    return lambda collective: (Strategy(Identity(), collective), *more)


TIES = torch.tensor([1.0, -1.0]).repeat(10)


def listed(kind: type[TopK], density: float) -> TopK:
    """A topk with plain indices, so that a mutant can write them itself."""
    return kind(density, index="int32")


TENTH, HALF = listed(TopK, 0.1), listed(TopK, 0.5)
RIGHT_DGC = MomentumCorrection(0.9)
HUGE_AND_TINY = [normal(N, 1) * 1e6, normal(N, 2), normal(N, 3) * -1e6, normal(N, 4)]
WITH_NAN = [[*ranks(2, N, 8), torch.full((N,), float("nan"))]]

MUTANTS = [
    Mutant(laws.law_payload_is_what_is_claimed, listed(OneTooFew, 0.1), TENTH,
           lambda c: (c, normal(N), 40)),
    Mutant(
        laws.law_payload_is_what_is_claimed, LastElementForgotten(), Identity(),
        lambda c: (c, normal(N), 4 * N),
    ),
    Mutant(laws.law_same_seed_same_bytes, DiceOfItsOwn(), Identity(), alone(normal(N))),
    Mutant(laws.law_input_is_not_changed, InPlace(), Identity(), lambda c: (c, normal(N))),
    Mutant(
        laws.law_exact_on_its_own_class, listed(SignFlipped, 0.5), HALF,
        alone(torch.tensor([0.0, 2.0, 0.0, -1.0])),
    ),
    Mutant(
        laws.law_exact_on_its_own_class, listed(LargestNotLargestMagnitude, 0.5), HALF,
        alone(torch.tensor([0.0, 2.0, 0.0, -1.0])),
    ),
    Mutant(
        laws.law_exact_on_its_own_class, Shrinking(), Float16(),
        alone(torch.tensor([1.0, -0.5])),
    ),
    Mutant(laws.law_lossless_if_claimed, ClaimsToBeLossless(), Float16(), alone(normal(N))),
    Mutant(laws.law_contraction, listed(ClaimsTooMuch, 0.5), HALF, alone(TIES)),
    Mutant(laws.law_contraction, listed(SignFlipped, 0.5), HALF, alone(normal(N))),
    Mutant(laws.law_contraction, listed(LargestNotLargestMagnitude, 0.1), TENTH,
           alone(-normal(N).abs())),
    Mutant(laws.law_unbiased_if_claimed, RoundsToNearest(4), QSGD(4), alone(normal(N))),
    Mutant(laws.law_encoding_again_changes_nothing, Shrinking(), Float16(), alone(normal(N))),
    Mutant(laws.law_accumulate_sums_in_rank_order, SumInReverseOrder(), Identity(),
           alone(HUGE_AND_TINY)),  # type: ignore[arg-type]
    Mutant(laws.law_accumulate_sums_in_rank_order, DividedTwice(), Identity(),
           alone(HUGE_AND_TINY)),  # type: ignore[arg-type]
    Mutant(laws.law_accumulate_sums_in_rank_order, DividedByTheNumberOfPayloads(), Identity(),
           alone(HUGE_AND_TINY)),  # type: ignore[arg-type]
    Mutant(laws.law_accumulate_sums_in_rank_order, DividedBeforeTheSum(), Identity(),
           lambda c: (c, ranks(3, N))),
    Mutant(laws.law_add_adds_what_decode_writes, AddForgetsTheFactor(), Identity(),
           alone(normal(N))),
    Mutant(laws.law_places_are_what_decode_writes, listed(PlacesDescend, 0.1), TENTH,
           alone(normal(N))),
    Mutant(laws.law_a_short_dtype_makes_no_difference, ShortIsDoubled(), Float16(),
           alone(normal(N))),
    *(
        Mutant(laws.law_tells_what_is_not_finite, wrong, Identity(), alone(normal(N)))
        for wrong in (SaysNothing(), SaysAllIsWell())
    ),
    Mutant(laws.law_finite_elements_can_be_decoded, Overflowing(), Float16(),
           lambda c: (c, N)),
    Mutant(laws.law_sums_if_claimed, listed(ClaimsToAdd, 0.5), HALF,
           lambda c: (c, integers(3, N))),
    Mutant(laws.law_topk_selects_the_largest, listed(OneTooFew, 0.1), TENTH, alone(normal(N))),
    Mutant(laws.law_topk_selects_the_largest, listed(TiesToTheHigherIndex, 0.5), HALF,
           alone(TIES)),
    Mutant(laws.law_topk_selects_the_largest, listed(LargestNotLargestMagnitude, 0.1), TENTH,
           alone(-normal(N).abs())),
    Mutant(laws.law_topk_selects_the_largest, listed(SignFlipped, 0.1), TENTH, alone(normal(N))),
    # feedback
    Mutant(laws.law_before_changes_no_input, ChangesItsState(), ErrorFeedback(),
           lambda f: (f, [normal(N, 1), normal(N, 2)])),
    Mutant(laws.law_state_is_flat_and_fp32, StateInHalf(), ErrorFeedback(),
           lambda f: (f, [normal(N)])),
    *(
        Mutant(laws.law_nothing_is_lost, wrong, ErrorFeedback(), remembering(TENTH))
        for wrong in (ResidualNotCleared(), ResidualOverwritten(), ResidualWithTheWrongSign())
    ),
    Mutant(laws.law_nothing_is_lost, RoundingErrorDropped(), ErrorFeedback(),
           remembering(Float16())),
    Mutant(laws.law_nothing_is_lost, DoubleMomentum(), RIGHT_DGC, remembering(TENTH)),
    Mutant(laws.law_nothing_is_lost, NesterovWithoutTheGradient(0.9, True),
           MomentumCorrection(0.9, True), remembering(TENTH)),
    Mutant(laws.law_nothing_is_lost, DividedTwice(), Identity(),
           lambda c: remembering(c)(ErrorFeedback())),
    *(
        Mutant(law_follows_the_authors, wrong, RIGHT_DGC, lambda f: (f,))
        for wrong in (DoubleMomentum(), MaskByGradient(), MaskForgotten())
    ),
    Mutant(law_follows_the_authors, NesterovWithoutTheGradient(0.9, True),
           MomentumCorrection(0.9, True), lambda f: (f,)),
    *(
        Mutant(laws.law_masked_by_place, wrong, MomentumCorrection(0.5),
               lambda f: (ComposedEncoder(TENTH, f), TENTH, f, N))
        for wrong in (MaskForgotten(0.5), MaskByValue(0.5))
    ),
    Mutant(laws.law_encoders_agree, MaskByValue(0.5), MomentumCorrection(0.5),
           lambda f: (make_encoder(TENTH, MomentumCorrection(0.5)), ComposedEncoder(TENTH, f),
                      TENTH, laws.sending_zeros(TENTH, f, N))),
    # encoders
    Mutant(laws.law_undo_restores, UndoForgotten, ComposedEncoder, encoding(TENTH, 0.0)),
    Mutant(laws.law_give_back_keeps_everything, GiveBackForgotten, ComposedEncoder,
           encoding(TENTH, 1e-6)),
    Mutant(laws.law_give_back_keeps_everything, GivesBackTwice, ComposedEncoder,
           encoding(TENTH, 1e-6)),
    Mutant(
        laws.law_give_back_forgets_what_joined, GiveBackForgotten, ComposedEncoder,
        lambda e: (lambda: e(TENTH, EF21()), TENTH, [normal(N, seed) for seed in range(4)], 1e-5),
    ),
    Mutant(laws.law_encoders_agree, OffByOneBit, ComposedEncoder,
           lambda e: (make_encoder(TENTH, ErrorFeedback()), e(TENTH, ErrorFeedback()), TENTH,
                      [normal(N, seed) for seed in range(4)])),
    # collectives
    Mutant(laws.law_ranks_end_equal, OwnFirst(), AllGatherSum(), travelling(HUGE_AND_TINY)),
    Mutant(laws.law_is_the_mean, ForgetsTheLastRank(), AllGatherSum(), travelling(integers(3, N))),
    Mutant(laws.law_is_the_mean, DividedTwice(), Identity(),
           lambda c: (Strategy(c, AllReduceSum()), integers(3, N))),
    Mutant(laws.law_bytes_follow_the_formula, SendsItTwice(), AllGatherSum(),
           travelling(ranks(3, 10), [2 * (32 + 48)] * 3)),
    Mutant(laws.law_moves_do_not_depend_on_the_data, AsksForEachOther(), AllGatherSum(),
           travelling(ranks(3, N), [torch.zeros(N)] * 3)),
    Mutant(laws.law_inputs_stay, OverwritesTheGradient(), AllGatherSum(),
           lambda c: (Strategy(Identity(), c), ranks(2, N))),
    Mutant(laws.law_non_finite_spoils_the_step_and_nothing_else, listed(NanIsWelcome, 0.1), TENTH,
           lambda c: (Strategy(c, AllGatherSum(), ErrorFeedback()), [ranks(3, N)], WITH_NAN)),
]  # fmt: skip


@pytest.mark.parametrize("mutant", MUTANTS, ids=str)
def test_the_law_catches_it(mutant: Mutant) -> None:
    with pytest.raises(AssertionError):
        mutant.law(*mutant.ask(mutant.wrong))


@pytest.mark.parametrize("mutant", MUTANTS, ids=str)
def test_the_right_one_passes(mutant: Mutant) -> None:
    mutant.law(*mutant.ask(mutant.right))


def test_moves_that_differ_between_ranks_stop_the_run() -> None:
    """A move that depends on a rank's own data is caught before anything is exchanged."""

    @dataclass(frozen=True)
    class OwnSize(Collective):
        name: ClassVar[str] = "own_size"

        def rounds(self, ctx: Context) -> Generator[Move, Any, None]:
            message = ctx.message()
            yield AllGather(message[: 32 + 8 * int((message[32:] != 0).any())])

    with pytest.raises(MoveError, match="rank 1"):
        laws.law_moves_do_not_depend_on_the_data(
            Strategy(Identity(), OwnSize()), [torch.zeros(N), torch.ones(N)], ranks(2, N)
        )

"""The laws of a feedback, for every member; fused encoders give what composed ones give."""

from __future__ import annotations

from dataclasses import dataclass

import instances
import laws
import pytest
import torch
from inputs import FLOATS, normal
from instances import COMPRESSORS, FEEDBACK, REMEMBERED
from torch import Tensor

from gradwire.compressors import QSGD, Int8, RandK, TopK
from gradwire.feedback import (
    EF21,
    ErrorFeedback,
    Momentum,
    MomentumCorrection,
    ServerMomentum,
    SharedMomentum,
)
from gradwire.feedback._measured import Measured
from gradwire.kernels import new_status
from gradwire.layout.pieces import Pieces
from gradwire.runtime.encoder import ComposedEncoder, make_encoder
from gradwire.runtime.pieces import PieceByPiece
from gradwire.strategy import Compressor, Encoder, Feedback, State, StepInfo

WELL = new_status()
every = pytest.mark.parametrize("feedback", FEEDBACK, ids=instances.ids)
# Feedbacks that can run in place, or in a compressor's own kernel.
RECURRENT = [f for f in FEEDBACK if f.recurrence() is not None]
# Feedbacks with a residual: they keep what was not sent.
KEEPING = [f for f in RECURRENT if f.recurrence().sent == "leaves"]  # type: ignore[union-attr]
PAIRS = [
    (c, f)
    for c in REMEMBERED
    for f in (*RECURRENT, *(f for f in FEEDBACK if isinstance(f, Measured)))
    if not isinstance(make_encoder(c, f), ComposedEncoder)
]
every_pair = pytest.mark.parametrize(("compressor", "feedback"), PAIRS, ids=instances.ids)

N = 203
STEPS = [normal(N, seed) for seed in range(8)]


@every
def test_before_and_after_are_functions(feedback: Feedback) -> None:
    laws.law_before_changes_no_input(feedback, STEPS)


@every
def test_state_is_flat_and_fp32(feedback: Feedback) -> None:
    laws.law_state_is_flat_and_fp32(feedback, STEPS[:3])


# -- fused is composed -------------------------------------------------------------------------


@pytest.mark.parametrize("clip_scale", [1.0, 0.37])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@every_pair
def test_fused_and_in_place_are_composed_bit_for_bit(
    compressor: Compressor, feedback: Feedback, dtype: torch.dtype, clip_scale: float
) -> None:
    steps = [x.to(dtype) for x in STEPS]
    laws.law_encoders_agree(
        make_encoder(compressor, feedback), ComposedEncoder(compressor, feedback), compressor,
        steps, clip_scale,
    )  # fmt: skip


@pytest.mark.parametrize("compressor", [c for c in COMPRESSORS if c.fuse(None)], ids=instances.ids)
def test_fused_without_feedback_is_composed_bit_for_bit(compressor: Compressor) -> None:
    laws.law_encoders_agree(
        make_encoder(compressor, None), ComposedEncoder(compressor, None), compressor, STEPS
    )


@every_pair
@pytest.mark.parametrize("n", [0, 1, 2, 31])
def test_fused_is_composed_on_small_parameters(
    compressor: Compressor, feedback: Feedback, n: int
) -> None:
    fused, composed = make_encoder(compressor, feedback), ComposedEncoder(compressor, feedback)
    laws.law_encoders_agree(fused, composed, compressor, [normal(n, s) for s in range(5)])


@pytest.mark.parametrize("values", ["fp32", "bf16"])
@pytest.mark.parametrize("nesterov", [False, True])
def test_fused_is_composed_where_zeros_are_sent(nesterov: bool, values: str) -> None:
    feedback, compressor = MomentumCorrection(0.5, nesterov), TopK(0.1, values)
    laws.law_encoders_agree(
        make_encoder(compressor, feedback), ComposedEncoder(compressor, feedback), compressor,
        laws.sending_zeros(compressor, feedback, N),
    )  # fmt: skip


PIECES = PieceByPiece(TopK(0.1), Pieces.of("w", N, 3).bounds)


@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize(
    "compressor", [TopK(0.1), PIECES, RandK(0.1), Int8(), QSGD(4)], ids=lambda c: c.name
)
def test_what_was_sent_has_no_velocity(compressor: Compressor, nesterov: bool) -> None:
    feedback = MomentumCorrection(0.5, nesterov)
    for encoder, _ in encoders(compressor, feedback).values():
        laws.law_masked_by_place(encoder, compressor, feedback, N)


def test_what_is_no_recurrence_is_composed() -> None:
    for compressor in COMPRESSORS:
        for feedback in FEEDBACK:
            rule = feedback.recurrence()
            masked = rule is not None and rule.mask and not isinstance(compressor, TopK)
            composed = isinstance(make_encoder(compressor, feedback), ComposedEncoder)
            own = rule is None and not isinstance(feedback, Measured)
            own &= not (feedback.sends_all and compressor.fuse(None) is not None)
            assert composed == (own or masked), f"{compressor}+{feedback}"


@pytest.mark.parametrize("feedback", RECURRENT, ids=instances.ids)
def test_what_leaves_or_joins_is_made_good(feedback: Feedback) -> None:
    rule = feedback.recurrence()
    assert rule is not None
    assert feedback.makes_good == (rule.sent != "stays")


@pytest.mark.parametrize(
    "feedback",
    [f for f in FEEDBACK if f.moments() and f.rule != "orthogonal"],
    ids=instances.ids,
)
def test_what_dampens_says_so(feedback: Feedback) -> None:
    """A constant gradient 1 becomes 1/(1 - m) with momentum m, or 1 if dampened."""
    first, _ = feedback.before(torch.ones(4), {}, StepInfo())
    assert feedback.dampens == bool((first < 1).all())


# -- undo and give_back ------------------------------------------------------------------------


def encoders(compressor: Compressor, feedback: Feedback) -> dict[str, tuple[Encoder, float]]:
    """The encoders by name, with how exactly each can take a step back."""
    made = {"composed": (ComposedEncoder(compressor, feedback), 0.0)}
    own = make_encoder(compressor, feedback)
    if not isinstance(own, ComposedEncoder):
        made["fused"] = own, 1e-5
    return made


@pytest.mark.parametrize("clip_scale", [1.0, 0.37])
@pytest.mark.parametrize("feedback", RECURRENT, ids=instances.ids)
@pytest.mark.parametrize("compressor", REMEMBERED, ids=instances.ids)
def test_undo_restores(compressor: Compressor, feedback: Feedback, clip_scale: float) -> None:
    momentum_zero = getattr(feedback, "momentum", None) == 0.0
    for name, (encoder, tolerance) in encoders(compressor, feedback).items():
        if name == "fused" and momentum_zero:
            continue  # the earlier velocity cannot be known, and is of no consequence
        laws.law_undo_restores(lambda e=encoder: e, compressor, STEPS, tolerance, clip_scale)


@pytest.mark.parametrize("feedback", KEEPING, ids=instances.ids)
@pytest.mark.parametrize("compressor", REMEMBERED, ids=instances.ids)
def test_give_back_keeps_everything(compressor: Compressor, feedback: Feedback) -> None:
    for encoder, _ in encoders(compressor, feedback).values():
        laws.law_give_back_keeps_everything(lambda e=encoder: e, compressor, STEPS, 1e-6)


@pytest.mark.parametrize("compressor", REMEMBERED, ids=instances.ids)
def test_given_back_the_receivers_know_no_more(compressor: Compressor) -> None:
    for encoder, _ in encoders(compressor, EF21()).values():
        laws.law_give_back_forgets_what_joined(lambda e=encoder: e, compressor, STEPS, 1e-5)


@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_give_back_restores_the_masked_velocity(momentum: float, nesterov: bool) -> None:
    """A step that is given back was sent nowhere, so nothing of its velocity is masked."""
    compressor = TopK(0.1, index="int32")
    feedback = MomentumCorrection(momentum, nesterov, mask=True)
    unmasked = MomentumCorrection(momentum, nesterov, mask=False)
    for encoder, _ in encoders(compressor, feedback).values():
        state, sections = {}, laws.sections_for(compressor, N, "float32")
        encoder.encode(STEPS[0], state, sections, StepInfo(), laws.KEY, WELL)
        assert not state["velocity"][sections[0].long()].any(), "masked where it was sent"
        encoder.give_back(state, sections)
        wanted = unmasked.before(STEPS[0], {}, StepInfo())[1]["velocity"]
        assert torch.equal(state["velocity"], wanted)


@dataclass(frozen=True)
class RemembersAsGiven(ErrorFeedback):
    """Returns and remembers, of its first gradient, the very tensor that it was given."""

    def before(self, x: Tensor, state: State, info: StepInfo) -> tuple[Tensor, State]:
        return super().before(x, state, info)[0], {"last": x}

    def after(self, x: Tensor, sent: Tensor, state: State) -> State:
        return {**state, "residual": x - sent}


@pytest.mark.parametrize("skipped", [False, True])
def test_averages_may_be_written_over_the_gradient(skipped: bool) -> None:
    """In training an average takes its gradient's place before the step is over."""
    encoder, gradient = ComposedEncoder(TopK(0.1), RemembersAsGiven()), STEPS[0].clone()
    state: dict[str, Tensor] = {}
    sections = laws.sections_for(TopK(0.1), N, "float32")
    encoder.encode(gradient, state, sections, StepInfo(), laws.KEY, WELL)
    gradient.fill_(7.0)
    if skipped:
        encoder.give_back(state, sections)
        assert torch.equal(state["residual"], STEPS[0])
    assert torch.equal(state["last"], STEPS[0])


def test_after_release_undo_and_give_back_do_nothing() -> None:
    encoder = ComposedEncoder(TopK(0.1), ErrorFeedback())
    state, sections = {}, laws.sections_for(TopK(0.1), N, "float32")
    encoder.encode(STEPS[0], state, sections, StepInfo(), laws.KEY, WELL)
    encoder.release()
    kept = state["residual"].clone()
    encoder.undo(STEPS[0], state, sections, StepInfo())
    encoder.give_back(state, sections)
    assert torch.equal(state["residual"], kept)


# -- each by hand ------------------------------------------------------------------------------


def test_error_feedback_by_hand() -> None:
    state: dict[str, torch.Tensor] = {}
    compressor = TopK(0.5, index="int32")
    encoder = make_encoder(compressor, ErrorFeedback())
    sections = laws.sections_for(compressor, 4, "float32")
    encoder.encode(
        torch.tensor([1.0, -3.0, 2.0, 0.5]), state, sections, StepInfo(), laws.KEY, WELL
    )
    assert sections[1].tolist() == [-3.0, 2.0]
    assert state["residual"].tolist() == [1.0, 0.0, 0.0, 0.5]
    encoder.encode(torch.tensor([2.0, 0.0, 0.0, 1.0]), state, sections, StepInfo(), laws.KEY, WELL)
    assert sections[0].tolist() == [0, 3]
    assert sections[1].tolist() == [3.0, 1.5]
    assert state["residual"].tolist() == [0.0, 0.0, 0.0, 0.0]


# m = 1/2, two of four elements; every number is exact in binary.
BY_HAND = {
    # nesterov, mask: (sent, residual, velocity) after the first and after the second gradient
    (False, True): (
        ([8.0, -2.0], [0.0, 1.0, 0.0, 0.5], [0.0, 1.0, 0.0, 0.5]),
        ([3.0, 6.0], [0.0, 0.0, 0.0, 1.5], [0.0, 0.0, 0.0, 1.0]),
    ),
    (False, False): (
        ([8.0, -2.0], [0.0, 1.0, 0.0, 0.5], [8.0, 1.0, -2.0, 0.5]),
        ([4.0, 5.0], [0.0, 3.0, 0.0, 1.5], [4.0, 2.0, 5.0, 1.0]),
    ),
    (True, True): (
        ([12.0, -3.0], [0.0, 1.5, 0.0, 0.75], [0.0, 0.5, 0.0, 0.25]),
        ([4.0, 9.0], [0.0, 0.0, 0.0, 2.0], [0.0, 0.0, 0.0, 0.5]),
    ),
    (True, False): (
        ([12.0, -3.0], [0.0, 1.5, 0.0, 0.75], [4.0, 0.5, -1.0, 0.25]),
        ([4.0, 8.5], [2.0, 0.0, 0.0, 2.0], [2.0, 1.0, 2.5, 0.5]),
    ),
}


@pytest.mark.parametrize(("nesterov", "mask"), BY_HAND)
def test_momentum_correction_by_hand(nesterov: bool, mask: bool) -> None:
    feedback, compressor = MomentumCorrection(0.5, nesterov, mask), TopK(0.5)
    state, sections = {}, laws.sections_for(compressor, 4, "float32")
    encoder = make_encoder(compressor, feedback)
    gradients = torch.tensor([8.0, 1.0, -2.0, 0.5]), torch.tensor([0.0, 1.5, 6.0, 0.75])
    for gradient, (sent, residual, velocity) in zip(gradients, BY_HAND[nesterov, mask]):
        encoder.encode(gradient, state, sections, StepInfo(), laws.KEY, WELL)
        assert sections[1].tolist() == sent
        assert state["residual"].tolist() == residual
        assert state["velocity"].tolist() == velocity


def test_a_zero_that_is_sent_clears_the_velocity() -> None:
    """By hand: the second gradient cancels the residual, and of equal values the first is sent."""
    feedback, compressor = MomentumCorrection(0.5), TopK(0.25)
    for encoder, _ in encoders(compressor, feedback).values():
        state, sections = {}, laws.sections_for(compressor, 4, "float32")
        for gradient in ([1.0, 2.0, 0.0, 0.0], [-1.5, 0.0, 0.0, 0.0]):
            encoder.encode(torch.tensor(gradient), state, sections, StepInfo(), laws.KEY, WELL)
        assert state["residual"].tolist() == state["velocity"].tolist() == [0.0] * 4


@pytest.mark.parametrize("nesterov", [False, True])
def test_server_momentum_is_sgd(nesterov: bool) -> None:
    """The averages become, bit for bit, the steps of torch.optim.SGD."""
    feedback, state = ServerMomentum(0.9, nesterov), {}
    buffer = torch.zeros(N)
    for x in STEPS:
        mean = x.clone()
        state = dict(feedback.received(mean, state))
        buffer = buffer * 0.9 + x
        wanted = x + buffer * 0.9 if nesterov else buffer
        assert torch.equal(mean, wanted)


def test_a_momentum_goes_with_what_travels_dense() -> None:
    for feedback in FEEDBACK:
        always = isinstance(feedback, MomentumCorrection | Momentum | SharedMomentum)
        assert (feedback.dense() is not None) == (always or bool(feedback.moments()))


def test_an_estimate_follows_the_moving_average() -> None:
    """EF21-SGDM, algorithm 1 of Fatkhullin et al. 2023, is written out here once more."""
    feedback, compressor = EF21(0.8), TopK(0.1)
    encoder, state = make_encoder(compressor, feedback), dict[str, Tensor]()
    u, e = torch.zeros(N), torch.zeros(N)
    for step, g in enumerate(STEPS):
        sections = laws.sections_for(compressor, N, "float32")
        encoder.encode(g, state, sections, StepInfo(step), laws.KEY, WELL)
        encoder.release()
        u = 0.8 * u + (1 - 0.8) * g
        at = (u - e).abs().topk(compressor.k(N)).indices
        e = e.index_put((at,), u[at])
        assert torch.allclose(state["estimate"], e, atol=1e-6)
        assert torch.allclose(state["velocity"], u, atol=1e-6)

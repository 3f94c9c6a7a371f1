"""topk with 16-bit values, and the size of its messages: nothing is lost, and little is sent."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import instances
import laws
import pytest
import torch
from inputs import DENORMAL, NASTY, normal
from torch import Tensor

from gradwire import lockstep
from gradwire.compressors import TopK
from gradwire.feedback import ErrorFeedback, MomentumCorrection
from gradwire.kernels import is_raised, new_status
from gradwire.runtime.encoder import ComposedEncoder, make_encoder
from gradwire.strategy import Encoder, Feedback, StepInfo

SHORT = (TopK(0.1, values="bf16"), TopK(0.1, values="fp16"))
LARGEST = {"bf16": 2.0**127 * (2 - 2.0**-7), "fp16": 65504.0}
"""The largest finite values by hand, of 8 and 11 significant bits."""

KEEPING = (
    ErrorFeedback(),
    MomentumCorrection(0.9),
    MomentumCorrection(0.9, mask=False),
    MomentumCorrection(0.9, nesterov=True),
    MomentumCorrection(0.0),
)
every = pytest.mark.parametrize("compressor", SHORT, ids=str)
every_feedback = pytest.mark.parametrize("feedback", KEEPING, ids=str)
N = 203


def encoders(compressor: TopK, feedback: Feedback) -> Iterator[Encoder]:
    """Yields the fused encoder and the composed one."""
    fused = make_encoder(compressor, feedback)
    assert not isinstance(fused, ComposedEncoder)
    yield from (fused, ComposedEncoder(compressor, feedback))


def step(
    encoder: Encoder, compressor: TopK, x: Tensor, state: dict[str, Tensor]
) -> tuple[list[Tensor], Tensor]:
    """Takes one step. Returns the payload, and what it says of every element, in fp32."""
    sections = laws.sections_for(compressor, len(x), "float32")
    status = new_status()
    encoder.encode(x, state, sections, StepInfo(), laws.KEY, status)
    assert not is_raised(status)
    return sections, laws.decoded(compressor, sections, len(x))


def to_be_sent(feedback: Feedback, x: Tensor, state: dict[str, Tensor]) -> Tensor:
    """The residual before anything is taken out of it, in fp32."""
    return feedback.before(x, {k: v.clone() for k, v in state.items()}, StepInfo())[0].clone()


# -- nothing is lost ---------------------------------------------------------------------------

WIDE = torch.cat([normal(100, 1), normal(100, 2) * 1e-6, torch.tensor([3e-8, 65519.0, -0.1])])
"""Values that 16 bits round, some to zero."""


@every
@every_feedback
@pytest.mark.parametrize("scale", [1.0, 1e-6, 1e5, 1e30])
def test_residual_and_sent_are_what_was_given_to_the_bit(
    compressor: TopK, feedback: Feedback, scale: float
) -> None:
    """The error of a rounding is itself a float, so not even a last bit is lost."""
    for encoder in encoders(compressor, feedback):
        state: dict[str, Tensor] = {}
        for seed in range(6):
            x = torch.where(torch.arange(N) % 3 == seed % 3, WIDE, normal(N, seed)) * scale
            given = to_be_sent(feedback, x, state)
            _, sent = step(encoder, compressor, x, state)
            encoder.release()
            assert torch.equal(state["residual"] + sent, given)
            assert torch.equal(state["residual"], given - sent)


@every
@pytest.mark.parametrize("name", [*NASTY, "denormal"])
def test_nothing_is_lost_of_nasty_inputs(compressor: TopK, name: str) -> None:
    x = NASTY.get(name, DENORMAL)
    for encoder in encoders(compressor, ErrorFeedback()):
        state: dict[str, Tensor] = {}
        for _ in range(3):
            given = to_be_sent(ErrorFeedback(), x, state)
            _, sent = step(encoder, compressor, x, state)
            encoder.release()
            assert torch.equal(state["residual"] + sent, given)


@every
def test_what_was_rounded_is_sent_when_it_has_grown(compressor: TopK) -> None:
    """A gradient stays 1/3: after many steps the sum that arrived is as near as one rounding."""
    state: list[dict[str, Tensor]] = [{}]
    x, arrived = torch.tensor([1 / 3]), 0.0
    for number in range(64):
        (result,), _ = lockstep(f"{compressor}+ef | allgather", [x], step=number, state=state)
        arrived += float(result)
        assert arrived + float(state[0]["residual"]) == pytest.approx((number + 1) / 3, rel=1e-6)
        assert abs(float(state[0]["residual"])) <= 2.0**-9


# -- beyond the range --------------------------------------------------------------------------


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_fp16_saturates_and_the_rest_waits(sign: float) -> None:
    compressor = TopK(0.5, values="fp16", index="int32")
    for encoder in encoders(compressor, ErrorFeedback()):
        state: dict[str, Tensor] = {}
        x = torch.tensor([1e6 * sign, 0.25, 100.01, 0.0])
        sections, _ = step(encoder, compressor, x, state)
        encoder.release()
        rounded = float(torch.tensor(100.01).half())
        assert sections[0].tolist() == [0, 2]
        assert sections[1].tolist() == [65504.0 * sign, rounded]
        left = [(1e6 - 65504) * sign, 0.25, float(x[2]) - rounded, 0.0]
        assert state["residual"].tolist() == left
        sections, _ = step(encoder, compressor, torch.zeros(4), state)
        encoder.release()
        assert sections[1].tolist() == [65504.0 * sign, 0.25]
        assert float(state["residual"][0]) == (1e6 - 2 * 65504) * sign


@pytest.mark.parametrize("value", [65519.0, 65520.0, 7e4, 1e38])
def test_where_fp16_would_round_to_infinity(value: float) -> None:
    compressor, x = TopK(1.0, values="fp16"), torch.tensor([value])
    for encoder in encoders(compressor, ErrorFeedback()):
        state: dict[str, Tensor] = {}
        _, sent = step(encoder, compressor, x, state)
        assert sent.tolist() == [65504.0]
        assert torch.equal(state["residual"], x - 65504.0)


@every
def test_without_feedback_it_saturates_too(compressor: TopK) -> None:
    largest = LARGEST[compressor.values]
    x = torch.tensor([3.402e38, -3.402e38])
    for factor in (1.0, 0.999):
        sent = laws.through(TopK(1.0, values=compressor.values), x * factor)
        assert bool(sent.isfinite().all())
        assert bool((sent.abs() <= largest).all())
    assert laws.through(TopK(1.0, values=compressor.values), x).tolist() == [largest, -largest]


@every
def test_ranks_agree_on_what_saturated(compressor: TopK) -> None:
    """Saturated results are finite everywhere, so no step is skipped because of them."""
    xs = [torch.full((8,), 3e38), torch.ones(8)]
    state: list[dict[str, Tensor]] = [{}, {}]
    results, _ = lockstep(f"{compressor}+ef | allgather", xs, state=state)
    assert torch.equal(results[0], results[1])
    assert bool(results[0].isfinite().all())
    for x, memory in zip(xs, state):  # one element of eight is sent
        sent = laws.through(TopK(1.0, values=compressor.values), x[:1])
        assert torch.equal(memory["residual"], torch.cat([x[:1] - sent, x[1:]]))


# -- taking a step back ------------------------------------------------------------------------


def prepared(
    encoder: Encoder, compressor: TopK, scale: float
) -> tuple[Tensor, dict[str, Tensor], dict[str, Tensor]]:
    """Takes three steps. Returns the next gradient, the state, and a copy of it."""
    state: dict[str, Tensor] = {}
    for seed in range(3):
        step(encoder, compressor, normal(N, seed) * scale, state)
        encoder.release()
    return normal(N, 9) * scale, state, {k: v.clone() for k, v in state.items()}


@every
@every_feedback
@pytest.mark.parametrize("scale", [1.0, 1e-7, 1e6])
def test_undo_restores(compressor: TopK, feedback: Feedback, scale: float) -> None:
    for encoder in encoders(compressor, feedback):
        if getattr(feedback, "momentum", None) == 0.0 and not isinstance(encoder, ComposedEncoder):
            continue  # the earlier velocity cannot be known, and is of no consequence
        x, state, before = prepared(encoder, compressor, scale)
        sections, _ = step(encoder, compressor, x, state)
        encoder.undo(x, state, sections, StepInfo())
        for key, value in state.items():
            assert torch.allclose(value, before[key], rtol=1e-5, atol=1e-5 * scale), key
        again, _ = step(encoder, compressor, x, state)
        assert again[0].tolist() == sections[0].tolist(), "the same places again"


@every
@every_feedback
@pytest.mark.parametrize("scale", [1.0, 1e-7, 1e6])
def test_give_back_is_exact(compressor: TopK, feedback: Feedback, scale: float) -> None:
    """Values that were rounded to zero or cut at the range are given back exactly, too."""
    for encoder in encoders(compressor, feedback):
        x, state, before = prepared(encoder, compressor, scale)
        given = to_be_sent(feedback, x, before)
        sections, _ = step(encoder, compressor, x, state)
        encoder.give_back(state, sections)
        assert torch.equal(state["residual"], given)
        if "velocity" in state:
            wanted = feedback.before(x, before, StepInfo())[1]["velocity"]
            assert torch.allclose(state["velocity"], wanted, rtol=1e-6, atol=0)


# -- sizes -------------------------------------------------------------------------------------

SIZES = (0, 1, 2, 9, 255, 256, 65_535, 65_536, 1_000_003, 25_500_000, 2**31 - 1)


def claimed_bytes(compressor: TopK, n: int) -> int:
    sections = compressor.claims(n).sections
    return sum(count * getattr(torch, dtype).itemsize for dtype, count in sections)


@pytest.mark.parametrize("density", [1e-4, 0.001, 0.01, 0.1, 0.5, 1.0])
@pytest.mark.parametrize("index", ["auto", *instances.PLACES])
def test_bytes_follow_the_formula_at_every_size(density: float, index: str) -> None:
    """The bytes follow from the claims alone: nothing of that size is allocated."""
    for n, values in itertools.product(SIZES, ("fp32", "bf16", "fp16")):
        compressor = TopK(density, values, index)
        assert claimed_bytes(compressor, n) == sum(instances.topk_bytes(compressor, n)), n


@every
def test_at_most_28_bits_per_kept_element(compressor: TopK) -> None:
    """An entry of 25.5 M at 0.1 % takes 16 bits of value, less than 12 of place; plain, 64."""
    n = 25_500_000
    dgc = TopK(0.001, compressor.values)
    assert 8 * claimed_bytes(dgc, n) <= 28 * dgc.k(n)
    plain = TopK(0.001, index="int32")
    assert 8 * claimed_bytes(plain, n) == 64 * plain.k(n)

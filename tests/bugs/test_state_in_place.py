"""State in place: in the gradient's own memory, from another run, with a large journal."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from gradwire import Strategy
from gradwire.buckets import Bucket, Parameter
from gradwire.compressors import BFloat16, Float16, Identity, Int8, Sign
from gradwire.feedback import ErrorFeedback, MomentumCorrection
from gradwire.kernels import is_raised, new_status
from gradwire.layout.message import Layout
from gradwire.local import RIGHT_FACTOR
from gradwire.runtime.context import BucketContext
from gradwire.runtime.encoder import InPlaceEncoder, make_encoder
from gradwire.strategy import Compressor, Key, State, StepInfo


def sections_of(compressor: Compressor, n: int) -> tuple[Tensor, ...]:
    layout = Layout.of([compressor.claims(n)])
    return layout.views(torch.zeros(layout.bytes, dtype=torch.uint8))[0]


def test_ef21_remembers_nothing_in_the_gradient_s_memory() -> None:
    """The average is written to `.grad`, and the next backward overwrites it."""
    strategy = Strategy.parse("topk(0.5)+ef21 | allgather")
    context = BucketContext(strategy, Bucket((Parameter("w", (4,)),)), 0, 1, {})
    grad, wanted = torch.empty(4), torch.tensor([1.0, 2.0, 3.0, 4.0])
    for step in range(6):
        grad.copy_(wanted)
        context.begin([grad], [grad], StepInfo(step))
        context.accumulate(context.message().view(1, -1).clone())
        context.end(skipped=False)
    assert torch.equal(grad, wanted)


@pytest.mark.parametrize(
    "compressor", [Int8(), Float16(), BFloat16(), Identity(), Sign(scaled=True)], ids=str
)
def test_an_ordinary_step_puts_nothing_aside(compressor: Compressor) -> None:
    """A residual that is tiny beside the gradient, as an exact quantizer's, is no reason to."""
    encoder, state = make_encoder(compressor, ErrorFeedback()), dict[str, Tensor]()
    assert isinstance(encoder, InPlaceEncoder)
    sections = sections_of(compressor, 50_000)
    for step in range(6):
        x = torch.randn(50_000, generator=torch.Generator().manual_seed(step))
        status = new_status()
        encoder.encode(x, state, sections, StepInfo(step), Key(0, step, "w"), status)
        assert not is_raised(status)
        assert [journal.elements for journal in encoder._journals] == [0]
        encoder.release()


def test_the_step_after_one_that_was_taken_back_puts_nothing_aside() -> None:
    """What was known of sizes before still holds."""
    compressor, state = Int8(), dict[str, Tensor]()
    encoder = make_encoder(compressor, ErrorFeedback())
    sections = sections_of(compressor, 5000)
    for step in range(5):
        x = torch.randn(5000, generator=torch.Generator().manual_seed(step))
        encoder.encode(x, state, sections, StepInfo(step), Key(0, step, "w"), new_status())
        assert [journal.elements for journal in encoder._journals] == [0]
        if step == 2:
            encoder.undo(x, state, sections, StepInfo(step))
        encoder.release()


def test_a_residual_without_a_velocity_is_taken_up() -> None:
    """Momentum correction takes the state of an `ef` run, and an undone step restores it."""
    compressor = Int8()
    encoder = make_encoder(compressor, MomentumCorrection(0.9, mask=False))
    state: State = {"residual": torch.ones(300)}
    sections = sections_of(compressor, 300)
    x = torch.randn(300, generator=torch.Generator().manual_seed(0))
    status = new_status()
    encoder.encode(x, state, sections, StepInfo(), Key(0, 0, "w"), status)
    assert not is_raised(status)
    assert set(state) == {"residual", "velocity"}
    encoder.undo(x, state, sections, StepInfo())
    assert set(state) == {"residual"}
    assert torch.allclose(state["residual"], torch.ones(300), atol=1e-5)


def test_an_owner_s_undo_leaves_the_parameter_s_velocity() -> None:
    strategy = Strategy.parse("int8+dgc(mask=False) | alltoall")
    memory: dict[str, State] = {}
    context = BucketContext(strategy, Bucket((Parameter("w", (300,)),)), 0, 1, memory)
    context.begin([torch.ones(300)], [torch.ones(300)], StepInfo(0))
    message = context.reduce(context.scatter().data.clone())
    context.collect(message.view(1, -1).clone())
    context.end(skipped=True)
    assert {"residual", "velocity"} <= set(memory["w"])


def test_a_factor_of_another_rank_is_not_used() -> None:
    memory: dict[str, State] = {"w": {RIGHT_FACTOR: torch.full((30, 2), torch.nan)}}
    strategy = Strategy.parse("powersgd(4)")
    context = BucketContext(strategy, Bucket((Parameter("w", (40, 30)),)), 0, 1, memory)
    result = torch.empty(1200)
    context.begin([torch.ones(1200)], [result], StepInfo(0))
    rounds = strategy.collective.rounds(context)
    move = next(rounds)
    move = rounds.send(move.data.clone())
    with pytest.raises(StopIteration):
        rounds.send(move.data.clone())
    context.end(skipped=False)
    assert torch.allclose(result, torch.ones(1200), atol=1e-4)
    assert memory["w"][RIGHT_FACTOR].shape == (30, 4)

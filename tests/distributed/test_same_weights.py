"""Ranks whose weights differ hear of it: rounding is mended, all else is an error on all ranks."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from ranks import Ranks
from small import fingerprint, from_all, loss_of, raised, small, zero
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import gradwire
from gradwire import LocalSteps
from gradwire.errors import GradwireError, PayloadError, PlanError, UsageError
from gradwire.testing import Corrupt, inject
from gradwire.training.same_weights import bits_of

TOPK = "topk(0.1)+ef | allgather"
WRAPPED: dict[str, Callable[[nn.Module], nn.Module]] = {
    "plain": lambda model: model,
    "ddp": DistributedDataParallel,
}


def step(model: nn.Module, optimizer: torch.optim.Optimizer, number: int) -> None:
    optimizer.zero_grad()
    loss_of(model, number).backward()
    optimizer.step()


def same(model: nn.Module) -> bool:
    own = torch.cat([p.detach().flatten() for p in model.parameters()])
    return len({fingerprint([x]) for x in from_all(own)}) == 1


def told(front: str, spoil: Callable[[nn.Module], None], steps: int = 7) -> tuple[int, str, bool]:
    """Spoils rank 1's weights after the second step. Returns the step that raised, what it said,
    and whether the next one is refused."""
    model = WRAPPED[front](small())
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    handle = gradwire.attach(model, TOPK, check_every=3)
    for number in range(steps):
        try:
            step(model, optimizer, number)
        except PayloadError as error:
            with pytest.raises(UsageError, match="attached again"):
                step(model, optimizer, number)
            handle.detach()
            return number, str(error), True
        if number == 1 and dist.get_rank() == 1:
            spoil(model)
    handle.detach()
    return -1, "", same(model)


@pytest.mark.parametrize("front", ["plain", "ddp"])
def test_a_rank_that_stepped_otherwise_is_named_by_all(three: Ranks, front: str) -> None:
    for number, text, refused in three.run(_told_of_another_step, front):
        assert (number, refused) == (2, True)
        assert "'two.weight' on rank 1 differ, by 0.1" in text
        assert "Load a checkpoint of step 0 or before" in text


def _told_of_another_step(front: str) -> tuple[int, str, bool]:
    def spoil(model: nn.Module) -> None:
        inside: Any = model.module if isinstance(model, DistributedDataParallel) else model
        with torch.no_grad():
            inside.two.weight.mul_(1.1)

    return told(front, spoil)


def _told_of_not_a_number() -> tuple[int, str, bool]:
    def spoil(model: nn.Module) -> None:
        with torch.no_grad():
            model.one.bias[2] = torch.nan

    return told("plain", spoil)


def test_a_rank_with_a_weight_that_is_not_a_number(three: Ranks) -> None:
    for number, text, _ in three.run(_told_of_not_a_number):
        assert number == 2
        assert "by inf of the largest" in text


def _rounded() -> tuple[tuple[int, str, bool], int]:
    def spoil(model: nn.Module) -> None:
        with torch.no_grad():
            for p in model.parameters():
                p.mul_(1.0 + 2e-6)

    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        found = told("plain", spoil)
    return found, sum("That is rounding" in str(w.message) for w in seen)


def test_rounding_is_mended_and_said_once(three: Ranks) -> None:
    for (number, _, equal), said in three.run(_rounded):
        assert (number, equal, said) == (-1, True, 1)


def _a_step_of_the_format(dtype: torch.dtype) -> tuple[bool, int]:
    """Rank 1's largest weight is the next number of the format, after the second step."""
    model = small().to(dtype)
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    handle = gradwire.attach(model, "none | allreduce", check_every=3)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        for number in range(4):
            optimizer.zero_grad()
            x = torch.randn(4, 2, 5, 5, generator=torch.Generator().manual_seed(number))
            model(x.to(dtype)).square().mean().backward()
            optimizer.step()
            if number == 1 and dist.get_rank() == 1:
                weights = model.one.weight.detach().view(-1)
                weights.view(torch.int16)[weights.abs().argmax()] += 1
    handle.detach()
    said = [str(w.message) for w in seen]
    return same(model), sum("That is rounding" in text for text in said)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_rounding_of_16_bit_weights_is_mended(three: Ranks, dtype: torch.dtype) -> None:
    """Their steps are larger than what rounding of fp32 makes."""
    assert three.run(_a_step_of_the_format, dtype) == [(True, 1)] * 3


def _two_bits_of_not_a_number() -> bool:
    def spoil(model: nn.Module) -> None:
        bits: Any = model.one.weight.detach().view(-1).view(torch.int32)  # type: ignore
        bits[3] = -0x400000 if dist.get_rank() == 1 else 0x7FC00000

    model = small()
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    handle = gradwire.attach(model, "none | allreduce", check_every=3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for number in range(4):
            step(model, optimizer, number)
            if number == 1:
                spoil(model)
    handle.detach()
    return same(model)


def test_weights_that_are_not_a_number_on_all_ranks_are_equal(three: Ranks) -> None:
    assert all(three.run(_two_bits_of_not_a_number))


def _own_rate() -> tuple[str, int]:
    """Rank 1 steps by a rate that differs by a millionth; a state of step 40 was loaded before."""
    model = small()
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    handle = gradwire.attach(model, TOPK, check_every=3)
    state: dict[str, Any] = handle.state_dict()
    handle.load_state_dict({**state, "step": 40, "taken": 40})
    optimizer.param_groups[0]["lr"] *= 1.0 + 1e-6 * (dist.get_rank() == 1)
    text = raised(lambda: [step(model, optimizer, number) for number in range(4)], PayloadError)
    handle.detach()
    return text, handle.step


def test_a_rank_with_another_rate_is_told_of_that(three: Ranks) -> None:
    """Weights differ by as little as by rounding, which would be mended again and again."""
    for text, number in three.run(_own_rate):
        assert number == 42
        assert "learning rate of 'conv.weight' is 0.05 on rank 2 and 0.05000005 on rank 1" in text
        assert "Load a checkpoint of step 40 or before" in text


def _told_of_rounding(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[str]:
    """What is said of rounding in four steps, after the first two of which rank 1 rounds."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        for number in range(4):
            step(model, optimizer, number)
            if number == 1 and dist.get_rank() == 1:
                with torch.no_grad():
                    model.get_parameter("one.weight").mul_(1.0 + 2e-6)
    return [str(w.message) for w in seen if "rounding" in str(w.message)]


def _parts_of_an_optimizer() -> tuple[bool, list[str]]:
    """Each rank knows the rates of the parameters that it steps, and no others."""
    model = small()
    optimizer = zero(model, torch.optim.SGD)
    handle = gradwire.attach(model, "none | allreduce", check_every=3)
    said = _told_of_rounding(model, optimizer)
    handle.detach()
    return same(model), said


def test_rates_that_a_rank_does_not_know_are_not_compared(three: Ranks) -> None:
    for equal, said in three.run(_parts_of_an_optimizer):
        assert equal
        assert len(said) == 1


class FindsItsRate(torch.optim.Optimizer):
    """Steps without a rate of its groups, as Adafactor does with lr=None."""

    update_rule = "linear"

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for p in self.param_groups[0]["params"]:
            p.sub_(p.grad, alpha=0.05)


def _without_a_rate(defaults: dict[str, None]) -> tuple[bool, int]:
    """What asks for the rate: the first step, later ones, `flush`, and weights that differ."""
    model = small()
    optimizer = FindsItsRate(model.parameters(), defaults)
    handle = gradwire.attach(model, TOPK, check_every=3)
    _told_of_rounding(model, optimizer)
    optimizer.zero_grad()
    handle.flush()
    optimizer.step()
    handle.detach()
    return same(model), len(handle._check._flushed._averages)


@pytest.mark.parametrize("defaults", [{"lr": None}, {}])
def test_an_optimizer_may_have_no_learning_rate(three: Ranks, defaults: dict[str, None]) -> None:
    assert three.run(_without_a_rate, defaults) == [(True, 0)] * 3


def _flip(data: Tensor) -> None:
    data.view(-1).view(torch.uint8)[-1] ^= 3


def _damaged_on_its_way(move: int) -> tuple[str, str]:
    """Rank 2 receives other numbers in a move than the others do: the type of its error, and the
    text."""
    model = small()
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    handle = gradwire.attach(model, "none | allreduce", lanes=1, check_every=2)
    inject(handle, Corrupt(move, _flip, sent=False), rank=2)
    try:
        for number in range(4):
            step(model, optimizer, number)
    except GradwireError as error:
        return type(error).__name__, str(error)
    finally:
        handle.detach()
    return "", ""


def test_a_number_that_was_damaged_on_its_way(three: Ranks) -> None:
    """No message of `allreduce` has a checksum, and the ranks would go apart for good."""
    for kind, text in three.run(_damaged_on_its_way, 1):
        assert kind == "PayloadError"
        assert "on rank 2 differ" in text, text


def test_a_comparison_that_was_damaged_makes_no_other_moves(three: Ranks) -> None:
    """A rank that alone finds a difference would ask for learning rates alone."""
    *others, (kind, text) = three.run(_damaged_on_its_way, 2)
    assert kind == "PayloadError"
    assert "that of rank 2 is wrong" in text
    assert all(own == "PeerError" and "step 2; rank 2" in says for own, says in others)


def _undisturbed(kind: str) -> bool:
    """Trains with a comparison before each step but the first."""
    model = small()
    optimizer: Any = torch.optim.SGD(model.parameters(), 0.05)
    if kind == "own view":
        optimizer = gradwire.optim.AdamW(model.parameters(), 1e-2)
        made: Any = gradwire.attach(model, "lloyd(2)+adam | alltoall", check_every=1)
    elif kind == "zero":
        optimizer = zero(model, torch.optim.AdamW)
        made = gradwire.attach(model, "bf16 | allreduce", check_every=1)
    elif kind == "local steps":
        made = LocalSteps(model, optimizer, 2, TOPK, check_every=1)
    else:
        made = gradwire.attach(model.to(getattr(torch, kind)), "none | allreduce", check_every=1)
    for _ in range(5):
        optimizer.zero_grad()
        dtype = next(model.parameters()).dtype
        x = torch.randn(4, 2, 5, 5).to(dtype) + dist.get_rank()
        model(x).square().mean().backward()
        optimizer.step()
    if kind == "local steps":
        made.synchronize()
    made.detach()
    return same(model)


@pytest.mark.parametrize("kind", ["own view", "zero", "local steps", "bfloat16", "float64"])
def test_equal_weights_are_not_complained_of(three: Ranks, kind: str) -> None:
    assert all(three.run(_undisturbed, kind))


def _view_is_mended() -> bool:
    """Rounding apart while this rank is at its own view, where its weights are others'."""
    model = small()
    optimizer = gradwire.optim.AdamW(model.parameters(), 1e-2)
    handle = gradwire.attach(model, "lloyd(2)+adam | alltoall", check_every=3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for number in range(5):
            step(model, optimizer, number)
            if number == 1 and dist.get_rank() == 1:
                with torch.no_grad():
                    model.one.weight.mul_(1.0 + 1e-6)
    handle.detach()
    return same(model)


def test_rounding_is_mended_below_an_own_view(three: Ranks) -> None:
    assert all(three.run(_view_is_mended))


def _other_numbers() -> str:
    rank = dist.get_rank()
    return raised(lambda: gradwire.attach(small(), TOPK, check_every=10 + (rank == 1)), PlanError)


def test_all_ranks_compare_at_the_same_steps(three: Ranks) -> None:
    assert all("check_every=1" in text for text in three.run(_other_numbers))


def _refused(value: Any) -> str:
    return raised(lambda: gradwire.attach(small(), TOPK, check_every=value))


@pytest.mark.parametrize("value", [0, -3, "often"])
def test_other_numbers_of_steps_are_refused(three: Ranks, value: Any) -> None:
    assert all("check_every must be" in text for text in three.run(_refused, value))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.uint8])
@pytest.mark.parametrize("n", [0, 1, 7, 8, 37])
@pytest.mark.parametrize("begin", [0, 1])
def test_every_flipped_bit_changes_the_sum(dtype: torch.dtype, n: int, begin: int) -> None:
    room = torch.arange(n + begin).to(dtype)
    x = room[begin:]
    before, raw = int(bits_of(x)), x.view(torch.uint8) if n else x
    for i in range(raw.numel()):
        for bit in range(8):
            raw[i] ^= 1 << bit
            assert int(bits_of(x)) != before
            raw[i] ^= 1 << bit
    assert int(bits_of(x)) == before

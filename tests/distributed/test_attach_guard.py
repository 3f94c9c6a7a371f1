"""The guard in jobs: its dense path is dense training's, it sees harm, and it says nothing
else."""

from __future__ import annotations

import math
import warnings
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from copy import deepcopy
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
import torch.distributed.checkpoint as dcp
from ranks import Ranks
from small import attached, batch, loss_of, raised, small, zero
from torch import nn
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel

import gradwire
from gradwire.runtime.conductor import Conductor
from gradwire.soundness import SoundnessWarning
from gradwire.training import guard
from gradwire.training.optimizer_check import OptimizerCheck
from gradwire.training.session import Session


class Named(torch.optim.Adam):
    """Made of a model, as people do."""

    def __init__(self, model: nn.Module, rate: float) -> None:
        super().__init__(model.parameters(), rate, weight_decay=1e-2, decoupled_weight_decay=True)


class Stepping(Named):
    """With a step of its own, by a constructor of its own: no copy can be made."""

    def step(self, closure: Any = None) -> Any:
        return super().step(closure)


OPTIMIZERS: dict[str, Callable[[nn.Module], torch.optim.Optimizer]] = {
    "sgd": lambda m: torch.optim.SGD(m.parameters(), 0.05, 0.9, weight_decay=1e-3, nesterov=True),
    "plain": lambda m: torch.optim.SGD(m.parameters(), 0.05),
    "ours": lambda m: gradwire.optim.SGD(m.parameters(), 0.05, 0.9),
    "adamw": lambda m: torch.optim.AdamW(m.parameters(), 1e-3, amsgrad=True),
    "fused": lambda m: torch.optim.AdamW(m.parameters(), 1e-3, fused=True),
    "rmsprop": lambda m: torch.optim.RMSprop(m.parameters(), 1e-3, momentum=0.5, centered=True),
    "muon": lambda m: gradwire.optim.Muon.of(m, lr=1e-3),
    "named": lambda m: Named(m, 1e-3),
    "stepping": lambda m: Stepping(m, 1e-3),
    "unknown": lambda m: torch.optim.Adafactor(m.parameters()),
}


def steps(
    model: nn.Module, optimizer: torch.optim.Optimizer, count: int, begin: int = 0,
    clip: float | None = None,
) -> None:  # fmt: skip
    for step in range(begin, begin + count):
        optimizer.param_groups[0]["lr"] *= 0.99
        model.zero_grad()
        loss_of(model, step).backward()
        if clip is not None:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()


def watched(
    plan: str, kind: str, count: int = 10, clip: float | None = None, ddp: bool = False,
    window: int = 8, warm: int = 0,
) -> tuple[list[float | None], list[str]]:  # fmt: skip
    """What the guard measured in windows of `window` steps, and its warnings of harm."""
    warmup = gradwire.Warmup(warm, (1.0,)) if warm else None
    own = small()
    model = DistributedDataParallel(own) if ddp else own
    with (
        warnings.catch_warnings(record=True) as caught,
        patch.object(guard, "WINDOW", window), patch.object(guard, "EVERY", 12),
        attached(model, plan, guard=True, warmup=warmup) as handle,
    ):  # fmt: skip
        warnings.simplefilter("always")
        steps(model, OPTIMIZERS[kind](own), count, clip=clip)
        found = [own.elements for own in handle.guard.apart] if handle.guard else []
    said = [str(w.message) for w in caught if issubclass(w.category, SoundnessWarning)]
    return found, [text for text in said if "does harm in this run" in text]


def watched_strictly(plan: str, kind: str) -> tuple[list[float | None], list[str]]:
    """As `watched`, with a limit at which everything that is not dense does harm."""
    with patch.object(guard, "LIMIT", 1e-6):
        return watched(plan, kind)


@pytest.mark.once
@pytest.mark.parametrize("ddp", [False, True])
@pytest.mark.parametrize("kind", ["sgd", "adamw", "fused", "rmsprop", "muon", "named"])
def test_by_dense_gradients_the_paths_are_one(two: Ranks, kind: str, ddp: bool) -> None:
    """With dense gradients both paths agree to rounding of weights. So they do in a second window,
    which begins amid the optimizer's own state, and with averages that are clipped."""
    for clip in (None, 0.01):
        for found, said in two.run(watched, "none | allreduce", kind, 24, clip, ddp):
            assert found == pytest.approx([0.0, 0.0], abs=2e-3 if clip else 1e-4)
            assert not said


class Scaled(nn.Module):
    """Parameters of a single element: a temperature, as in CLIP, and a matrix."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.matrix = small(), nn.Parameter(torch.ones(1, 1))
        self.scale, self.bias = nn.Parameter(torch.tensor(1.0)), nn.Parameter(torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.inner(x)
        return self.scale * y * self.matrix + self.bias


def of_single_elements(kind: str) -> list[float | None]:
    model = Scaled()
    optimizer = OPTIMIZERS[kind](model)
    with (
        patch.object(guard, "WINDOW", 4), patch.object(guard, "EVERY", 6),
        attached(model, "none | allreduce", guard=True) as handle,
    ):  # fmt: skip
        steps(model, optimizer, 14)
        assert handle.guard is not None
        return [own.elements for own in handle.guard.apart]


@pytest.mark.parametrize("kind", ["sgd", "adamw", "rmsprop"])
def test_a_window_may_begin_late_where_parameters_have_one_element(two: Ranks, kind: str) -> None:
    """Their state has their shape, and their optimizer's counters have none."""
    for found in two.run(of_single_elements, kind):
        assert found == pytest.approx([0.0, 0.0], abs=1e-4)


def test_harm_is_seen_and_said_once(two: Ranks) -> None:
    ranks = two.run(watched, "topk(0.05) | allgather", "sgd")
    (apart,) = ranks[0][0]
    assert ranks[0][0] == ranks[1][0]
    assert apart > guard.LIMIT
    assert [len(said) for _, said in ranks] == [1, 0], "rank 0 speaks"
    assert f"by {apart:.0%} of the distance" in ranks[0][1][0]
    assert "Sound with SGD with momentum is" in ranks[0][1][0]


def test_where_what_is_sound_elsewhere_does_harm_nothing_sparser_is_named(two: Ranks) -> None:
    with_limit = two.run(watched_strictly, "qsgd(4) | alltoall", "sgd")
    ((_, (text,)), (_, silent)) = with_limit
    assert "It is sound with SGD with momentum elsewhere. Sound with any optimizer is" in text
    assert "is 'fp8 | alltoall'" in text
    assert not silent


def test_what_waits_counts_as_done_where_steps_are_linear(two: Ranks) -> None:
    """What arrived and the residual add up to all gradients; the rate falls by a hundredth a
    step."""
    for plan in ("topk(0.01)+ef | allgather", "onebit+ef | alltoall"):
        for (apart,), _ in two.run(watched, plan, "plain"):
            assert apart < 0.02, plan


def test_what_is_late_is_no_harm_to_sgd(two: Ranks) -> None:
    for plan in ("topk(0.05)+ef | allgather", "topk(0.2)+ef | alltoall", "bf16 | allreduce"):
        for (apart,), _ in two.run(watched, plan, "sgd", 42, None, False, 40):
            assert apart < guard.LIMIT, plan
    for (apart,), _ in two.run(watched, "topk(0.01)+ef | allgather", "adamw", 42, None, False, 40):
        assert apart > guard.LIMIT, "but to AdamW"


def test_a_plan_that_keeps_the_momentum_is_watched_from_its_first_step(two: Ranks) -> None:
    for found, said in two.run(watched, "dgc(0.3, mask=False) | allgather", "ours", 24):
        assert len(found) == 1, "what the plan remembers is in no optimizer's state"
        assert found[0] < guard.LIMIT
        assert not said


def test_only_what_steps_by_element_and_can_be_copied_is_watched(two: Ranks) -> None:
    for kind in ("unknown", "stepping"):
        for found, said in two.run(watched, "topk(0.05) | allgather", kind):
            assert found == said == []


def test_after_a_warm_up_the_plan_itself_is_watched(two: Ranks) -> None:
    how = "topk(0.05) | allgather", "sgd"
    for found, _ in two.run(watched, *how, 10, None, False, 8, 3):
        assert found == []
    for (apart,), _ in two.run(watched, *how, 14, None, False, 8, 3):
        assert apart > guard.LIMIT


def clipped_before() -> list[float | None]:
    """attach clips each rank's own gradient, before anything is sent."""
    model = small()
    with (
        patch.object(guard, "WINDOW", 8),
        attached(model, "none | allreduce", guard=True, clip_norm=0.01) as handle,
    ):
        steps(model, OPTIMIZERS["sgd"](model), 10)
        assert handle.guard is not None
        return [own.elements for own in handle.guard.apart]


def test_what_attach_clips_is_no_harm(two: Ranks) -> None:
    for found in two.run(clipped_before):
        assert found == pytest.approx([0.0], abs=1e-4)


def two_optimizers() -> list[float | None]:
    """One of the two optimizers cannot be watched."""
    model = small()
    first = torch.optim.Adafactor([model.one.weight])
    rest = torch.optim.SGD([p for p in model.parameters() if p is not model.one.weight], 0.05)
    with (
        patch.object(guard, "WINDOW", 8),
        attached(model, "none | allreduce", guard=True) as handle,
    ):
        for step in range(10):
            model.zero_grad()
            loss_of(model, step).backward()
            first.step()
            rest.step()
        assert handle.guard is not None
        return [own.elements for own in handle.guard.apart]


def test_of_two_optimizers_the_one_that_can_be_watched_is(two: Ranks) -> None:
    for found in two.run(two_optimizers):
        assert found == pytest.approx([0.0], abs=1e-4)


def partly_used() -> list[float | None]:
    """Rank 1 does not use the last layer, whose gradient comes first on rank 0 and last there."""
    model = small()
    optimizer = OPTIMIZERS["sgd"](model)
    with (
        patch.object(guard, "WINDOW", 8),
        attached(model, "none | allreduce", guard=True) as handle,
    ):
        for step in range(10):
            model.zero_grad()
            if torch.distributed.get_rank() == 0:
                loss_of(model, step).backward()
            else:
                model.one(model.norm(model.conv(batch(step)).flatten(1))).sum().backward()
            optimizer.step()
        assert handle.guard is not None
        return [own.elements for own in handle.guard.apart]


def test_gradients_may_come_in_another_order_on_each_rank(two: Ranks) -> None:
    for found in two.run(partly_used):
        assert found == pytest.approx([0.0], abs=1e-4)


def of_one_optimizer(count: int) -> list[int]:
    """The order in which the checks of so many models are made. Addresses of objects differ
    between ranks."""
    models, order = [nn.Linear(3, 2) for _ in range(count)], []
    rank = torch.distributed.get_rank()
    checked = OptimizerCheck.before_step

    def noted(self: OptimizerCheck, stepping: torch.optim.Optimizer, *args: Any) -> None:
        if stepping is optimizer:  # not a shadow's copy of it
            order.append(sessions.index(self._session))
        checked(self, stepping, *args)

    with ExitStack() as stack:
        sessions, between = [], []
        for model in models:
            handle = stack.enter_context(attached(model, "none | allreduce", guard=True, lanes=1))
            sessions.append(handle._session)
            between.append([object() for _ in range(100 * rank)])
        stack.enter_context(patch.object(OptimizerCheck, "before_step", noted))
        optimizer = torch.optim.SGD([p for m in models for p in m.parameters()], 0.05)
        for model in models:
            model(torch.ones(1, 3)).sum().backward()
        optimizer.step()
    return order


def test_models_of_one_optimizer_are_checked_in_the_order_of_attach(two: Ranks) -> None:
    """Guards may all-reduce then, each in its own group."""
    assert two.run(of_one_optimizer, 6) == [list(range(6))] * 2


def rolled_back(way: str, folder: str, stopped: bool = False) -> tuple[list[float | None], bool]:
    """Weights go back amid a window, and training goes on for longer than a window."""
    model = small()
    optimizer = OPTIMIZERS["plain"](model)
    with (
        patch.object(guard, "WINDOW", 8),
        attached(model, "none | allreduce", guard=True) as handle,
    ):
        assert handle.guard is not None
        if stopped:
            handle.guard.look_from(math.inf)
        steps(model, optimizer, 3)
        weights, state = deepcopy(model.state_dict()), deepcopy(handle.state_dict())
        if way == "checkpoint":
            dcp.save({"gradwire": state}, checkpoint_id=folder)
        steps(model, optimizer, 3, 3)
        model.load_state_dict(weights)
        if way == "state":
            handle.load_state_dict(state)
        elif way == "checkpoint":
            handle.load_checkpoint(folder)
        else:
            handle.reset()
        steps(model, optimizer, 10, 3)
        return [own.elements for own in handle.guard.apart], handle.guard.harmed


@pytest.mark.parametrize("way", ["state", "checkpoint", "reset"])
def test_weights_that_jump_are_no_harm(two: Ranks, tmp_path: Path, way: str) -> None:
    for found, harmed in two.run(rolled_back, way, str(tmp_path)):
        assert found == pytest.approx([0.0], abs=1e-4), "of a window that began after the jump"
        assert not harmed


def no_loss() -> float:
    return 0.0


def meddled(how: str) -> tuple[list[object], bool]:
    """What the guard says where a loop changes weights, or averages, in its own way, or makes the
    gradients of some steps inside them."""
    model = small()
    optimizer = OPTIMIZERS["plain"](model)
    with (
        patch.object(guard, "WINDOW", 6), patch.object(guard, "EVERY", 8),
        attached(model, "none | allreduce", guard=True) as handle,
    ):  # fmt: skip
        for step in range(16):
            model.zero_grad()
            loss_of(model, step).backward()
            if how == "gradients":
                nn.utils.clip_grad_value_(model.parameters(), 1e-4)
            optimizer.step(no_loss if how == "closures" and step % 3 == 2 else None)
            for p in model.parameters() if how == "weights" else ():
                p.data.clamp_(-0.05, 0.05)
        assert handle.guard is not None
        return [*handle.guard.apart], handle.guard.harmed


@pytest.mark.parametrize("how", ["gradients", "weights", "closures"])
def test_what_a_loop_does_by_itself_is_no_harm_of_the_strategy(two: Ranks, how: str) -> None:
    assert two.run(meddled, how) == [([], False)] * 2


def test_a_load_does_not_begin_a_window_while_plans_race(two: Ranks, tmp_path: Path) -> None:
    for way in ("state", "reset"):
        assert two.run(rolled_back, way, str(tmp_path), True) == [([], False)] * 2


def joined(tuned: bool) -> list[float | None]:
    """Rank r has 1 + 3r inputs in a `Join`, amid a window. Then all have the same number. tuned:
    a tuner begins a window there, too."""
    own = small()
    model, optimizer = DistributedDataParallel(own), OPTIMIZERS["plain"](own)
    with (
        patch.object(guard, "WINDOW", 6), patch.object(guard, "EVERY", 8),
        attached(model, "none | allreduce", guard=True) as handle,
    ):  # fmt: skip
        own_guard, session = handle.guard, handle._session
        assert own_guard is not None
        steps(model, optimizer, 3)
        session.before_step = (lambda: own_guard.look_from(session.step)) if tuned else None
        with Join([model]):
            steps(model, optimizer, 1 + 3 * torch.distributed.get_rank(), 3)
        session.before_step = None
        with Join([model], enable=False):
            steps(model, optimizer, 7, 7)
        return [found.elements for found in own_guard.apart]


@pytest.mark.parametrize("tuned", [False, True])
def test_inside_a_join_the_guard_does_not_look(two: Ranks, tuned: bool) -> None:
    """A rank that has left takes no steps, before which the others would wait for it."""
    for found in two.run(joined, tuned):
        assert found == pytest.approx([0.0], abs=1e-4)


def in_parts(
    kind: type, shapes: list[tuple[int, int]], plan: str
) -> list[tuple[float | None, float | None]]:  # fmt: skip
    """Each rank's ZeroRedundancyOptimizer steps some of the matrices, or none."""
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(*shape, bias=False) for shape in shapes))
    optimizer = zero(model, kind)
    with (
        patch.object(guard, "WINDOW", 8), patch.object(guard, "SAMPLE", 20),
        attached(model, plan, guard=True) as handle,
    ):  # fmt: skip
        for step in range(11):
            model.zero_grad()
            model(batch(step).flatten(1)).square().mean().backward()
            optimizer.step()
        assert handle.guard is not None
        return [tuple(own) for own in handle.guard.apart]  # type: ignore[misc]


def test_a_rank_that_steps_nothing_takes_part(two: Ranks) -> None:
    first, second = two.run(in_parts, torch.optim.AdamW, [(50, 6)], "none | allreduce")
    assert first == second == [(pytest.approx(0.0, abs=1e-4), None)]


def test_harm_to_what_one_rank_steps_is_seen_by_all(two: Ranks) -> None:
    first, second = two.run(in_parts, torch.optim.SGD, [(50, 6)], "topk(0.02) | allgather")
    assert first == second
    assert first[0][0] > guard.LIMIT


def test_where_ranks_step_other_matrices_the_smallest_of_all_is_watched(two: Ranks) -> None:
    shapes = [(50, 6), (6, 5)]
    first, second = two.run(in_parts, torch.optim.Muon, shapes, "none | allreduce")
    assert first == second == [(None, pytest.approx(0.0, abs=0.05))]


def spoiled() -> tuple[list[float | None], bool]:
    """The guard, too, skips a step with a NaN at one rank."""
    model = small()
    with (
        patch.object(guard, "WINDOW", 8),
        attached(model, "topk(0.3)+ef | allgather", guard=True) as handle,
    ):
        optimizer = OPTIMIZERS["sgd"](model)
        steps(model, optimizer, 3)
        optimizer.zero_grad()
        loss = loss_of(model, 3)
        (loss * float("nan") if torch.distributed.get_rank() == 1 else loss).backward()
        steps(model, optimizer, 8, 4)
        assert handle.guard is not None
        apart = [own.elements for own in handle.guard.apart]
        return apart, all(bool(p.isfinite().all()) for p in model.parameters())


def test_a_skipped_step_is_no_harm(two: Ranks) -> None:
    for (apart,), finite in two.run(spoiled):
        assert finite
        assert apart < guard.LIMIT


def of_matrices(plan: str, kind: str, count: int = 11) -> list[tuple[float | None, float | None]]:
    """With Muon, the smallest hidden matrix is watched whole."""
    model = small()
    optimizer: torch.optim.Optimizer = torch.optim.Muon([model.one.weight], 1e-2)
    if kind == "ours":
        optimizer = gradwire.optim.Muon.of(model, lr=1e-2)
    with (
        warnings.catch_warnings(),
        patch.object(guard, "WINDOW", 8),
        attached(model, plan, guard=True) as handle,
    ):
        warnings.simplefilter("ignore")
        steps(model, optimizer, count)
        assert handle.guard is not None
        return [tuple(own) for own in handle.guard.apart]  # type: ignore[misc]


@pytest.mark.parametrize("kind", ["ours", "theirs"])
def test_a_matrix_that_muon_steps_is_watched_whole(two: Ranks, kind: str) -> None:
    for ((elements, matrices),) in two.run(of_matrices, "none | allreduce", kind):
        assert elements == (pytest.approx(0.0, abs=1e-4) if kind == "ours" else None)
        assert matrices < 0.05, "an orthogonal step makes much of a rounding"
    for ((_, matrices),) in two.run(of_matrices, "topk(0.05)+ef | allgather", kind):
        assert matrices > guard.LIMIT_OF_MATRICES


def test_what_muon_sends_of_a_matrix_is_watched_from_its_first_step(two: Ranks) -> None:
    for ((elements, matrices),) in two.run(of_matrices, "none+muon | allgather", "ours", 10):
        assert elements < guard.LIMIT
        assert 0 < matrices < guard.LIMIT_OF_MATRICES


def by_local_steps() -> str:
    model = small()
    inner = OPTIMIZERS["sgd"](model)
    return raised(lambda: gradwire.LocalSteps(model, inner, 4, "none | allreduce", guard=True))


def test_local_steps_are_not_watched(two: Ranks) -> None:
    for said in two.run(by_local_steps):
        assert "local steps exchange changes of weights instead. Leave guard out" in said


def disagreeing() -> str:
    try:
        with attached(small(), "bf16 | allreduce", guard=torch.distributed.get_rank() == 0):
            return "attached"
    except gradwire.errors.PlanError as error:
        return str(error)


def test_all_ranks_are_guarded_or_none(two: Ranks) -> None:
    for said in two.run(disagreeing):
        assert "all ranks must attach the same plan" in said


def deliveries(ddp: bool) -> int:
    """The most deliveries of one parameter's gradient, when a lane ends the step while `flush`
    still looks through the last gradients."""
    own = small()
    model = DistributedDataParallel(own) if ddp else own
    counts: Counter[str] = Counter()
    deliver, flush = Session.deliver, Session.flush

    def counted(self: Session, name: str, gradient: torch.Tensor) -> None:
        counts[name] += 1
        deliver(self, name, gradient)

    def late(self: Session, absent: Any) -> None:
        self.conductor._done.wait(60)
        with patch.object(Conductor, "is_over", property(lambda self: False)):
            flush(self, absent)

    with (
        attached(model, "none | allreduce", guard=True),
        patch.object(Session, "deliver", counted), patch.object(Session, "flush", late),
    ):  # fmt: skip
        loss_of(model, 0).backward()
    return max(counts.values())


@pytest.mark.parametrize("ddp", [False, True])
def test_a_gradient_that_has_come_is_not_missed(two: Ranks, ddp: bool) -> None:
    assert two.run(deliveries, ddp) == [1, 1]

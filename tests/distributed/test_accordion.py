"""Accordion: ranks change between two plans together, and no residual is lost."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.distributed as dist
from ranks import Ranks
from small import attached, fingerprint, from_all, gradients
from test_attach_members import Told, slopes
from test_fsdp import joined, loss_of, sharded
from torch import Tensor
from torch.amp import GradScaler

from gradwire import Accordion, Handle
from gradwire.errors import PlanError, UsageError
from gradwire.training.accordion import changed

TOPK = "topk(0.5)+ef | allgather"
SIZES = [1] * 8 + [3] * 10
"""Sizes of the gradients, step by step; all else is equal."""


def phases(text: str, rates: list[float]) -> tuple[list[bool], list[str], float]:
    """What it says after each step, the strategy then, and the largest part of a gradient that is
    still missing after a last dense step."""
    model, world, said, plans = Told(), dist.get_world_size(), list[bool](), list[str]()
    far = {name: torch.zeros(p.shape) for name, p in model.named_parameters()}

    def step(told: dict[str, Tensor]) -> None:
        model.zero_grad()
        model(told).backward()
        for name, mean in gradients(model).items():
            far[name] += sum(from_all(told[name])) - world * mean

    with attached(model, text) as handle:
        accordion = Accordion(handle, 1.0, every=2)
        for size, rate in zip(SIZES, rates):
            step({name: size * x for name, x in slopes(0).items()})
            said.append(accordion.step(rate))
            plans.append(str(handle.plan.main_strategy))
        handle.adopt(accordion._dense)
        step(slopes(1))
    return said, plans, max(float(x.abs().max()) for x in far.values())


def test_ranks_go_up_and_down_together(three: Ranks) -> None:
    constant = [0.1] * len(SIZES)
    (said, plans, missing), *others = three.run(phases, "topk(0.5)+ef | allgather", constant)
    assert said[:3] == [True] * 3, "of two intervals nothing is known"
    assert not any(said[3:9]), "nothing changes"
    assert said[9], "three times as large"
    assert not said[-1], "as before again"
    assert ["topk" in plan for plan in plans] == [not critical for critical in said]
    assert missing < 1e-4
    assert all(other[:2] == (said, plans) for other in others)


def test_a_rate_that_falls_is_critical(two: Ranks) -> None:
    rates = [0.1] * 6 + [0.01] * 12
    (said, _, _), *_ = two.run(phases, "topk(0.5)+ef | allgather", rates)
    assert said[4:8] == [False, False, False, True]


def resumed(steps: int) -> tuple[bool, list[str], list[str]]:
    """Whether the phase was critical after so many steps; the strategies and weights of the steps
    after them, in one run and in one that resumes there."""
    rest = range(steps, len(SIZES))

    def train(model: Told, handle: Handle, accordion: Accordion, numbers: range) -> list[str]:
        optimizer, said = torch.optim.SGD(model.parameters(), 0.1), list[str]()
        for number in numbers:
            optimizer.zero_grad()
            model({name: SIZES[number] * x for name, x in slopes(0).items()}).backward()
            accordion.step(0.1)
            optimizer.step()
            said.append(f"{handle.plan.main_strategy} {fingerprint(model.parameters())}")
        return said

    model = Told()
    with attached(model, TOPK) as handle:
        accordion = Accordion(handle, 1.0, every=2)
        train(model, handle, accordion, range(steps))
        saved = copy.deepcopy((model.state_dict(), accordion.state_dict(), handle.state_dict()))
        was_critical = accordion.is_critical
        wanted = train(model, handle, accordion, rest)
    model = Told()
    model.load_state_dict(saved[0])
    with attached(model, TOPK) as handle:
        accordion = Accordion(handle, 1.0, every=2)
        accordion.load_state_dict(saved[1])
        handle.load_state_dict(saved[2])
        found = train(model, handle, accordion, rest)
    return was_critical, found, wanted


@pytest.mark.parametrize(("steps", "critical"), [(2, True), (8, False), (10, True)])
def test_a_resume_goes_on_bit_by_bit_in_both_phases(
    two: Ranks, steps: int, critical: bool
) -> None:
    one, other = two.run(resumed, steps)
    assert one == other
    was_critical, found, wanted = one
    assert was_critical is critical
    assert found == wanted


@pytest.mark.parametrize(
    ("before", "now", "is_changed"),
    [(1.0, 1.4, False), (1.0, 1.5, True), (1.0, 0.5, True), (1.0, 0.6, False),
     (0.0, 0.0, False), (0.0, 1.0, True), (float("nan"), 1.0, True)],
)  # fmt: skip
def test_what_is_a_change(before: float, now: float, is_changed: bool) -> None:
    assert changed(before, now, 0.5) is is_changed


def scaled(unscales: bool | None) -> list[tuple[bool, float]]:
    """What it says after each step, and the norm that it has then. unscales: whether its step
    comes after `unscale_`; None: there is no GradScaler."""
    model, said = Told(), list[tuple[bool, float]]()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    scaler = GradScaler("cpu", init_scale=4.0, growth_interval=3, enabled=unscales is not None)
    with attached(model, TOPK, optimizer=optimizer, scaler=scaler) as handle:
        accordion = Accordion(handle, 1.0, every=2)
        for _ in range(10):
            optimizer.zero_grad()
            scaler.scale(model(slopes(0))).backward()  # type: ignore[no-untyped-call]
            if unscales:
                scaler.unscale_(optimizer)
            said.append((accordion.step(), accordion.state_dict()["before"]))
            scaler.step(optimizer)
            scaler.update()
    return said[1:]


def test_a_loss_scale_that_grows_is_no_change(two: Ranks) -> None:
    plain, *others = (two.run(scaled, unscales)[0] for unscales in (None, False, True))
    assert not all(critical for critical, _ in plain)
    assert others == [plain, plain]


def parts_of_a_model() -> tuple[list[bool], float, float]:
    """What it says after each step of a sharded model, the norm that it found, and that of the
    averages, whole."""
    model, said, total = sharded(), list[bool](), dict[str, Tensor]()
    with joined(model, "topk(1.0)+ef | allgather", timeout_seconds=20.0) as handle:
        accordion = Accordion(handle, 1.0, every=2)
        for step in range(4):
            model.zero_grad()
            loss_of(model, step).backward()
            for name, p in model.named_parameters():
                total[name] = (total[name] if step % 2 else 0.0) + p.grad.full_tensor()
            said.append(accordion.step())
    whole = torch.cat([x.flatten() for x in total.values()])
    return said, accordion.state_dict()["before"], float(whole.norm())


def test_ranks_that_keep_parts_decide_by_the_whole(four: Ranks) -> None:
    """One of the parameters has a single element, so that some ranks keep none of it."""
    (said, found, wanted), *others = four.run(parts_of_a_model)
    assert found == pytest.approx(wanted, rel=1e-5)
    assert all(other[:2] == (said, found) for other in others)


def refusals() -> list[str]:
    said, model = [], Told()
    with attached(model, "topk(0.1)+ef | allgather", warmup=4) as handle:
        given = ((handle, 1.0, 2), (handle, 1.0, 0), (handle, 1.0, 2, -1.0), (handle, 2.0, 2),
                 (handle, 1.0, 2, "0.5"), (model, 1.0, 2))  # fmt: skip
        for each in given:
            try:
                Accordion(*each)  # type: ignore[arg-type]
            except (UsageError, PlanError) as error:
                said.append(str(error))
    return said


def test_what_it_does_not_take(two: Ranks) -> None:
    (warm, every, eta, density, text, module), *_ = two.run(refusals)
    assert "Attach without warmup=" in warm
    assert "every=0" in every
    assert "eta=-1.0" in eta
    assert "densities must be numbers" in density
    assert "eta='0.5'" in text
    assert "takes the handle that gradwire.attach returned; got a Told" in module


def refused_steps() -> list[str]:
    said, model = [], Told()
    with attached(model, TOPK) as handle:
        accordion = Accordion(handle, 1.0, every=1)
        for rate in ([0.1], "0.1a", None):  # without a gradient
            try:
                accordion.step(rate)  # type: ignore[arg-type]
            except UsageError as error:
                said.append(str(error))
        model(slopes(0)).backward()
        accordion.step(torch.tensor(0.1))  # type: ignore[arg-type]
        said.append(str(accordion.state_dict()["rate"] == pytest.approx(0.1)))
    try:
        accordion.step(0.1)
    except UsageError as error:
        said.append(str(error))
    return said


def test_steps_that_tell_it_nothing_are_refused(two: Ranks) -> None:
    (listed, text, empty, one, detached), *_ = two.run(refused_steps)
    assert "a learning rate must be a number; got [0.1]" in listed
    assert "got '0.1a'" in text
    assert "none had any since its last decision" in empty
    assert one == "True"
    assert "this handle was detached" in detached

"""What training needs of an attached model: decay, warm-up, exclusions, rates, loss scales."""

from __future__ import annotations

import copy
import gc
import math
import warnings
from contextlib import nullcontext
from typing import Any

import pytest
import torch
import torch.distributed as dist
from ranks import Ranks
from small import (
    attached,
    entry,
    fingerprint,
    from_all,
    loss_of,
    raised,
    residuals,
    small,
    train,
    zero,
)
from torch import Tensor, nn
from torch.amp import GradScaler
from torch.nn.parallel import DistributedDataParallel

import gradwire
from gradwire import Plan, Strategy, Warmup
from gradwire.errors import PlanError, UsageError
from gradwire.training.attached import _ATTACHED

DGC = "dgc(0.1) | allgather"


# -- momentum and weight decay -------------------------------------------------------------------


def decayed(plan: str, share: float) -> float:
    """The distance to w -= lr·(u + b), where u and b take `share` of g = 1 and of λ·w."""
    torch.manual_seed(1)
    model = nn.Linear(3, 2)
    w = nn.utils.parameters_to_vector(model.parameters()).detach().double()
    u, b = torch.zeros_like(w), torch.zeros_like(w)
    with attached(model, plan):
        optimizer = gradwire.optim.SGD(model.parameters(), 0.1, 0.9, weight_decay=0.5)
        for _ in range(20):
            optimizer.zero_grad()
            nn.utils.parameters_to_vector(model.parameters()).sum().backward()
            optimizer.step()
            u, b = 0.9 * u + share, 0.9 * b + share * 0.5 * w
            w = w - 0.1 * (u + b)
    found = nn.utils.parameters_to_vector(model.parameters()).detach()
    return float((found - w).abs().max() / w.abs().max())


@pytest.mark.parametrize(
    ("plan", "share"),
    [
        ("none | allreduce", 1.0),
        ("dgc(1.0, mask=False) | allgather", 1.0),
        ("none+momentum | allreduce", 0.1),
        ("none+shared_momentum | allreduce", 0.1),
    ],
)
def test_weight_decay_is_weighted_as_gradients_are(three: Ranks, plan: str, share: float) -> None:
    assert max(three.run(decayed, plan, share)) < 1e-5


def decay_of_torch(plan: str, decay: float) -> list[str]:
    """Warnings in two steps of torch's SGD, which applies its own weight decay."""
    model = small()
    with attached(model, plan), warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        optimizer = torch.optim.SGD(model.parameters(), 0.05, weight_decay=decay)
        for step in range(2):
            loss_of(model, step).backward()
            optimizer.step()
            optimizer.zero_grad()
    return [str(one.message) for one in told if "weight decay" in str(one.message)]


@pytest.mark.parametrize(
    ("plan", "decay", "times"),
    [
        (DGC, 1e-3, 1), (DGC, 0.0, 0), ("topk(0.1)+ef | allgather", 1e-3, 0),
        ("none+shared_momentum | allreduce", 1e-3, 0),
    ],
)  # fmt: skip
def test_weight_decay_outside_the_momentum_is_warned_of(
    three: Ranks, plan: str, decay: float, times: int
) -> None:
    for told in three.run(decay_of_torch, plan, decay):
        assert len(told) == times
        assert all("is 10 times too weak" in said for said in told)


# -- warm-up -------------------------------------------------------------------------------------


def of_another_warm_up() -> list[str]:
    """The errors when states of steps 3 and 7 are loaded under other warm-ups."""
    saved = dict[int, Any]()
    model = small()
    with attached(model, DGC, warmup=Warmup(6, (0.5, 0.15))) as handle:
        for step in range(7):
            train(model, range(step, step + 1))
            saved[step + 1] = copy.deepcopy(handle.state_dict())
    said = []
    for warmup, step in (
        (Warmup(9, (0.5, 0.15)), 3), (Warmup(6, (0.5, 0.2)), 3), (None, 3),
        (Warmup(6, [0.5, 0.15]), 3), (None, 7), (Warmup(9, (0.5, 0.15)), 7),
    ):  # fmt: skip
        with attached(model, DGC, warmup=warmup) as handle:
            try:
                handle.load_state_dict(saved[step])
            except PlanError as error:
                handle.load_state_dict(saved[step], strict=False)
                said.append(str(error))
            else:
                said.append("")
    return said


def test_a_state_goes_on_with_its_warm_up(three: Ranks) -> None:
    for said in three.run(of_another_warm_up):
        longer, denser, none, *fine, begun_again = said
        assert "the same one, Warmup(6, [0.5, 0.15]); got Warmup(9, [0.5, 0.15])" in longer
        assert "got Warmup(6, [0.5, 0.2]), after 3 steps" in denser
        assert "was saved with '" in none or "got none" in none
        assert fine == ["", ""]
        assert begun_again


def warmed_up() -> list[str]:
    """The strategies of a matrix, step by step, and the weights' fingerprint."""
    model, seen = small(), []
    with attached(model, DGC, warmup=Warmup(4, (0.5, 0.15))) as handle:
        for step in range(6):
            train(model, range(step, step + 1))
            seen.append(str(handle.plan.strategy_of("one.weight")))
        kept = {key for values in entry(handle)["state"].values() for key in values}
        assert kept == {"residual", "velocity"}
    return [*seen, fingerprint(model.parameters())]


def test_warm_up_goes_through_its_densities(three: Ranks) -> None:
    """The density 0.5 is above 1/6, so it travels dense, with the momentum that dgc keeps
    later."""
    first, *others = three.run(warmed_up)
    dense = "none+server_momentum | allreduce"
    assert first[:-1] == [dense, dense, *["topk(0.15)+dgc | allgather"] * 2, DGC, DGC]
    assert all(other == first for other in others)


def resumed_in_warm_up(stop: int) -> bool:
    def attach_to(model: nn.Module) -> Any:
        return attached(model, DGC, warmup=Warmup(6, (0.5, 0.15)))

    whole = small()
    optimizer = torch.optim.SGD(whole.parameters(), 0.05)
    with attach_to(whole):
        for step in range(8):
            optimizer.zero_grad()
            loss_of(whole, step).backward()
            optimizer.step()
    model = small()
    saved: Any = None
    for steps in (range(stop), range(stop, 8)):
        optimizer = torch.optim.SGD(model.parameters(), 0.05)
        with attach_to(model) as handle:
            if saved is not None:
                handle.load_state_dict(saved)
            for step in steps:
                optimizer.zero_grad()
                loss_of(model, step).backward()
                optimizer.step()
            saved = handle.state_dict()
    return fingerprint(model.parameters()) == fingerprint(whole.parameters())


@pytest.mark.parametrize("stop", [2, 3, 4, 6, 7])
def test_resume_in_the_middle_of_warm_up(three: Ranks, stop: int) -> None:
    assert three.run(resumed_in_warm_up, stop) == [True] * 3


def refused_options(options: dict[str, Any]) -> str:
    try:
        gradwire.attach(small(), options.pop("plan", DGC), **options)
    except (PlanError, UsageError) as error:
        return str(error)
    return "attached"


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"warmup": 2}, "at least one for each of its 4 densities"),
        ({"warmup": 400, "plan": "signsgd | vote"}, "sends signs without a scale"),
        ({"exclude": ["nobody.*"]}, "'nobody.*' matches none"),
        ({"exclude": [nn.Embedding]}, "'Embedding' matches none"),
        ({"exclude": [nn.Linear], "plan": "auto"}, "Leave them out"),
        ({"exclude": "one.*"}, "Put it in brackets"),
        ({"exclude": nn.Linear}, "Put it in brackets"),
        ({"clip_overlap": True}, "clip_overlap"),
        ({"clip_norm": "1"}, "clip_norm must be a number above 0; got '1'"),
        ({"exclude": None}, "exclude must be a list of names and types; got None"),
        ({"warmup": "4"}, "warmup must be a gradwire.Warmup or its number of steps; got '4'"),
        ({"scaler": True}, "scaler must be the torch.amp.GradScaler of the loss; got True"),
        ({"optimizer": 5}, "optimizer must be one optimizer, or its name; got 5"),
        ({"optimizer": torch.optim.SGD}, "optimizer must be one optimizer, or its name; got <cl"),
        ({"plan": None}, "path; got None. Use for example 'topk(0.01)+ef | allgather'."),
        (
            {"plan": torch.optim.SGD([torch.zeros(1)])},
            "got SGD(…). Use for example 'topk(0.01)+ef | allgather', and pass the optimizer as",
        ),
        ({"plan": "auto", "strategies": "bf16 | allreduce"}, "for example ['bf16 | allreduce']"),
        ({"buckets": 5}, "buckets must be a list of lists of names; got 5"),
        ({"seed": "0"}, "seed must be a whole number of at most 64 bits; got '0'"),
        ({"seed": 1 << 64}, "seed must be a whole number"),
        ({"lanes": 1.5}, "lanes must be a whole number above 0; got 1.5"),
        ({"check_every": 0.5}, "check_every must be a whole number above 0; got 0.5"),
        ({"timeout_seconds": None}, "timeout_seconds must be a number above 0; got None"),
        ({"timeout_seconds": float("inf")}, "timeout_seconds must be a number above 0; got inf"),
        ({"bucket_bytes": "25MB"}, "bucket_bytes must be a number of bytes above 0; got '25MB'"),
    ],
)
def test_what_is_refused_is_refused_everywhere(
    three: Ranks, options: dict[str, Any], says: str
) -> None:
    for said in three.run(refused_options, options):
        assert says in said


# -- exclusions ----------------------------------------------------------------------------------


def excluded(ddp: bool) -> dict[str, str]:
    model = small()
    module = DistributedDataParallel(model) if ddp else model
    with attached(module, DGC, exclude=["two.*", nn.Conv2d]) as handle:
        train(module, range(2))
        return {n: str(handle.plan.strategy_of(n)) for n, _ in model.named_parameters()}


@pytest.mark.parametrize("ddp", [False, True])
def test_exclusions_by_name_and_type_travel_dense(three: Ranks, ddp: bool) -> None:
    found, *_ = three.run(excluded, ddp)
    compressed = {name for name, strategy in found.items() if strategy == DGC}
    assert compressed == {"one.weight"}
    assert {found[n] for n in found if n not in compressed} == {"none+server_momentum | allreduce"}


def everything_inside() -> set[str]:
    model = small()
    with attached(model, DGC, exclude=[type(model)]) as handle:
        return {str(handle.plan.strategy_of(n)) for n, _ in model.named_parameters()}


def tied() -> set[str]:
    """An embedding whose table another kind of module had first."""
    model = nn.ModuleDict({"scores": nn.Linear(8, 30, bias=False), "symbols": nn.Embedding(30, 8)})
    model["symbols"].weight = model["scores"].weight
    with attached(model, DGC, exclude=[nn.Embedding]) as handle:
        return {str(handle.plan.strategy_of(n)) for n, _ in model.named_parameters()}


def test_a_type_means_what_it_shares_with_others(three: Ranks) -> None:
    assert three.run(tied) == [{"none+server_momentum | allreduce"}] * 3


def test_a_type_means_all_that_is_inside(three: Ranks) -> None:
    assert three.run(everything_inside) == [{"none+server_momentum | allreduce"}] * 3


def beside_a_plan(options: dict[str, Any]) -> str:
    model = small()
    with attached(model, DGC) as handle:
        plan = handle.plan
    return refused_options({"plan": plan, **options})


def test_a_plan_says_itself_what_is_dense(three: Ranks) -> None:
    found = three.run(beside_a_plan, {"exclude": ["one.weight"]})
    assert all("a Plan already decides" in said for said in found)


def test_a_plan_has_its_own_buckets(three: Ranks) -> None:
    found = three.run(beside_a_plan, {"buckets": [["one.weight"]]})
    assert all("a Plan already has its buckets" in said for said in found)


def names_compiled() -> set[str]:
    """The names in the state of a model under torch.compile and DDP."""
    model = DistributedDataParallel(torch.compile(small(), backend="eager"))
    with attached(model, "topk(0.1)+ef | allgather", exclude=["one.*"]) as handle:
        assert str(handle.plan.strategy_of("one.weight")) == "none | allreduce"
        return set(entry(handle)["state"])


def test_names_are_the_models_own_under_ddp_and_compile(three: Ranks) -> None:
    assert three.run(names_compiled) == [{n for n, _ in small().named_parameters()}] * 3


def compiled_in_part(name: str) -> tuple[set[str], list[str], bool]:
    """The names in the state of a model with a part that was compiled by itself, those that are
    sent whole, and whether a model that is not compiled goes on from the state."""
    states = list[Any]()
    for compiles in (True, False):
        model = small()
        if compiles:
            model.one = torch.compile(model.one, backend="eager")
        optimizer = torch.optim.SGD(model.parameters(), 0.05)
        with attached(model, "topk(0.1)+ef | allgather", exclude=[name]) as handle:
            for state in states:
                handle.load_state_dict(state)
            plan = handle.plan
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", message="The .grad attribute")  # the compiler's
                loss_of(model).backward()
            optimizer.step()
            states += [copy.deepcopy(handle.state_dict())]
    names = [n for b in plan.buckets for n in b.names if plan.strategy_of(n).feedback is None]
    return set(states[0]["ranks"][f"{dist.get_rank()}"]["state"]), names, states[1]["step"] == 2


@pytest.mark.parametrize("name", ["one.weight", "one._orig_mod.weight"])
def test_names_are_the_models_own_where_a_part_is_compiled(three: Ranks, name: str) -> None:
    for names, whole, goes_on in three.run(compiled_in_part, name):
        assert names == {n for n, _ in small().named_parameters()}
        assert "one.weight" in whole
        assert "two.weight" not in whole
        assert goes_on


def renamed(state: Any) -> Any:
    """A state with the names that a compiled part had in states of former versions."""
    if isinstance(state, dict):
        return {renamed(key): renamed(value) for key, value in state.items()}
    if isinstance(state, list):
        return [renamed(one) for one in state]
    return state.replace("one.", "one._orig_mod.") if isinstance(state, str) else state


def of_a_former_version() -> float:
    model = small()
    with attached(model, "topk(0.1)+ef | allgather") as handle:
        loss_of(model).backward()
        torch.optim.SGD(model.parameters(), 0.05).step()
        then, state = residuals(handle), copy.deepcopy(renamed(handle.state_dict()))
        handle.reset()
        handle.load_state_dict(state)
        now = residuals(handle)
        return max(float((now[name] - x).abs().max()) for name, x in then.items())


def test_a_state_of_a_compiled_part_goes_on(three: Ranks) -> None:
    assert three.run(of_a_former_version) == [0.0] * 3


# -- learning rates ------------------------------------------------------------------------------


def after_a_cut(kind: str, strategy: str) -> tuple[float, float]:
    """The factor by which a step at a fifth of the rate multiplies residuals, and the rate that
    the state names."""
    model = small()
    optimizer: Any = {
        "torch": lambda: torch.optim.SGD(model.parameters(), 0.05),
        "ours": lambda: gradwire.optim.SGD(model.parameters(), 0.05, momentum=0.9),
        "adam": lambda: torch.optim.AdamW(model.parameters(), 0.05),
        "zero": lambda: zero(model, torch.optim.SGD),
        "zero-ours": lambda: zero(model, gradwire.optim.SGD, momentum=0.9),
        "two": lambda: torch.optim.SGD(
            [{"params": model.one.parameters()}, {"params": model.conv.parameters(), "lr": 0.1}],
            0.05,
        ),
    }[kind]()
    with attached(model, strategy) as handle:
        loss_of(model).backward()
        optimizer.step()
        before = residuals(handle)["one.weight"]
        for group in optimizer.param_groups:
            group["lr"] /= 5
        optimizer.step()
        after = residuals(handle)["one.weight"]
        rates = entry(handle).get("rates", {})
    largest = before.abs().argmax()
    (said,) = [float(rate) for rate in rates if "one.weight" in rates[rate]] or [0.0]
    return float(after.view(-1)[largest] / before.view(-1)[largest]), said


@pytest.mark.parametrize(
    ("kind", "strategy"),
    [
        ("ours", DGC), ("ours", "onebit+ef | alltoall"), ("torch", "topk(0.1)+ef | gtopk"),
        ("two", "powersgd(2)"), ("zero", "topk(0.1)+ef | allgather"),
        ("zero-ours", DGC),
    ],
)  # fmt: skip
def test_what_waits_keeps_its_rate(three: Ranks, kind: str, strategy: str) -> None:
    for factor, said in three.run(after_a_cut, kind, strategy):
        assert factor == pytest.approx(5.0)
        assert said == pytest.approx(0.01)


def by_closure(model: nn.Module, optimizer: torch.optim.Optimizer, steps: range) -> None:
    """Backward runs inside the step, as in Lightning, at a rate that falls in each step."""
    for step in steps:

        def closure(step: int = step) -> Tensor:
            optimizer.zero_grad()
            loss = loss_of(model, step)
            loss.backward()
            return loss

        optimizer.param_groups[0]["lr"] = 0.1 * 0.7**step
        optimizer.step(closure)


def resumed_by_closure() -> bool:
    found = []
    for stop in (0, 3):
        model, plan = small(), "topk(0.1)+ef | allgather"
        state: Any = None
        for steps in (range(stop), range(stop, 6)):
            optimizer = torch.optim.SGD(model.parameters(), 0.1)
            with attached(model, plan) as handle:
                if state is not None and stop:
                    handle.load_state_dict(state)
                by_closure(model, optimizer, steps)
                state = copy.deepcopy(handle.state_dict())
        found.append(fingerprint(model.parameters()))
    return found[0] == found[1]


def test_resume_where_the_step_runs_backward(three: Ranks) -> None:
    assert all(three.run(resumed_by_closure))


def without_a_handle() -> tuple[float, str]:
    """Attaches in one line, without keeping the handle."""
    model = small()
    gradwire.attach(model, "topk(0.1)+ef | allgather", timeout_seconds=20.0)
    gc.collect()
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    loss_of(model).backward()
    optimizer.step()
    session = _ATTACHED[model.one.weight].session
    other = small()
    gradwire.attach(other, DGC, timeout_seconds=20.0)
    gc.collect()
    loss_of(other).backward()
    try:
        torch.optim.SGD(other.parameters(), 0.05, momentum=0.9).step()
    except UsageError as error:
        return session.rates.units["one.weight"], str(error)
    return session.rates.units["one.weight"], ""


def test_the_optimizer_is_watched_though_the_handle_is_gone(three: Ranks) -> None:
    for rate, error in three.run(without_a_handle):
        assert rate == 0.05
        assert "keeps the momentum itself" in error


def later_momentum() -> str:
    """A momentum that OneCycleLR sets by default."""
    model = small()
    with attached(model, DGC):
        optimizer = torch.optim.SGD(model.parameters(), 0.05)
        loss_of(model).backward()
        optimizer.step()
        torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=9)
        return raised(optimizer.step)


def test_a_momentum_that_comes_later_is_seen(three: Ranks) -> None:
    assert all("keeps the momentum itself" in said for said in three.run(later_momentum))


def unfrozen(ddp: bool, with_others: bool) -> str:
    """A layer that was frozen when attached trains from the second step on; then it is attached
    anew."""
    model: Any = small()
    model.two.requires_grad_(False)
    attach_to = DistributedDataParallel(model) if ddp else model
    with attached(attach_to, "topk(0.1)+ef | allgather"):
        optimizer = torch.optim.SGD(model.one.parameters(), 0.05)
        loss_of(attach_to).backward()
        optimizer.step()
        model.two.requires_grad_(True)
        if with_others:
            optimizer.add_param_group({"params": list(model.two.parameters())})
        else:
            optimizer = torch.optim.SGD(model.two.parameters(), 0.05)
        model.zero_grad()
        loss_of(attach_to, 1).backward()
        said = raised(optimizer.step)
        if not ddp:
            step_with_its_own_handle(model, optimizer)
    anew = DistributedDataParallel(model) if ddp else model
    with attached(anew, "none | allreduce"):
        loss_of(anew, 2).backward()
        optimizer.step()
    return said


def step_with_its_own_handle(model: Any, optimizer: torch.optim.Optimizer) -> None:
    with attached(model.two, "none | allreduce"):
        model.zero_grad()
        loss_of(model, 1).backward()
        assert len({fingerprint([x]) for x in from_all(model.two.weight.grad)}) == 1
        optimizer.step()
        model.zero_grad()


@pytest.mark.parametrize("with_others", [False, True])
@pytest.mark.parametrize("ddp", [False, True])
def test_what_was_frozen_when_attached_is_not_stepped(
    three: Ranks, ddp: bool, with_others: bool
) -> None:
    for said in three.run(unfrozen, ddp, with_others):
        assert "'two.weight' was frozen then" in said


def test_adam_divides_by_what_it_has_seen(three: Ranks) -> None:
    assert three.run(after_a_cut, "adam", "topk(0.1)+ef | allgather") == [(1.0, 0.0)] * 3


# -- loss scales ---------------------------------------------------------------------------------


def with_scaler(strategy: str, bad_step: int, **options: Any) -> tuple[float, float]:
    """The distance from training without a scaler, though the scale doubles every second step and
    halves at a bad one; and the last scale."""

    def run(scaler: GradScaler | None) -> Tensor:
        model = small()
        optimizer = gradwire.optim.SGD(model.parameters(), 0.05, momentum=0.9)
        with attached(model, strategy, scaler=scaler, **options):
            for step in range(8):
                is_bad = step == bad_step
                if is_bad and scaler is None:
                    continue
                loss = loss_of(model, step if step < bad_step else step - 1)
                if is_bad and dist.get_rank() == 1:
                    loss = loss * math.inf
                optimizer.zero_grad()
                if scaler is None:
                    loss.backward()
                    optimizer.step()
                else:
                    scaler.scale(loss).backward()
                    scaler.step(optimizer)
                    scaler.update()
        return torch.cat([p.detach().flatten() for p in model.parameters()])

    scaler = GradScaler("cpu", init_scale=256.0, growth_interval=2)
    apart = float((run(None) - run(scaler)).abs().max())
    return apart, float(scaler.get_scale())


@pytest.mark.parametrize(
    "strategy",
    [
        DGC, "topk(0.1)+ef | allgather", "topk(0.1)+ef | gtopk", "topk(0.2)+ef21 | allgather",
        "sign | vote", "signum(0.9) | vote", "sign+ef | alltoall",
    ],
)  # fmt: skip
def test_residuals_follow_the_loss_scale(three: Ranks, strategy: str) -> None:
    """Scales are powers of two, so the bits are those of training without a scaler. Signs arrive
    with the scale, which the scaler takes out."""
    for apart, scale in three.run(with_scaler, strategy, 99):
        assert apart == 0.0
        assert scale == 4096.0
    for apart, scale in three.run(with_scaler, strategy, 5):  # undone to rounding
        assert apart < 1e-6
        assert scale == 1024.0


def clipped_with_scaler(overlap: bool) -> tuple[float, float]:
    return with_scaler(DGC, 99, clip_norm=1e-2, clip_overlap=overlap)


@pytest.mark.parametrize("overlap", [False, True])
def test_clipping_is_of_the_unscaled_gradient(three: Ranks, overlap: bool) -> None:
    for apart, scale in three.run(clipped_with_scaler, overlap):
        assert apart < 1e-7
        assert scale == 4096.0


def resumed_with_scaler() -> bool:
    """The loss scale of residuals is saved with them."""
    fingerprints = []
    for stop in (8, 5):
        model = small()
        optimizer = torch.optim.SGD(model.parameters(), 0.05)
        scaler = GradScaler("cpu", init_scale=256.0, growth_interval=2)
        saved: Any = None
        for steps in (range(stop), range(stop, 8)):
            with attached(model, "topk(0.1)+ef | allgather", scaler=scaler) as handle:
                if saved is not None:
                    handle.load_state_dict(saved)
                for step in steps:
                    optimizer.zero_grad()
                    scaler.scale(loss_of(model, step)).backward()
                    scaler.step(optimizer)
                    scaler.update()
                saved = handle.state_dict()
        fingerprints.append(fingerprint(model.parameters()))
    return fingerprints[0] == fingerprints[1]


def test_resume_with_a_scaler(three: Ranks) -> None:
    assert three.run(resumed_with_scaler) == [True] * 3


def untold(strategy: str) -> str:
    model, scaler = small(), GradScaler("cpu")
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    with attached(model, strategy):
        scaler.scale(loss_of(model)).backward()
        try:
            scaler.step(optimizer)
        except UsageError as error:
            return str(error)
    return "stepped"


@pytest.mark.parametrize("strategy", ["topk(0.1)+ef | allgather", "sign | vote"])
def test_a_scaler_that_attach_was_not_told_of(three: Ranks, strategy: str) -> None:
    assert all("scaler=scaler" in said for said in three.run(untold, strategy))


def unscaled_by_nobody() -> str:
    model, scaler = small(), GradScaler("cpu")
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    with attached(model, "sign | vote", scaler=scaler):
        scaler.scale(loss_of(model)).backward()
        return raised(optimizer.step)


def test_directions_are_unscaled_by_the_scaler(three: Ranks) -> None:
    assert all("Step by scaler.step(optimizer)" in said for said in three.run(unscaled_by_nobody))


# -- another plan than it was saved with ---------------------------------------------------------


def other_density(strict: bool) -> str:
    model = small()
    with attached(model, "topk(0.1)+ef | allgather") as handle:
        optimizer = torch.optim.SGD(model.parameters(), 0.05)
        loss_of(model).backward()
        optimizer.step()
        saved: Any = handle.state_dict()
        kept = {n: x.clone() for n, x in residuals(handle).items()}
    with attached(small(), "topk(0.2)+ef | allgather") as handle:
        try:
            handle.load_state_dict(saved, strict=strict)
        except PlanError as error:
            return str(error)
        for name, x in residuals(handle).items():
            assert torch.equal(x.view_as(kept[name]), kept[name])
        return f"step {handle.state_dict()['step']}"


def test_another_density_is_refused_or_gone_on_with(three: Ranks) -> None:
    for said in three.run(other_density, True):
        assert "saved with 'topk(0.1)+ef | allgather'" in said
        assert "strict=False" in said
    assert three.run(other_density, False) == ["step 1"] * 3


def own_optimizer(momentum: float, plan: str = DGC, nesterov: bool = False) -> str:
    model = small()
    options: dict[str, Any] = {"momentum": momentum, "nesterov": nesterov}
    optimizer = gradwire.optim.SGD(model.parameters(), 0.05, **options)
    with attached(model, plan):
        loss_of(model).backward()
        try:
            optimizer.step()
        except UsageError as error:
            return str(error)
    return "stepped"


def test_momentum_is_the_plans(three: Ranks) -> None:
    assert three.run(own_optimizer, 0.9) == ["stepped"] * 3
    assert all("Make them equal" in said for said in three.run(own_optimizer, 0.5))
    for said in three.run(own_optimizer, 0.9, "topk(0.1)+momentum(0.9) | allgather", True):
        assert "give the optimizer momentum=0.9, nesterov=False" in said


def mixed() -> bool:
    """A plan of dgc for one bucket and dense for others: each parameter has its momentum once."""
    model, twin = small(), small()
    with attached(model, DGC) as probe:
        buckets = probe.plan.buckets
    whole = Plan(
        buckets,
        tuple(
            Strategy.parse(
                "dgc(1.0, mask=False) | allgather"
                if "one.weight" in b.names
                else "none | allreduce"
            )
            for b in buckets
        ),
    )
    ours = gradwire.optim.SGD(model.parameters(), 0.05, momentum=0.9, weight_decay=1e-2)
    theirs = torch.optim.SGD(twin.parameters(), 0.05, momentum=0.9, weight_decay=1e-2)
    with attached(model, whole), attached(twin, "none | allreduce"):
        for step in range(5):
            for net, optimizer in ((model, ours), (twin, theirs)):
                optimizer.zero_grad()
                loss_of(net, step).backward()
                optimizer.step()
    apart = [float((a - b).detach().abs().max())
             for a, b in zip(model.parameters(), twin.parameters())]  # fmt: skip
    return max(apart) < 1e-6


def test_each_parameter_has_its_momentum_once(three: Ranks) -> None:
    assert all(three.run(mixed))


def autocast(ddp: bool) -> bool:
    """Forward in bfloat16, accumulated, clipped after the exchange: the same on all ranks, and
    fp32."""
    model = small()
    net = DistributedDataParallel(model) if ddp else model
    optimizer = torch.optim.AdamW(model.parameters(), 0.01)
    with attached(net, "topk(0.1)+ef | allgather") as handle:
        first = loss_of(model).item()
        for _ in range(20):
            optimizer.zero_grad()
            for part in range(2):
                with handle.no_sync() if part == 0 else nullcontext():
                    with torch.autocast("cpu", torch.bfloat16):
                        loss = loss_of(net, part)
                    loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            assert all(p.grad is not None and p.grad.dtype == p.dtype for p in model.parameters())
            optimizer.step()
        assert handle.stats()["steps"] == 20
        flat = torch.cat([p.detach().flatten() for p in model.parameters()])
        equal = len({fingerprint([x]) for x in from_all(flat)}) == 1
        return equal and loss_of(model).item() < first


@pytest.mark.parametrize("ddp", [False, True])
def test_autocast_accumulation_and_clipping(three: Ranks, ddp: bool) -> None:
    assert all(three.run(autocast, ddp))

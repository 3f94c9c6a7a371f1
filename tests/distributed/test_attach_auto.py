"""plan="auto": every rank comes to the same plan, whatever the loop around the model does."""

from __future__ import annotations

import functools
import os
import warnings
from pathlib import Path
from statistics import median
from typing import Any
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist
from ranks import Ranks
from small import attached, brief, fingerprint, gradients, loss_of, small, won_by
from torch.nn.parallel import DistributedDataParallel

import gradwire
from gradwire import Plan, Strategy
from gradwire.errors import PlanError, StrategyError, UsageError
from gradwire.planner.candidates import timeline_of
from gradwire.planner.profile import Profile
from gradwire.training import guard
from gradwire.tuning import auto
from gradwire.tuning.profiling import OF_TABLES
from suites import first

STRATEGIES = ["topk(0.1)+ef | allgather", "int8+ef | alltoall"]
PATIENCE = 4000  # steps: three races of twenty rounds


@brief()
def settled(ddp: bool, loop: str) -> tuple[Any, ...]:
    """The plan and profile that were found, and fingerprints of the model's gradients and
    weights."""
    module = small()
    model = DistributedDataParallel(module) if ddp else module
    handle: Any = gradwire.attach(model, "auto", strategies=STRATEGIES)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    step = 0
    while not handle.tuner.is_settled and step < PATIENCE:
        if loop == "evaluates":
            with torch.no_grad():
                loss_of(model, step)
        optimizer.zero_grad()
        if loop == "accumulates":
            with handle.no_sync():
                loss_of(model, step).backward()
        loss_of(model, step).backward()
        optimizer.step()
        step += 1
    optimizer.zero_grad()
    loss_of(model, step).backward()
    found = gradients(model)
    plan, profile = handle.plan, handle.tuner.profile
    off = median(
        median(seconds) - timeline_of(profile, raced).iteration_seconds
        for raced, seconds in handle.tuner.raced
    )
    assert abs(off) < 1e-9 or profile.around_seconds == 0.0, "the profile knows the race"
    handle.detach()
    names = sorted(p.name for bucket in plan.buckets for p in bucket.parameters)
    return (
        step < PATIENCE, plan.digest(), plan.to_json(), names, profile.to_json(),
        fingerprint(found.values()), fingerprint(module.parameters()),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("loop", "ddp"),
    first(
        [("plain", False), ("accumulates", True), ("plain", True), ("accumulates", False),
         ("evaluates", False), ("evaluates", True)], 2,
    ),
)  # fmt: skip
def test_ranks_settle_on_one_plan(two: Ranks, ddp: bool, loop: str) -> None:
    first, other = two.run(settled, ddp, loop)
    assert first == other, "plans, profiles, gradients and weights are the same to the bit"
    is_settled, digest, text, names, *_ = first
    assert is_settled
    plan = Plan.from_json(text)
    assert plan.digest() == digest
    assert names == sorted(name for name, _ in small().named_parameters())
    known = {"none | allreduce", "bf16 | allreduce", *STRATEGIES}
    assert {str(s) for s in plan.strategies} <= known


def resumed_from(path: str) -> str:
    """The digest of a plan that was found and saved, as another run attaches it."""
    handle = gradwire.attach(small(), path)
    digest = handle.plan.digest()
    handle.detach()
    return f"{digest}"


@pytest.mark.full
def test_a_found_plan_is_a_plan(two: Ranks, tmp_path: Path) -> None:
    _, digest, text, *_ = two.run(settled, False, "plain")[0]
    path = tmp_path / "plan.json"
    path.write_text(text)
    assert two.run(resumed_from, str(path)) == [f"{digest}"] * 2


@brief()
def on_machines(machine_of: tuple[int, ...], strategy: str) -> str:
    """What was found or refused, where `machine_of` numbers each rank's machine."""
    with patch.dict(os.environ, GROUP_RANK=str(machine_of[dist.get_rank()])):
        return on_this_machine(strategy)


def on_this_machine(strategy: str) -> str:
    try:
        model = small()
        optimizer: Any = "sgd"
        if "adam" in strategy:
            optimizer = gradwire.optim.AdamW(model.parameters())
        handle: Any = gradwire.attach(model, "auto", strategies=[strategy], optimizer=optimizer)
    except PlanError as error:
        return f"refused: {error}"
    for step in range(PATIENCE):
        model.zero_grad()
        loss_of(model, step).backward()
        if handle.tuner.is_settled:
            break
    parameters = list(handle.tuner.profile.parameters)
    handle.adopt(Plan.make(parameters, Strategy.parse(strategy)))
    model.zero_grad()
    loss_of(model, 0).backward()
    profile = handle.tuner.profile
    handle.detach()
    said = f"{profile.cost(strategy).bytes(1e6) > 0} {fingerprint(gradients(model).values())}"
    return f"{said} {profile.to_json()}"


@pytest.mark.full
def test_strategies_that_sum_inside_machines_are_candidates(four: Ranks) -> None:
    first, *others = four.run(on_machines, (0, 0, 1, 1), "topk(0.1)+ef | hierarchical")
    assert first.startswith("True ")
    assert others == [first] * 3
    hosts = Profile.from_json(first.split(" ", 2)[2]).hosts
    assert hosts[0] == hosts[1] != hosts[2] == hosts[3], "as the strategies were measured"


@pytest.mark.parametrize(
    ("machine_of", "strategy", "facts"),
    [
        ((0, 0, 0, 1), "topk(0.1)+ef | hierarchical", "unequally many ranks"),
        ((0, 0, 1, 1), "topk(0.1)+ef | hierarchical(per_node=2)", "2 ranks each"),
        ((0, 0, 1, 1), "lloyd(2)+adam | hierarchical", "steps that wait under 'adam"),
    ],
)
def test_machines_that_do_not_fit_are_named(
    four: Ranks, machine_of: tuple[int, ...], strategy: str, facts: str
) -> None:
    for said in four.run(on_machines, machine_of, strategy):
        assert said.startswith("refused: ")
        assert facts in said


def steps_of(model: Any, steps: range) -> None:
    for step in steps:
        model.zero_grad()
        loss_of(model, step).backward()


def stepped(model: Any, optimizer: torch.optim.Optimizer, steps: range) -> None:
    for step in steps:
        steps_of(model, range(step, step + 1))
        optimizer.step()


def resumed_amid_a_race() -> None:
    """A state that is saved while a plan keeps parts of parameters loads in a run that begins
    anew."""
    os.environ["GROUP_RANK"] = str(dist.get_rank() // 2)
    strategy = "topk(0.1)+ef | hierarchical"
    try:
        model = small()
        handle: Any = gradwire.attach(model, "auto", strategies=[strategy])
        parameters = [p for bucket in handle.plan.buckets for p in bucket.parameters]
        handle.adopt(Plan.make(parameters, Strategy.parse(strategy)))
        steps_of(model, range(3))
        waits, saved = handle._session.ledger.waiting(), handle.state_dict()
        handle.detach()
        assert any(x.any() for x in waits.values()), "something waits in residuals"
        for plan, given in (("auto", {"strategies": [strategy]}), (strategy, {})):
            other: Any = gradwire.attach(small(), plan, **given)
            other.load_state_dict(saved)
            assert other.state_dict()["step"] == 3
            found = other._session.ledger.waiting()
            assert all(torch.equal(found[name], waits[name]) for name in waits)
            other.detach()
    finally:
        del os.environ["GROUP_RANK"]


def test_what_is_saved_loads_whatever_plan_is_in_force(four: Ranks) -> None:
    four.run(resumed_amid_a_race)


def adopted_by_hand() -> int:
    """How many windows the guard has watched since."""
    model = small()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with patch.object(guard, "WINDOW", 4):
        handle: Any = gradwire.attach(model, "auto", strategies=STRATEGIES)
        stepped(model, optimizer, range(2))
        parameters = [p for bucket in handle.plan.buckets for p in bucket.parameters]
        plan = Plan.make(parameters, Strategy.parse(STRATEGIES[0]))
        handle.adopt(plan)
        stepped(model, optimizer, range(2, 32))
    assert handle.plan.digest() == plan.digest()
    assert handle.tuner.profile is None, "nothing was measured"
    windows = len(handle.guard.apart)
    handle.detach()
    return windows


def test_a_plan_that_is_adopted_by_hand_stays_and_is_guarded(two: Ranks) -> None:
    assert two.run(adopted_by_hand) == [1, 1]


@brief()
def clipped() -> None:
    model = small()
    handle: Any = gradwire.attach(model, "auto", strategies=[STRATEGIES[0]], clip_norm=1.0)
    for step in range(PATIENCE):
        steps_of(model, range(step, step + 1))
        if handle.tuner.profile is not None:
            break
    profile = handle.tuner.profile
    assert {r.seconds for r in profile.ready} == {profile.backward_seconds}
    handle.detach()


def test_where_gradients_are_clipped_nothing_begins_before_backward_ends(two: Ranks) -> None:
    two.run(clipped)


def accumulated() -> str:
    """Accumulates on top of averages, which the strategies that are tried later do not allow."""
    model = small()
    handle: Any = gradwire.attach(model, "auto", strategies=STRATEGIES)
    try:
        loss_of(model, 0).backward()
        loss_of(model, 1).backward()
    except UsageError as error:
        return str(error)
    finally:
        handle.detach()
    return "accumulated"


def test_accumulation_without_no_sync_is_refused_from_the_first_step(two: Ranks) -> None:
    for said in two.run(accumulated):
        assert "no_sync()" in said


def with_buckets(**given: Any) -> str:
    try:
        gradwire.attach(small(), "auto", **given)
    except UsageError as error:
        return str(error)
    return "attached"


@pytest.mark.parametrize("given", [{"buckets": [["one.weight"]]}, {"bucket_bytes": 1000}])
def test_buckets_are_what_auto_finds(two: Ranks, given: dict[str, Any]) -> None:
    for said in two.run(functools.partial(with_buckets, **given)):
        assert "chooses the buckets" in said


def unknown() -> str:
    try:
        gradwire.attach(small(), "auto", strategies=["topk(0.1) | nowhere"])
    except StrategyError as error:
        return str(error)
    return f"attached on rank {dist.get_rank()}"


def test_a_strategy_that_is_none_is_refused_at_once(two: Ranks) -> None:
    for said in two.run(unknown):
        assert "'nowhere' is not a collective" in said


@brief()
def found_by_one() -> str:
    plan = "none | allreduce" if dist.get_rank() else "auto"
    with pytest.raises(PlanError) as caught, attached(small(), plan, guard=True, lanes=1):
        pass
    return str(caught.value)


def test_a_plan_that_one_rank_alone_finds_is_refused_on_all(two: Ranks) -> None:
    """The others would not take part in its measurements."""
    for said in two.run(found_by_one):
        assert "plan found on the job" in said
        assert "plan as given" in said


@brief()
def harmed() -> tuple[bool, str, str, list[float]]:
    """The strategies before and after the guard's window, after a race; this guard takes whatever
    it sees for harm."""
    model = small()
    with (
        patch.object(guard, "WINDOW", 4), patch.object(guard, "LIMIT", -1.0),
        warnings.catch_warnings(), won_by(STRATEGIES[0], races=True),
    ):  # fmt: skip
        warnings.simplefilter("ignore")
        handle: Any = gradwire.attach(model, "auto", strategies=STRATEGIES)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        step, before = 0, ""
        while step < PATIENCE and not (before and len(handle.guard.apart) > 0):
            before = before or (f"{handle.plan.main_strategy}" if handle.tuner.is_settled else "")
            optimizer.zero_grad()
            loss_of(model, step).backward()
            optimizer.step()
            step += 1
        for _ in range(3):
            optimizer.zero_grad()
            loss_of(model, step).backward()
            optimizer.step()
        apart = [own.elements for own in handle.guard.apart]
        found = step < PATIENCE, before, f"{handle.plan.main_strategy}", apart
        handle.detach()
        return found


def test_auto_goes_back_where_the_guard_sees_harm(two: Ranks) -> None:
    first, other = two.run(harmed)
    assert first == other
    seen, before, after, apart = first
    assert seen
    assert before == STRATEGIES[0]
    assert after == "none | allreduce"
    assert len(apart) == 1, "plans that only raced were not watched"


@brief()
def searched_again() -> list[int]:
    """How many windows the guard has watched before a second search, and after it."""
    model = small()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with (
        patch.object(guard, "WINDOW", 4), patch.object(guard, "EVERY", 5),
        won_by(STRATEGIES[0], races=True),
    ):  # fmt: skip
        handle: Any = gradwire.attach(model, "auto", strategies=STRATEGIES)
        found, step = list[int](), 0
        for _ in range(2):
            while not handle.tuner.is_settled and step < PATIENCE:
                stepped(model, optimizer, range(step, step + 1))
                step += 1
            found.append(len(handle.guard.apart))
            stepped(model, optimizer, range(step, step + 3))
            step += 3
            handle.tuner.plan_again(handle.tuner.profile)
        handle.detach()
        return found


def test_while_plans_race_again_the_guard_does_not_look(two: Ranks) -> None:
    """It would hold the harm of a plan that only raced against the one that is adopted."""
    assert two.run(searched_again) == [[0, 0]] * 2


@brief()
def failed_search() -> tuple[bool, bool]:
    """Whether plans are still looked for after an error of rank 0, and whether the guard looks."""
    model = small()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def choose(*_: Any, **__: Any) -> Any:
        raise PlanError("nothing can be planned")

    with patch.object(guard, "WINDOW", 4), patch.object(auto, "choose", choose):
        handle: Any = gradwire.attach(model, "auto", strategies=STRATEGIES)
        with pytest.raises(PlanError, match="nothing can be planned"):
            stepped(model, optimizer, range(PATIENCE))
        found = handle.is_tuning, handle.guard.looks
        handle.detach()
        return found


def test_a_search_that_fails_is_over(two: Ranks) -> None:
    assert two.run(failed_search) == [(False, True)] * 2


class Words(torch.nn.Module):
    """Two tables with sparse gradients, and a dense layer."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.one = torch.nn.Embedding(500, 8, sparse=True)
        self.two = torch.nn.EmbeddingBag(300, 8, sparse=True, mode="sum")
        self.top = torch.nn.Linear(8, 40)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.top(self.one(words).sum(1) + self.two(words))).square().sum()


@brief()
def with_tables() -> tuple[Any, ...]:
    """What was measured of tables, and the strategy by which they travel then."""
    model = Words()
    handle: Any = gradwire.attach(model, "auto", strategies=STRATEGIES)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(PATIENCE):
        dice = torch.Generator().manual_seed(7 * step + dist.get_rank())
        optimizer.zero_grad()
        model(torch.randint(300, (6, 5), generator=dice)).backward()
        optimizer.step()
        if handle.tuner.is_settled:
            break
    tables, plan = handle.tuner.profile.tables, handle.plan
    pairs = zip(plan.buckets, plan.strategies)
    rows = [(set(b.names), f"{s}") for b, s in pairs if b.has_rows]
    handle.detach()
    return (
        handle.tuner.is_settled, [(c.parameters, c.strategy) for c in tables],
        rows, fingerprint(model.parameters()),
    )  # fmt: skip


def test_tables_are_measured_and_travel_together(two: Ranks) -> None:
    """The planner and the race choose the way: `unit/planner/test_choose_tables`."""
    one, other = two.run(with_tables)
    assert one == other
    is_settled, measured, rows, _ = one
    assert is_settled
    assert measured == [(("one.weight", "two.weight"), text) for text in OF_TABLES]
    ((names, way),) = rows
    assert names == {"one.weight", "two.weight"}
    assert way in OF_TABLES


def begun_after(skipped: int) -> tuple[int, int]:
    """The number of exchanges before plans are chosen, and of those that were not skipped, if the
    first ones are skipped as a GradScaler's are."""
    model, begun = small(), list[tuple[int, int]]()

    def watched(tuner: auto.Tuner, steps: int) -> Any:
        yield

    def decided(tuner: auto.Tuner, profile: object) -> Any:
        begun.append((tuner._session.step, tuner._session.taken))
        yield

    with (
        patch.object(auto.Tuner, "_watch", watched), patch.object(auto.Tuner, "_decide", decided),
        attached(model, "auto", strategies=STRATEGIES, warmup=gradwire.Warmup(12, (0.5,))),
    ):  # fmt: skip
        for step in range(40):
            model.zero_grad()
            (loss_of(model, step) * (torch.inf if step < skipped else 1.0)).backward()
    return begun[0]


@pytest.mark.parametrize("skipped", [0, 8, 20])
def test_plans_are_chosen_once_the_warm_up_is_over(two: Ranks, skipped: int) -> None:
    assert two.run(begun_after, skipped) == [(12 + skipped, 12)] * 2


@brief()
def left_after(skipped: int) -> tuple[str, ...]:
    """The strategies that are left if a GradScaler skips the first steps, in which no optimizer
    steps."""
    model = small()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with attached(model, "auto", strategies=STRATEGIES) as handle:
        for step in range(skipped + 12):
            optimizer.zero_grad()
            (loss_of(model, step) * (torch.inf if step < skipped else 1.0)).backward()
            if step >= skipped:
                optimizer.step()
        tuner: Any = handle.tuner
        assert tuner.profile is not None
        return tuple(tuner._strategies)


def test_what_is_sound_is_asked_once_an_optimizer_has_stepped(two: Ranks) -> None:
    assert two.run(left_after, 15) == [tuple(STRATEGIES)] * 2


def alone() -> tuple[bool, bool, str, int]:
    """Whether a rank of a world of one has settled, whether it looks on, its plan and step."""
    model = small()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with attached(model, "auto", strategies=STRATEGIES) as handle:
        stepped(model, optimizer, range(20))
        tuner: Any = handle.tuner
        return (tuner.is_settled, handle.is_tuning, f"{handle.plan.main_strategy}", handle.step)


def test_a_rank_alone_compresses_nothing(one: Ranks) -> None:
    """It has nobody to send to: bf16 won half of its races, by noise."""
    assert one.run(alone) == [(True, False, "none | allreduce", 20)]

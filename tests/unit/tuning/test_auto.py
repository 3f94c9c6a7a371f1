"""How long the tuner measures, and which plans it lets race."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable, Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import gradwire
from gradwire.buckets import Bucket, Parameter
from gradwire.dynamics import Dynamics, all_dynamics
from gradwire.errors import PlanError, StrategyError
from gradwire.plan import Plan
from gradwire.planner.candidates import Candidate
from gradwire.planner.choose import Choice
from gradwire.planner.profile import Profile, Ready
from gradwire.planner.timeline import Executor, Job, simulate
from gradwire.soundness import sound
from gradwire.strategy import Strategy
from gradwire.training import recording
from gradwire.tuning import profile_only, profiling
from gradwire.tuning.auto import Tuner, at_once, contenders, hedges, watched_steps
from gradwire.tuning.profiling import STRATEGIES, asked, beside_moments, usual_strategies


@pytest.mark.parametrize(
    ("seconds", "steps"),
    [(1e-6, 40), (0.0, 40), (0.05, 40), (0.1, 20), (0.25, 8), (0.5, 7), (100.0, 7)],
)
def test_two_seconds_are_watched_if_these_are_not_too_few_or_too_many_steps(
    seconds: float, steps: int
) -> None:
    assert watched_steps(seconds) == steps


def candidate(strategy: str, seconds: float, lanes: int = 1) -> Candidate:
    plan = Plan((Bucket((Parameter("w", (4, 4)),)),), (Strategy.parse(strategy),), lanes)
    return Candidate(plan, simulate([Job(seconds, ())], Executor()))


def test_hopeless_plans_do_not_race_but_the_best_baseline_does() -> None:
    best = candidate("topk(0.01)+ef | allgather", 1.0)
    fp32, bf16 = candidate("none | allreduce", 9.0), candidate("bf16 | allreduce", 5.0)
    others = (candidate("int8+ef | alltoall", 2.9), candidate("sign+ef | alltoall", 3.1))
    choice = Choice(best, {"fp32": fp32, "bf16": bf16}, (*others, fp32, bf16), 0.5)
    assert contenders(choice) == [best, others[0], bf16]


def test_near_rivals_all_race() -> None:
    best, fp32 = candidate("bf16 | allreduce", 1.0), candidate("none | allreduce", 1.5)
    choice = Choice(best, {"fp32": fp32, "bf16": best}, (fp32,), 0.5)
    assert contenders(choice) == [best, fp32]


def test_nothing_races_without_a_baseline() -> None:
    best = Candidate(Plan((), ()), simulate([Job(1.0, ())], Executor()))
    with pytest.raises(PlanError, match=r"neither for 'sign . vote'.*Profile again"):
        contenders(Choice(best, {}, (), 1.0, strategies=("sign | vote",)))


def test_the_hedge_is_one_bucket_beside_rows_and_vectors() -> None:
    parameters = (Parameter("b", (8,)), Parameter("w", (8, 8)), Parameter("table", (9, 4)))
    ready = tuple(Ready(p, 0.1 * i) for i, p in enumerate(parameters))
    profile = Profile(ready, 1.0, 1.0, ("one", "two"))
    plan = at_once(profile, Strategy.parse("topk(0.1)+ef | allgather"))
    assert sorted(sorted(bucket.names) for bucket in plan.buckets) == [["b"], ["table", "w"]]
    assert plan.lanes == 1
    for text, lanes in (("topk(0.1)+ef | allgather", [1, 2]), ("bf16 | allreduce", [1])):
        assert [p.lanes for p in hedges(profile, Strategy.parse(text), (1, 2))] == lanes


@pytest.mark.parametrize(
    ("optimizer", "rule"),
    [
        (gradwire.optim.AdamW, "adamw"), (gradwire.optim.SGD, "sgd"),
        (gradwire.optim.Muon, "muon"), (partial(gradwire.optim.SGD, momentum=0.8), "sgdm"),
    ],
)  # fmt: skip
def test_all_that_is_planned_beside_an_optimizer_is_sound_with_it(
    optimizer: Any, rule: str
) -> None:
    """They are planned with the dynamics that all strategies of a plan share."""
    own = optimizer([torch.nn.Parameter(torch.ones(4, 4))], lr=0.1)
    usual = beside_moments(own)
    assert bool(usual) == (rule not in ("sgd", "sgdm"))
    texts = usual or [t for t in STRATEGIES if sound(t, rule).kind == "sound"]
    assert len(texts) > 1
    for dynamics in all_dynamics(map(Strategy.parse, texts)):
        planned = {taken for text in asked(texts) if (taken := dynamics.take(text))}
        assert planned
        of_matrices = [t for t in planned if Dynamics.of(Strategy.parse(t)) == dynamics]
        assert {sound(text, rule).kind for text in of_matrices} == {"sound"}


@pytest.mark.parametrize("per_node", [1, 2])
def test_a_profile_has_what_keeps_momentum(monkeypatch: pytest.MonkeyPatch, per_node: int) -> None:
    """Whether the job has momentum is told when a plan is made; "auto" knows its optimizer. Inside
    machines, what is kept is summed first."""
    monkeypatch.setattr(profiling, "backend_of", lambda *group: "gloo")

    def usual(optimizer: Any, **options: bool) -> list[str]:
        session: Any = SimpleNamespace(
            settings=SimpleNamespace(optimizer=optimizer), world=4, device=torch.device("cpu"),
            machines=SimpleNamespace(per_node=per_node),
            performers=[SimpleNamespace(group=None)],
        )  # fmt: skip
        return [text for text in usual_strategies(session, **options) if "dgc" in text]

    ways = ["allgather", "hierarchical"][:per_node]
    assert usual(None) == []
    assert usual(None, for_any=True) == [f"dgc(0.01) | {way}" for way in ways]
    weight = torch.nn.Parameter(torch.ones(4, 4))
    own = gradwire.optim.SGD([weight], lr=0.1, momentum=0.8)
    assert usual(own) == [], "not known to be sound on every task"
    assert usual(gradwire.optim.AdamW([weight], lr=0.1), for_any=True) == []


def test_what_may_stand_in_a_plan_is_measured_as_it_would_travel() -> None:
    own = gradwire.optim.Muon([torch.nn.Parameter(torch.ones(4, 4))])
    texts = asked(beside_moments(own))
    for compressor in ("none", "bf16", "int8", "lloyd(2)"):
        feedback = {s.feedback.name for text in texts for s in [Strategy.parse(text)]
                    if text.startswith(compressor) and s.feedback}  # fmt: skip
        assert feedback == {"muon", "adam"}, "of hidden matrices, and of others"
    assert asked(["qsgd(4)+server_momentum | alltoall"])[-1] == "qsgd | alltoall", "as on the way"


def test_what_was_asked_for_is_measured_as_it_was_asked_for() -> None:
    """Also what no plan beside the others needs: it may be planned with alone."""
    texts = "int8 | alltoall", "lloyd(2)+muon | alltoall"
    assert {*texts, "int8+muon | alltoall"} <= set(asked(texts))


def test_the_hedge_has_others_apart() -> None:
    parameters = (Parameter("head", (8, 8)), Parameter("w", (8, 8)))
    ready = tuple(Ready(p, 0.1 * i, is_other=p.name == "head") for i, p in enumerate(parameters))
    profile = Profile(ready, 1.0, 1.0, ("one", "two"))
    plan = at_once(profile, Strategy.parse("lloyd(2)+muon | alltoall"))
    found = {
        bucket.names: s.feedback.name
        for bucket, s in zip(plan.buckets, plan.strategies)
        if s.feedback
    }
    assert found == {("head",): "adam", ("w",): "muon"}


@pytest.mark.parametrize("warmup", [0, 100])
def test_what_must_begin_by_another_compressed_strategy_is_left_out(warmup: int) -> None:
    """`attach` calls it unsound by name, too, beside a dense warm-up as well, and refuses it if
    strict. "auto" has no other warm-up."""
    tuner, said = Tuner.__new__(Tuner), list[str]()
    one_bit = "lloyd(1)+adam | allgather"
    tuner._strategies = one_bit, "lloyd(2)+adam | allgather"
    tuner._warmup, tuner.handle = warmup, SimpleNamespace(optimizers=["adamw"])  # type: ignore
    tuner._say = said.append  # type: ignore[method-assign]
    kept = json.loads(tuner._sound())
    assert (one_bit in kept) is tuner._is_sound(one_bit) is False
    assert "lloyd(2)+adam | allgather" in kept
    assert [f"'{one_bit}' is left out" in line for line in said] == [True]


@pytest.mark.parametrize("warmup", [0, 100])
def test_what_needs_a_warm_up_is_said(warmup: int) -> None:
    tuner, said = Tuner.__new__(Tuner), list[str]()
    tuner._strategies = (
        "topk(0.01)+ef | gtopk",
        'topk(0.01)+ef | gtopk(variant="butterfly")',
        "bf16 | allreduce",
    )
    tuner._warmup, tuner.handle = warmup, SimpleNamespace(optimizers=["sgdm"])  # type: ignore
    tuner._say = said.append  # type: ignore[method-assign]
    assert json.loads(tuner._sound()) == ["topk(0.01)+ef | gtopk", "bf16 | allreduce"]
    assert "gtopk" in said.pop()
    assert [text for text in said if "first 5 %" in text] == said
    assert len(said) == (0 if warmup else 1)


def searches(seconds: Callable[[int], float], steps: int) -> int:
    """How often a job is searched a plan for whose steps take so long."""
    tuner, found, now = Tuner.__new__(Tuner), list[int](), SimpleNamespace(seconds=0.0)

    def watch(_: int) -> Iterator[None]:
        yield

    def decide(_: Any) -> Iterator[None]:
        found.append(1)
        yield

    made: Any = tuner
    made._session = SimpleNamespace(circle=1, performers=[1], taken=100, world=2)
    made.handle, made._steps, made._warmup = SimpleNamespace(guard=None), now, 0
    made._watch, made._decide, made._exchanged = watch, decide, lambda numbers: [numbers] * 2
    made._say = lambda line: None
    life = tuner._lives()
    for step in range(steps):
        now.seconds = seconds(step)
        next(life)
    return len(found)


def test_steps_that_take_long_again_and_again_do_not_keep_a_job_searching() -> None:
    assert searches(lambda step: 0.1, 20_000) == 1
    assert searches(lambda step: 0.1 * (1 + step // 70 % 2), 20_000) < 5
    assert searches(lambda step: 0.1 * (1 + step // 4000), 20_000) == 4
    assert searches(lambda step: 0.1 if step < 300 else 0.2, 20_000) == 2


class Full(io.StringIO):
    """A file on a disk that is full."""

    def write(self, text: str) -> int:
        raise OSError(28, "No space left on device")


def closed() -> io.StringIO:
    file = io.StringIO()
    file.close()
    return file


def tuner_s(line: str) -> None:
    tuner = Tuner.__new__(Tuner)
    tuner._session = SimpleNamespace(circle=SimpleNamespace(rank=0))  # type: ignore[assignment]
    tuner._say(line)


@pytest.mark.parametrize("say", [tuner_s, profile_only._say, recording._warn])
@pytest.mark.parametrize("standard_error", [Full, closed, lambda: None])
def test_a_line_that_cannot_be_written_ends_no_rank_alone(
    say: Any, standard_error: Any, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    say("first")
    assert "first" in capsys.readouterr().err
    with monkeypatch.context() as patched:
        patched.setattr(sys, "stderr", standard_error())
        say("second")
    assert capsys.readouterr().out == ""


def test_all_paths_are_for_auto_to_choose_among() -> None:
    with pytest.raises(StrategyError, match=r'Pass plan="auto" and strategies=\[.*all_gather'):
        gradwire.attach(torch.nn.Linear(2, 2), "topk(0.01)+ef | paths")

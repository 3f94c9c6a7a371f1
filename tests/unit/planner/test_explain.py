"""Explanations: the verdict first, true gains, and the deciding reason; written to files too."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from profiles import few, profile, resnet50

from gradwire import Plan, Strategy
from gradwire.buckets import Bucket, Parameter
from gradwire.errors import PlanError
from gradwire.planner.candidates import BF16, FP32
from gradwire.planner.choose import choose, judge
from gradwire.planner.curves import Curve
from gradwire.planner.explain import explain, saved, with_prediction
from gradwire.planner.fit import Fit
from gradwire.planner.profile import Profile, Ready
from gradwire.planner.story import PREDICTION, Explanation
from gradwire.planner.whatif import on
from gradwire.topology import Cluster

TOPK = "topk(0.01)+ef | allgather"
SLOW = profile(parameters=few(), bits_per_second=1e8, backward_seconds=0.05)


def with_errors(own: Profile) -> Profile:
    errors = {
        BF16: 0.002,
        "int8+ef | alltoall": 0.01,
        TOPK: 0.8,
        'topk(0.01)+ef | gtopk(variant="butterfly")': 0.9,
    }
    costs = {t: replace(c, error=errors.get(t)) for t, c in own.strategies.items()}
    return replace(own, strategies=costs)


def test_the_verdict_comes_first() -> None:
    story = explain(choose(SLOW, lanes=[1]), SLOW)
    assert story.as_text().splitlines()[0] == story.verdict
    assert story.verdict.startswith("compress 6 of 7 tensors: ")
    assert story.verdict.endswith("× faster than bf16")
    assert "no plan of these strategies can be shorter than" in story.as_text()


def test_large_numbers_are_written_out() -> None:
    story = explain(choose(SLOW, lanes=[1]), SLOW)
    large = replace(story.groups[0], elements=6_700_000_000)
    text = replace(story, lower_bound=story.seconds / 3.5, groups=(large,)).as_text()
    assert "at most 250 % is left to gain" in text
    assert "6,700 M elements" in text


def test_it_says_with_which_optimizers_the_plan_is_sound() -> None:
    """The group with the worst verdict decides."""
    plan = choose(SLOW, lanes=[1]).best.plan

    def told(*texts: str) -> Explanation:
        own = [Strategy.parse(texts[i % len(texts)]) for i in range(len(plan.strategies))]
        return explain(judge(SLOW, replace(plan, strategies=tuple(own)), lanes=[1]), SLOW)

    story = told(BF16, TOPK)
    kinds = {"sgd": "sound", "sgdm": "unsound", "adamw": "unsound", "muon": "unknown"}
    assert story.sound_with == kinds
    last = "  sound with sgd; learns less with SGD with momentum, adamw; not known with muon"
    assert last in story.as_text().splitlines()
    assert story.begins == {}
    assert set(told(BF16).sound_with.values()) == {"sound"}


def test_it_says_by_what_a_run_must_begin() -> None:
    story = explain(judge(SLOW, choose(SLOW, lanes=[1]).best.plan, lanes=[1]), SLOW)
    coarse = "onebit+shared_momentum(0.9) | alltoall"
    story = replace(story, groups=tuple(replace(g, strategy=coarse) for g in story.groups))
    begins = "'none | allreduce' in the first 20% of its steps"
    assert story.begins == {"adamw": begins}
    assert f"  with adamw, begin by {begins}" in story.as_text().splitlines()
    assert story.to_json()["begins"] == story.begins


def test_do_not_compress() -> None:
    calm = on(
        profile(parameters=few(), start_seconds=1e-7), Cluster(4, cross_bits_per_second=1e13)
    )
    story = explain(choose(calm, lanes=[1]), calm)
    assert story.verdict == "do not compress: the network is not your bottleneck"
    assert {group.decided_by for group in story.groups} == {"enough"}


def test_gains_are_what_the_timeline_says() -> None:
    """A group's gain is the difference to the same group as fp32, with all else equal."""
    found = choose(SLOW, lanes=[1])
    story, plan = explain(found, SLOW), found.best.plan
    for number, group in enumerate(story.groups):
        changed = list(plan.strategies)
        changed[number] = Strategy.parse(FP32)
        other = judge(SLOW, replace(plan, strategies=tuple(changed)), lanes=[1])
        assert group.gain_seconds == pytest.approx(other.best.seconds - found.best.seconds)
        if group.decided_by == "gain":
            assert group.gain_seconds > 0
            assert "instead of" in group.why


def test_every_group_of_the_plan_is_there() -> None:
    own = profile(parameters=resnet50())
    found = choose(own, lanes=[1])
    story = explain(found, own)
    assert [g.strategy for g in story.groups] == [str(s) for s in found.best.plan.strategies]
    assert sum(g.tensors for g in story.groups) == 161
    assert sum(g.elements for g in story.groups) == sum(p.elements for p in own.parameters)
    assert story.gap == pytest.approx(found.gap)
    assert all(g.ready_seconds <= g.done_seconds for g in story.groups)
    assert any(g.decided_by == "vectors" for g in story.groups)


def test_the_pause_decides() -> None:
    """The first of two matrices is sent long before the second is ready."""
    early, late = Parameter("early", (512, 512)), Parameter("late", (512, 512))
    ready = (Ready(early, 0.001), Ready(late, 2.0))
    own = replace(SLOW, ready=ready, backward_seconds=2.0)
    parts = (Bucket((early,)), Bucket((late,)))
    plan = Plan(parts, (Strategy.parse(FP32), Strategy.parse(TOPK)))
    first, last = explain(judge(own, plan, lanes=[1]), own).groups
    assert first.decided_by == "pause"
    assert "only make it wait longer" in first.why
    assert last.decided_by == "gain"
    assert "the last to arrive" in last.why


def test_what_a_group_would_delay() -> None:
    """Two matrices are ready one after the other, so the link has no pause between them."""
    ready = tuple(Ready(Parameter(n, (512, 512)), t) for n, t in (("a", 0.001), ("b", 0.002)))
    own = replace(SLOW, ready=ready, backward_seconds=0.002)
    plan = Plan(tuple(Bucket((r.parameter,)) for r in ready), (Strategy.parse(TOPK),) * 2)
    first, last = explain(judge(own, plan, lanes=[1]), own).groups
    assert "would delay all later groups" in first.why
    assert "would be the last to arrive" in last.why


def test_a_group_that_costs_time_is_not_called_hidden() -> None:
    """A plan for a slow network, on a fast one; and compression where nothing else may be used."""
    plan = choose(SLOW, lanes=[1]).best.plan
    fast = profile(parameters=few(), bits_per_second=1e12, backward_seconds=0.001)
    for factor, reason in ((1.0, "little"), (40.0, "search")):
        costs = {
            t: replace(c, encode=Fit(c.encode.curve.scaled(factor))) if "topk" in t else c
            for t, c in fast.strategies.items()
        }
        own = replace(fast, strategies=costs)
        story = explain(judge(own, plan, lanes=[1]), own)
        given = [g for g in story.groups if "topk" in g.strategy]
        assert given
        assert all(g.gain_seconds is not None and g.gain_seconds < 0 for g in given)
        assert {g.decided_by for g in given} == {reason}
        assert all(f"'{FP32}' would make the step" in g.why for g in given)
        asked = explain(choose(own, [TOPK], lanes=[1]), own)
        found = [g for g in asked.groups if g.strategy == TOPK]
        assert {g.decided_by for g in found} == {"only"}
        assert all("is not allowed" in g.why for g in found)


def test_the_work_decides() -> None:
    own = profile(parameters=[Parameter("w", (512, 512))], bits_per_second=1e11)
    slow = replace(own.strategies[TOPK], encode=Fit(Curve(((0.0, 0.05),), 0.0)))
    own = replace(own, strategies={FP32: own.strategies[FP32], TOPK: slow})
    plan = Plan.make(list(own.parameters), Strategy.parse(FP32))
    (group,) = explain(judge(own, plan, lanes=[1]), own).groups
    assert group.decided_by == "work"
    assert TOPK in group.why


def test_matrices_may_travel_dense_beside_vectors() -> None:
    """The plan has them together, as one group costs less than two; or it was given so."""
    parts = [Parameter("w", (64, 64)), Parameter("b", (64,))]
    own = profile(parameters=parts, bits_per_second=1e8, backward_seconds=0.001)
    plan = Plan((Bucket(tuple(parts)),), (Strategy.parse(FP32),))
    given = judge(own, plan, lanes=[1])
    (group,) = explain(given, own).groups
    assert group.decided_by == "only"
    assert group.why == "it has vectors, too, and no strategy that may be used compresses both"
    (group,) = explain(replace(given, algorithm="joint"), own).groups
    assert group.why.endswith("apart from them was found to be shorter")
    (group,) = explain(replace(given, algorithm="joint", error_budget=0.0), own).groups
    assert "no plan within the budget of 0 that compresses its matrices apart" in group.why


def test_the_budget_decides() -> None:
    own = with_errors(SLOW)
    story = explain(choose(own, lanes=[1], error_budget=0.3), own)
    held = [group for group in story.groups if group.decided_by == "budget"]
    assert held
    assert all("the budget is 0.3" in group.why for group in held)
    assert story.error is not None
    assert story.error <= 0.3
    assert "of a budget of 0.3" in story.as_text()


def test_rows_are_told() -> None:
    table = Parameter("table", (1000, 8), sparse=True)
    own = replace(SLOW, ready=(*SLOW.ready, Ready(table, 0.05)))
    story = explain(choose(own, lanes=[1]), own)
    (rows,) = [group for group in story.groups if group.decided_by == "rows"]
    assert (rows.label, rows.strategy, rows.gain_seconds) == ("table", "none | columns", None)


# -- files ---------------------------------------------------------------------------------------


def test_a_plan_carries_its_story(tmp_path: Path) -> None:
    found = choose(SLOW, lanes=[1])
    plan = with_prediction(found, SLOW)
    assert plan == found.best.plan
    assert hash(plan) == hash(found.best.plan)
    assert plan.digest() == found.best.plan.digest()
    plan.save(tmp_path / "plan.json")
    again = Plan.load(tmp_path / "plan.json")
    assert again == plan
    assert saved(again) == explain(found, SLOW)
    assert saved(again).as_text() == explain(found, SLOW).as_text()


def test_old_plans_are_read_and_have_no_story() -> None:
    plan = choose(SLOW, lanes=[1]).best.plan
    text = plan.to_json()
    assert "prediction" not in json.loads(text)
    with pytest.raises(PlanError, match="Pass --profile"):
        saved(Plan.from_json(text))


@pytest.mark.parametrize(
    "wrong", [{}, {"verdict": "x"}, {"groups": 3}, {"groups": [{"label": "a"}]}]
)
def test_stories_that_are_none(wrong: dict[str, object]) -> None:
    plan = with_prediction(choose(SLOW, lanes=[1]), SLOW)
    assert plan.prediction is not None
    broken = dict(wrong) if "verdict" in wrong or not wrong else {**plan.prediction, **wrong}
    with pytest.raises(PlanError, match="a plan's prediction"):
        saved(replace(plan, prediction=broken))


def test_a_plan_that_was_edited_has_no_story() -> None:
    """It would call strategies sound that the plan does not use."""
    plan = with_prediction(choose(SLOW, lanes=[1]), SLOW)
    first = Strategy.parse("topk(0.5)+ef | allgather")
    edited = replace(plan, strategies=(first, *plan.strategies[1:]))
    shorter = replace(plan, buckets=plan.buckets[:-1], strategies=plan.strategies[:-1])
    for other in (edited, shorter):
        with pytest.raises(PlanError, match=r"must be of this plan, group by group; .*--profile"):
            saved(other)


def test_a_prediction_that_is_no_object() -> None:
    document = json.loads(choose(SLOW, lanes=[1]).best.plan.to_json())
    document["prediction"] = "fast"
    with pytest.raises(PlanError, match="prediction must be a table"):
        Plan.from_json(json.dumps(document))


def test_json_and_back() -> None:
    story = explain(choose(SLOW, lanes=[1]), SLOW)
    assert PREDICTION.read(json.dumps(story.to_json())) == story


def test_many_alike_are_told_together() -> None:
    story = explain(choose(SLOW, lanes=[1]), SLOW)
    one, *_ = story.groups
    own = [
        replace(one, label=f"w{i}", tensors=1, elements=10, gain_seconds=0.1 * i) for i in range(9)
    ]
    other = replace(one, label="last", strategy="bf16 | allreduce")
    lines = replace(story, groups=(*own, other)).as_text().splitlines()
    assert f"1 to 9. w0 and 8 more, to w8 (9 tensors, 90 elements): {one.strategy}" in lines
    assert any("each gains 0 ms to 800 ms" in line for line in lines)
    assert any(line.startswith("10. last") for line in lines)
    assert sum("why:" in line for line in lines) == 2
    few = replace(story, groups=(*own[:3], other)).as_text()
    assert few.count("why:") == 4

"""Plans for Muon: hidden matrices by its rule, embeddings and the head by the other rule."""

from __future__ import annotations

from dataclasses import replace

import pytest
from test_choose import cost, profile

from gradwire import Plan, Strategy
from gradwire.beside import turns
from gradwire.buckets import Bucket, Parameter
from gradwire.dynamics import Dynamics
from gradwire.errors import PlanError
from gradwire.plan import in_turns
from gradwire.planner.candidates import FP32
from gradwire.planner.choose import choose, judge
from gradwire.planner.explain import explain
from gradwire.planner.profile import Profile, Ready, main_width
from gradwire.planner.stages import way
from gradwire.planner.whatif import on, wanted

SLOW = 1e7  # bytes per second
MUON, WHOLE = "lloyd(2)+muon | alltoall", "none+muon | allreduce"
ADAM, WHOLE_ADAM = "lloyd(2)+adam | alltoall", "none+adam | allreduce"
TURNS = 'lloyd(2)+muon(rest="qsgd | alltoall", turns=4) | alltoall'
OTHERS = {"head.weight", "embedding.weight", "b"}


def gpt() -> tuple[Ready, ...]:
    """Eight hidden matrices between the head and the embedding, and a vector."""
    hidden = [Parameter(f"h{i}.weight", (128, 256)) for i in range(8)]
    parameters = [
        Parameter("head.weight", (500, 128)), *hidden, Parameter("b", (128,)),
        Parameter("embedding.weight", (500, 128)),
    ]  # fmt: skip
    return tuple(
        Ready(p, 0.02 * (i + 1) / len(parameters), is_other=p.name in OTHERS)
        for i, p in enumerate(parameters)
    )


def knowing(rate: float = SLOW, **per_element: float) -> Profile:
    """A profile in which these strategies are measured too, at so many bytes an element."""
    made = {"MUON": MUON, "WHOLE": WHOLE, "ADAM": ADAM, "WHOLE_ADAM": WHOLE_ADAM, "TURNS": TURNS,
            "QSGD": "qsgd | alltoall"}  # fmt: skip
    known = profile(rate, ready=gpt())
    more = {made[name]: cost(size / rate, 1e-4, 1e-10) for name, size in per_element.items()}
    return replace(known, strategies={**known.strategies, **more})


def travelling(plan: Plan) -> dict[str, set[str]]:
    """The names of parameters, by their strategy in turn 0."""
    found = dict[str, set[str]]()
    for bucket, strategy in zip(plan.buckets, plan.strategies):
        found.setdefault(str(turns(strategy)[0]), set()).update(bucket.names)
    return found


def test_a_plan_with_the_optimizer_s_moments_spares_it_their_time() -> None:
    """In a profile the optimizer steps by itself, as it does beside fp32; a plan steps for it."""
    known = knowing(MUON=0.05, WHOLE=4.0, ADAM=0.05, WHOLE_ADAM=4.0)
    slow = replace(known, around_seconds=known.around_seconds + 1.0, moments_seconds=1.0)
    for text, more in ((MUON, 0.0), (FP32, 1.0)):
        before = choose(known, [FP32, MUON], dynamics=Dynamics.of(Strategy.parse(text))).best
        given = judge(slow, before.plan)
        assert given.best.seconds == pytest.approx(before.seconds + more)
        assert given.lower_bound <= given.best.seconds
        assert explain(given, slow).seconds == pytest.approx(given.best.seconds)
    chosen = choose(slow, [FP32, MUON])
    assert chosen.best.seconds == pytest.approx(choose(known, [FP32, MUON]).best.seconds)
    assert chosen.lower_bound <= chosen.best.seconds


def test_what_others_travel_by() -> None:
    assert way(MUON, is_other=False) == MUON
    assert Strategy.parse(way(MUON, is_other=True)) == Strategy.parse(ADAM)
    assert way(way(MUON, True), True) == way(MUON, True), "they have no others"
    assert way(FP32, True) == FP32


def test_hidden_matrices_and_others_travel_by_their_own_rules() -> None:
    found = choose(knowing(MUON=0.3, WHOLE=4.0, ADAM=0.3, WHOLE_ADAM=4.0), [MUON])
    own = travelling(found.best.plan)
    hidden = {f"h{i}.weight" for i in range(8)}
    assert own == {
        MUON: hidden, str(Strategy.parse(way(MUON, True))): {"head.weight", "embedding.weight"},
        "none+server_adam | allreduce": {"b"},
    }  # fmt: skip
    kept = travelling(found.baselines[FP32].plan)
    assert kept[WHOLE] == hidden
    assert found.best.seconds < found.baselines[FP32].seconds
    assert found.lower_bound <= found.best.seconds


def test_costs_of_others_are_those_of_their_own_way() -> None:
    """If the other parameters' strategy takes long, so does the step."""
    quick = choose(knowing(MUON=0.3, ADAM=0.3), [MUON]).best
    slow = choose(knowing(MUON=0.3, ADAM=3.0), [MUON]).best
    assert slow.seconds > 1.5 * quick.seconds


def test_others_may_be_sent_whole_beside_matrices_that_are_not() -> None:
    known = knowing(MUON=0.3, WHOLE=4.0, ADAM=9.0, WHOLE_ADAM=4.0)
    own = travelling(choose(known, [WHOLE, MUON]).best.plan)
    assert own.keys() == {MUON, WHOLE_ADAM, "none+server_adam | allreduce"}
    cheap = replace(known, strategies={**known.strategies, ADAM: cost(0.3 / SLOW, 1e-4)})
    bounds = [choose(one, [MUON]).lower_bound for one in (cheap, known)]
    assert bounds[0] < bounds[1], "a bound, too, is of what others travel by"


def test_beside_others_what_has_one_rule_is_grouped_as_ever() -> None:
    """Without Muon, groups do not end where the rule would change."""
    one = profile(SLOW, ready=gpt())
    plain = profile(SLOW, ready=tuple(r._replace(is_other=False) for r in gpt()))
    assert choose(one).best.plan == choose(plain).best.plan


def test_what_others_travel_by_must_have_been_measured() -> None:
    with pytest.raises(PlanError, match=r"'lloyd\(2\)\+adam.*was not"):
        choose(knowing(MUON=0.3), [MUON])
    nobody = tuple(r._replace(is_other=False) for r in gpt())
    assert choose(replace(knowing(MUON=0.3), ready=nobody), [MUON]).best.seconds > 0


def test_turns_have_about_as_many_elements() -> None:
    buckets = [Bucket((Parameter(f"w{i}", (n, 10)),)) for i, n in enumerate((9, 1, 2, 3, 1, 2))]
    one, other = Strategy.parse(TURNS), Strategy.parse(FP32)
    dealt = in_turns([(buckets[0], other), *((bucket, one) for bucket in buckets)])
    assert dealt[0] == (buckets[0], other)
    assert [getattr(s.feedback, "turn", None) for _, s in dealt[1:]] == [0, 1, 2, 3, 1, 1]
    assert [bucket for bucket, _ in dealt[1:]] == buckets


def test_buckets_take_turns() -> None:
    known = knowing(rate=1e8, TURNS=2.0, QSGD=2.0)
    found = choose(known, [TURNS])
    strategies = [s for s in found.best.plan.strategies if str(turns(s)[0]) == TURNS]
    assert len(strategies) > 1
    dealt = [getattr(s.feedback, "turn", None) for s in strategies]
    assert sorted(set(dealt)) == list(range(min(4, len(dealt))))
    assert {Dynamics.of(s) for s in strategies} == {Dynamics.of(Strategy.parse(TURNS))}
    own = travelling(found.best.plan)
    assert own[way(TURNS, is_other=True)] == {"head.weight", "embedding.weight"}
    again = judge(known, found.best.plan)
    assert again.best.seconds == pytest.approx(found.best.seconds)


def test_the_story_names_what_was_chosen() -> None:
    known = knowing(MUON=0.3, WHOLE=4.0, ADAM=0.3, WHOLE_ADAM=4.0)
    found = choose(known, [MUON])
    story = explain(found, known)
    said = {group.strategy for group in story.groups}
    assert MUON in said
    assert story.sound_with["muon"] == "sound"
    assert MUON in story.as_text()


def test_an_error_budget_looks_at_both() -> None:
    known = knowing(MUON=0.3, WHOLE=4.0, ADAM=0.3, WHOLE_ADAM=4.0)
    errors = {MUON: 0.1, ADAM: 0.4, WHOLE: 0.0, WHOLE_ADAM: 0.0}
    costs = {t: replace(c, error=errors.get(t, 0.0)) for t, c in known.strategies.items()}
    known = replace(known, strategies=costs)
    freely = choose(known, [WHOLE, MUON], error_budget=1.0).best
    assert MUON in travelling(freely.plan)
    tight = choose(known, [WHOLE, MUON], error_budget=0.05).best
    assert tight.error is not None
    assert tight.error <= 0.05 < (freely.error or 0.0)
    unknown = replace(known, strategies={**costs, ADAM: replace(costs[ADAM], error=None)})
    with pytest.raises(PlanError, match="was not measured"):
        choose(unknown, [MUON], error_budget=0.3)


def test_what_was_measured_for_others_leads_no_plan() -> None:
    """Without named strategies a plan goes by Muon's rule; Adam's is not used for all matrices."""
    known = knowing(MUON=0.3, WHOLE=4.0, ADAM=0.001, WHOLE_ADAM=0.001)
    alone = {t: c for t, c in known.strategies.items() if "muon" in t or "adam" in t or t == FP32}
    found = choose(replace(known, strategies=alone))
    assert found.best.plan.main_strategy.feedback is not None
    assert found.best.plan.main_strategy.feedback.name == "muon"


def test_a_large_embedding_does_not_lead_the_plan() -> None:
    parameters = [Parameter("e", (900, 900)), Parameter("w", (8, 8)), Parameter("b", (8,))]
    plan = Plan.make(parameters, MUON, others=["e", "b"], dense=["b"])
    assert str(plan.main_strategy) == MUON
    assert Dynamics.of(plan.main_strategy).feedback == "muon"


def test_it_is_kept_in_files() -> None:
    known = knowing(MUON=0.3)
    again = Profile.from_json(known.to_json())
    assert again == known
    assert {r.parameter.name for r in again.ready if r.is_other} == OTHERS


def test_on_other_workers() -> None:
    known = knowing(MUON=0.3, WHOLE=4.0, ADAM=0.3, WHOLE_ADAM=4.0)
    more = on(known, wanted(known, workers=16, bits_per_second=1e9))
    assert travelling(choose(more, [MUON]).best.plan).keys() >= {MUON}


def test_the_width_of_most_elements() -> None:
    ready = gpt()
    assert main_width(ready) == 128
    assert main_width([Ready(Parameter("b", (8,)), 0.0)]) == 256
    assert main_width([Ready(Parameter("w", (900, 1100)), 0.0)]) == 512
    assert main_width([Ready(Parameter("t", (9, 1), sparse=True), 0.0)]) == 256

"""Plans of one dynamics: all strategies keep a momentum, or the optimizer does."""

from __future__ import annotations

from dataclasses import replace

import pytest
from test_choose import cost, profile

from gradwire import Plan, Strategy
from gradwire.dynamics import PLAIN, Dynamics, adapts, all_dynamics
from gradwire.errors import PlanError
from gradwire.planner.candidates import BF16, FP32, Maker
from gradwire.planner.choose import choose, judge
from gradwire.planner.explain import explain
from gradwire.planner.profile import Profile
from gradwire.planner.verdict import verdict

SLOW = 1e7  # bytes per second
DGC, SIGNUM, EF21 = "dgc(0.01) | allgather", "sign+momentum | vote", "topk(0.01)+ef21 | allgather"
ADAM, TOPK = "lloyd(2)+adam | allgather", "topk(0.01)+ef | allgather"
MOMENTUM = "none+server_momentum | allreduce"


def knowing(*texts: str, per_element: float = 0.05, rate: float = SLOW) -> Profile:
    """A profile in which these strategies are measured too, at so many bytes an element."""
    known = profile(rate)
    more = {text: cost(per_element / rate, 1e-4, 1e-10) for text in texts}
    return replace(known, strategies={**known.strategies, **more})


def families(plan: Plan) -> set[Dynamics]:
    return {Dynamics.of(s) for s in plan.strategies}


@pytest.mark.parametrize(
    ("text", "matrices", "vectors"),
    [
        (FP32, "", ""), (TOPK, "", ""), (EF21, "", ""), ("none | powersgd(4)", "", ""),
        (DGC, "server_momentum", "server_momentum"), (MOMENTUM,) + 2 * ("server_momentum",),
        ("topk(0.01)+dgc(momentum=0.8) | zen",) + 2 * ("server_momentum(momentum=0.8)",),
        (ADAM, "adam", "server_adam"),
        ("topk(0.01)+ef21(0.8) | zen",) + 2 * ("momentum(momentum=0.8)",),
        ("lloyd(2)+muon | alltoall", "muon", "server_adam"),
        ("onebit+shared_momentum | alltoall", "shared_momentum", "shared_momentum"),
    ],
)  # fmt: skip
def test_dynamics_of_a_strategy(text: str, matrices: str, vectors: str) -> None:
    found = Dynamics.of(Strategy.parse(text))
    assert (found.feedback, found.vectors, found.directions) == (matrices, vectors, False)
    assert found.take(text) == text
    whole = found.take(FP32)
    assert whole is not None
    assert Dynamics.of(Strategy.parse(whole)) == found, "what is sent whole has them too"


@pytest.mark.parametrize(
    ("text", "keeps"),
    [(FP32, False), (TOPK, False), (DGC, False), (ADAM, True), ("lloyd(2)+muon | alltoall", True),
     ("topk(0.01)+ef21(0.8) | zen", True), ("none+adam | allreduce", True)],
)  # fmt: skip
def test_a_rank_s_own_moments_are_a_part_of_what_compresses(text: str, keeps: bool) -> None:
    assert Dynamics.of(Strategy.parse(text)).keeps_moments == keeps


def test_what_remembers_nothing_takes_any() -> None:
    assert adapts(Strategy.parse("int8 | alltoall"))
    assert not adapts(Strategy.parse("qsgd(4) | alltoall")), "it was judged beside other momenta"
    assert not adapts(Strategy.parse("none | powersgd(4)"))
    assert not adapts(Strategy.parse("sign | vote"))
    kept = Dynamics.of(Strategy.parse(DGC))
    assert kept.take("int8 | alltoall") == "int8+server_momentum | alltoall"
    assert kept.take("qsgd(4) | alltoall") is None
    assert kept.take(TOPK) is None
    assert PLAIN.take(BF16) == BF16
    directions = Dynamics.of(Strategy.parse(SIGNUM))
    assert directions.directions
    assert directions.take(FP32) is None
    texts = [Strategy.parse(t) for t in (FP32, DGC, BF16, TOPK)]
    assert all_dynamics(texts) == [kept, PLAIN]
    assert all_dynamics(texts[:1]) == [PLAIN]


@pytest.mark.parametrize("text", [DGC, "topk(0.01)+dgc(nesterov=True) | gtopk"])
def test_what_keeps_the_momentum_is_planned_with_what_keeps_it_too(text: str) -> None:
    found = choose(knowing(text), [FP32, BF16, text])
    own = Dynamics.of(Strategy.parse(text))
    assert families(found.best.plan) == {own}
    assert text in map(str, found.best.plan.strategies)
    assert all(families(c.plan) == {own} for c in found.finalists)
    assert set(found.baselines) == {FP32, BF16}
    assert found.baselines[FP32].seconds == choose(knowing(), [FP32]).best.seconds


def test_the_faster_dynamics_win() -> None:
    known = knowing(DGC, per_element=0.01)
    both = choose(known, [FP32, BF16, TOPK, DGC])
    assert families(both.best.plan) == {Dynamics.of(Strategy.parse(DGC))}
    slower = knowing(DGC, per_element=3.0)
    both = choose(slower, [FP32, BF16, TOPK, DGC])
    assert families(both.best.plan) == {PLAIN}
    assert TOPK in map(str, both.best.plan.strategies)


def test_of_a_fast_network_the_momentum_stays_in_the_plan() -> None:
    found = choose(knowing(DGC, rate=1e12), [FP32, BF16, DGC])
    assert found.is_enough
    assert families(found.best.plan) == {Dynamics.of(Strategy.parse(DGC))}
    assert str(verdict(found)) == "do not compress: the network is not your bottleneck"


def test_estimates_stand_beside_gradients() -> None:
    found = choose(knowing(EF21), [FP32, EF21])
    assert {EF21, FP32} == set(map(str, found.best.plan.strategies)), "vectors dense"


def test_directions_stand_alone() -> None:
    found = choose(knowing(SIGNUM), [FP32, SIGNUM])
    assert set(map(str, found.best.plan.strategies)) == {SIGNUM}
    assert str(verdict(found)).startswith("compress 24 of 24 tensors")


def test_local_moments_are_sent_whole_where_that_was_measured() -> None:
    whole = "none+adam | allreduce"
    only = choose(knowing(ADAM), [FP32, ADAM])
    of_matrices = {str(s) for s in only.best.plan.strategies}
    assert of_matrices == {ADAM, "none+server_adam | allreduce"}, "vectors by the average's"
    found = choose(knowing(ADAM, whole, per_element=4.0, rate=2e8), [FP32, BF16, ADAM])
    assert "none+server_adam | allreduce" in map(str, found.best.plan.strategies)
    assert whole in map(str, found.baselines[FP32].plan.strategies)


def test_a_given_plan_is_judged_beside_its_own_kind() -> None:
    known = knowing(DGC)
    plan = choose(known, [DGC]).best.plan
    found = judge(known, plan)
    assert all(families(c.plan) == families(plan) for c in found.baselines.values())
    story = explain(found, known)
    assert set(story.baselines) == {FP32, BF16}
    assert "tuned fp32" in story.as_text()


def test_what_was_measured_however_it_is_typed() -> None:
    known = knowing("topk(density=0.02)+ef|allgather")
    assert known.measured("topk(0.02)+ef | allgather") == "topk(density=0.02)+ef|allgather"
    assert known.measured(MOMENTUM) == FP32, "momentum of the average, when all has arrived"
    assert known.measured("none+adam | allreduce") is None
    assert known.measured("nonsense") is None


def test_the_bound_is_of_strategies_as_the_plan_uses_them() -> None:
    """bf16 beside lloyd is bf16+adam, here the cheaper one."""
    whole, half = "none+adam | allreduce", "bf16+adam | allreduce"
    known = knowing(ADAM, whole, per_element=4.0)
    known = replace(known, strategies={**known.strategies, half: cost(1.0 / SLOW, 1e-4)})
    found = choose(known, [BF16, ADAM])
    assert half in map(str, found.best.plan.strategies)
    assert found.lower_bound <= found.best.seconds
    costs = {ADAM: cost(40.0 / SLOW, 1e-4), whole: cost(1.0 / SLOW, 1e-4)}
    cheap = {**known.strategies, **costs}
    beside = choose(replace(known, strategies=cheap), [ADAM], algorithm="bytecomp")
    assert whole in map(str, beside.best.plan.strategies)
    assert beside.lower_bound <= beside.best.seconds


def test_vectors_apart_are_searched_as_they_travel() -> None:
    dense = "none+shared_momentum | allreduce"
    known = knowing(dense, per_element=40.0)
    maker = Maker(known, [1], dynamics=Dynamics.of(Strategy.parse(dense)))
    (vectors,) = maker.problem([dense], 1, apart=True).fixed
    assert sum(s.seconds for s in vectors.stages if s.kind == "wire") == pytest.approx(
        known.cost(dense).wire(12 * 128)
    )


def test_a_baseline_without_a_plan_is_left_out() -> None:
    """Vectors beside none+adam need fp32, which was not measured."""
    whole = "none+adam | allreduce"
    known = knowing(ADAM, whole)
    known = replace(known, strategies={t: known.strategies[t] for t in (ADAM, whole)})
    with pytest.raises(PlanError, match=r"for vectors.* it was not measured"):
        choose(known, [ADAM])

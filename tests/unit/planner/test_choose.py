"""Plans for profiled jobs: limits with an obvious answer, bounds, and a plan's properties."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from gradwire.buckets import Bucket, Parameter
from gradwire.errors import PlanError
from gradwire.kernels.native import available_sets
from gradwire.plan import Plan
from gradwire.planner.candidates import BF16, FP32, Candidate, timeline_of
from gradwire.planner.choose import LEAST_GAIN, _rivals, choose, judge
from gradwire.planner.curves import Curve
from gradwire.planner.explain import explain
from gradwire.planner.fit import Fit
from gradwire.planner.grouping import (
    SLOWER,
    TIE,
    Grouping,
    Problem,
    _with_best_options,
    fewer,
    solve,
)
from gradwire.planner.profile import Contention, Profile, Ready, StrategyCost
from gradwire.planner.stages import Bucketed, Stages
from gradwire.planner.timeline import Executor, Job, simulate
from gradwire.strategy import Strategy
from suites import first

TOPK, INT8 = "topk(0.01)+ef | allgather", "int8+ef | alltoall"
ALONE = Contention()
TENSORS = [Bucketed(30_000, 1, 1e-3 * (i + 1)) for i in range(16)]
ELEMENT_BYTES = {FP32: 4.0, BF16: 2.0, INT8: 1.0, TOPK: 0.06}


def cost(per_element: float, start: float, local: float = 1e-10, further: float = 0.0) -> Any:
    """Costs: seconds per element on the wire, per start of a move, per element of local work."""

    def line(fixed: float, slope: float) -> Fit:
        return Fit(Curve(((0.0, fixed),), slope))

    return StrategyCost(
        line(1e-6, local), line(start, per_element), line(1e-6, local), line(0.0, per_element),
        latency_seconds=start, per_parameter_seconds=further,
    )  # fmt: skip


def model(layers: int = 12, width: int = 128, dtype: str = "float32") -> list[Ready]:
    """Matrices with their vectors, the last layer's first, with 1 ms of backward per layer."""
    ready = []
    for i in reversed(range(layers)):
        at = 1e-3 * (layers - i)
        ready.append(Ready(Parameter(f"{i}.bias", (width,), dtype), at - 1e-4))
        ready.append(Ready(Parameter(f"{i}.weight", (width, width), dtype), at))
    return ready


def profile(
    bytes_per_second: float, *, start: float = 1e-4, ready: Sequence[Ready] = (),
    contention: Contention = ALONE, local: float = 1e-10,
) -> Profile:  # fmt: skip
    given = tuple(ready or model())
    strategies = {
        text: cost(size / bytes_per_second, start, local if text not in (FP32, BF16) else 0.0)
        for text, size in ELEMENT_BYTES.items()
    }
    return Profile(
        given, max(r.seconds for r in given), 2e-3, ("a", "b"), contention=contention,
        strategies=strategies,
    )  # fmt: skip


def main_kinds(plan: Any) -> set[str]:
    """The strategies of the buckets that have matrices."""
    return {
        str(s) for b, s in zip(plan.buckets, plan.strategies)
        if any(len(p.shape) > 1 for p in b.parameters)
    }  # fmt: skip


# -- limits ------------------------------------------------------------------------------------


def test_of_a_fast_network_nothing_is_asked() -> None:
    found = choose(profile(1e12, start=1e-6))
    assert found.is_enough
    assert main_kinds(found.best.plan) <= {FP32, BF16}
    assert found.best.timeline.exposed_seconds < 0.03 * found.best.seconds


def test_over_a_slow_network_everything_is_compressed_most() -> None:
    found = choose(profile(1e6))
    assert main_kinds(found.best.plan) == {TOPK}
    assert found.best.seconds < 0.2 * found.baselines[BF16].seconds


def test_compression_that_costs_more_than_it_saves_is_not_taken() -> None:
    found = choose(profile(2e8, local=1e-5))
    assert main_kinds(found.best.plan) <= {FP32, BF16}
    assert found.best.seconds <= min(c.seconds for c in found.baselines.values())


def test_where_starting_costs_much_there_is_one_group_and_where_nothing_many() -> None:
    dear = choose(profile(1e8, start=0.05), [BF16], lanes=[1]).best.plan
    free = choose(profile(1e8, start=0.0), [BF16], lanes=[1]).best.plan
    assert len(dear.buckets) == 1
    assert len(free.buckets) > 3


@pytest.mark.parametrize("lanes", [1, 2])
def test_of_ties_the_one_with_fewer_groups(lanes: int) -> None:
    """Neighbours are merged if that hardly lengthens the step, with moves as measured or slower;
    no other two could still be merged."""
    problem = Problem(Stages(profile(2e8, start=1e-6)), TENSORS, [BF16], lanes)
    every = Grouping(tuple(range(1, len(TENSORS) + 1)), (0,) * len(TENSORS))
    found = fewer(problem, every)
    assert 1 < len(found.ends) < len(TENSORS)
    for own in (problem, problem.slower):
        assert own.seconds(found) <= own.seconds(every) * (1 + TIE)
    for number in range(len(found.ends) - 1):
        ends = found.ends[:number] + found.ends[number + 1 :]
        merged = Grouping(ends, found.chosen[1:])
        assert any(
            own.seconds(merged) > own.seconds(every) * (1 + TIE)
            for own in (problem, problem.slower)
        )
    assert fewer(replace(problem, borders=frozenset(range(len(TENSORS)))), every) == every


def test_a_slower_network_is_slower_for_tables_and_vectors_too() -> None:
    stages = Stages(profile(2e8))
    vectors = stages.job(Bucketed(500, 3, 1e-3), FP32, "vectors")
    slower = Problem(stages, TENSORS, [BF16], fixed=[vectors]).slower
    (own,) = slower.fixed
    other = slower.stages.job(Bucketed(500, 3, 1e-3), FP32, "vectors")
    assert [s.seconds for s in own.stages] == pytest.approx([s.seconds for s in other.stages])


def test_what_fills_the_link_to_the_brim_gives_way() -> None:
    """Backward just hides fp32, and bf16 easily: by measured times neither is faster, but on a
    slower network fp32 would be slower."""
    ready = model(layers=60)
    needed = sum(r.parameter.bytes for r in ready) / 60e-3  # bytes a second
    brim = profile(1.15 * needed, start=1e-6, ready=ready)
    found = choose(brim, [FP32, BF16], lanes=[1])
    as_fp32, as_bf16 = (found.baselines[text] for text in (FP32, BF16))
    assert as_fp32.seconds < (1 + LEAST_GAIN) * as_bf16.seconds
    slower = brim.slowed(SLOWER)
    assert timeline_of(slower, as_fp32.plan).iteration_seconds > 1.02 * (
        timeline_of(slower, as_bf16.plan).iteration_seconds
    )
    assert main_kinds(found.best.plan) == {BF16}
    roomy = profile(4 * needed, start=1e-6, ready=ready)
    assert main_kinds(choose(roomy, [FP32, BF16], lanes=[1]).best.plan) == {FP32}


@pytest.mark.once
@pytest.mark.parametrize("rate", [1e6, 1e7, 3e7, 1e8, 1e9])
@pytest.mark.parametrize("contention", [Contention(), Contention(1.0, 0.2)], ids=str)
def test_never_worse_than_the_baselines_nor_better_than_the_bound(
    rate: float, contention: Contention
) -> None:
    found = choose(profile(rate, contention=contention))
    assert set(found.baselines) == {FP32, BF16}
    for other in (*found.baselines.values(), *found.others):
        assert found.best.seconds <= other.seconds * (1 + 1e-9)
        assert found.lower_bound <= other.seconds
    assert 0 <= found.gap < 1
    assert found.best in found.finalists


def test_the_bound_is_of_vectors_as_fp32_too() -> None:
    """Vectors may always be fp32: over a fast network top-k costs more than it saves."""
    given = profile(1e9, local=1e-6)
    assert choose(given, [TOPK]).lower_bound <= choose(given, [FP32]).lower_bound


def test_a_slower_network_makes_no_plan_faster() -> None:
    seconds = [choose(profile(rate), [TOPK, BF16, FP32]).best.seconds for rate in (1e6, 1e7, 1e8)]
    assert seconds == sorted(seconds, reverse=True)


def test_the_same_twice() -> None:
    one, other = (choose(profile(3e7)) for _ in range(2))
    assert one.best.plan == other.best.plan
    assert one.lower_bound == other.lower_bound


# -- what a plan holds -------------------------------------------------------------------------


@pytest.mark.parametrize("rate", [1e6, 1e7, 1e9])
def test_a_plan_has_every_parameter_once(rate: float) -> None:
    given = profile(rate)
    for candidate in choose(given).finalists:
        candidate.plan.check(given.parameters)
        places = [max(r.seconds for r in given.ready if r.parameter.name in b.names)
                  for b in candidate.plan.buckets]  # fmt: skip
        assert places == sorted(places), "in the order in which they become ready"
        assert candidate.timeline.iteration_seconds == candidate.seconds


def test_vectors_travel_dense_beside_what_is_selected() -> None:
    plan = choose(profile(1e6)).best.plan
    for bucket, strategy in zip(plan.buckets, plan.strategies):
        ranks = {len(p.shape) for p in bucket.parameters}
        assert ranks == {1} if str(strategy) == FP32 else ranks == {2}


def test_matrices_alone_need_no_strategy_for_vectors() -> None:
    given = profile(1e7, ready=[r for r in model() if len(r.parameter.shape) == 2])
    only = replace(given, strategies={TOPK: given.strategies[TOPK]})
    plan = choose(only).best.plan
    assert {str(strategy) for strategy in plan.strategies} == {TOPK}
    assert {p.name for bucket in plan.buckets for p in bucket.parameters} == {
        r.parameter.name for r in given.ready
    }


def test_buckets_have_one_dtype() -> None:
    ready = [
        replace_dtype(r, "bfloat16" if i % 8 >= 4 else "float32") for i, r in enumerate(model())
    ]
    for candidate in choose(profile(1e7, ready=ready)).finalists:
        for bucket in candidate.plan.buckets:
            assert len({p.dtype for p in bucket.parameters}) == 1


@pytest.mark.parametrize("main", ["float32", "bfloat16"])
def test_the_bytes_of_every_dtype_count(main: str) -> None:
    """Strategies were measured on gradients of one dtype, that of most elements."""
    other = "bfloat16" if main == "float32" else "float32"
    given = [replace_dtype(r, other if i % 8 >= 6 else main) for i, r in enumerate(model())]
    made = profile(1e7, ready=given)
    stages, times = Stages(made), dict[tuple[str, str], float]()
    assert made.dtype == main
    for ready in given[0], given[-1]:
        for text in (FP32, BF16):
            job = stages.job(Bucketed.alone(ready._replace(seconds=0.0)), text)
            (link,) = (stage.seconds for stage in job.stages if stage.lane == stages.link)
            times[ready.parameter.dtype, text] = link / ready.parameter.elements
    twice = pytest.approx(2 * times["bfloat16", FP32], rel=1e-4)  # but for headers
    assert times["float32", FP32] == twice
    assert times["float32", BF16] == pytest.approx(times["bfloat16", BF16])
    found = choose(made)
    assert found.gap >= 0.0
    assert explain(found, made).seconds == found.best.seconds


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_what_rounds_and_saves_nothing_is_left_out(dtype: str) -> None:
    """Beside fp16, bf16 could only win by chance, and would cost three bits."""
    made = profile(1e7, ready=[replace_dtype(r, dtype) for r in model()])
    found, may = choose(made), dtype == "float32"
    used = {str(strategy) for own in found.finalists for strategy in own.plan.strategies}
    assert (BF16 in found.baselines) == may
    assert (BF16 in found.strategies) == may
    assert may or BF16 not in used
    assert BF16 in choose(made, [BF16]).strategies  # one who asks for it gets it


def replace_dtype(ready: Ready, dtype: str) -> Ready:
    return ready._replace(parameter=replace(ready.parameter, dtype=dtype))


def test_tables_travel_as_rows_whatever_is_chosen() -> None:
    table = Ready(Parameter("table.weight", (1000, 16), "float32", True), 0.012)
    given = profile(1e6, ready=[*model(), table])
    plan = choose(given).best.plan
    plan.check(given.parameters)
    assert str(plan.strategy_of("table.weight")) == "none | columns"


def test_a_large_table_hides_no_rivals() -> None:
    """The table has most of the elements, but nothing is chosen for it."""
    table = Ready(Parameter("table.weight", (10**6, 64), "float32", True), 0.012)
    without, given = (choose(profile(1e7, ready=r)) for r in (model(), [*model(), table]))
    kinds = [{str(c.plan.main_strategy) for c in found.finalists} for found in (without, given)]
    assert kinds[0] == kinds[1]
    assert len(kinds[1]) > 1


def test_near_the_best_plans_of_all_numbers_of_buckets_are_tried() -> None:
    """Predictions cannot tell two buckets from three if the steps differ by one percent."""

    def made(buckets: int, seconds: float) -> Candidate:
        parts = tuple(Bucket((Parameter(f"w{i}", (8, 8)),)) for i in range(buckets))
        plan = Plan(parts, (Strategy.parse(TOPK),) * buckets, 2)
        return Candidate(plan, simulate([Job(seconds, ())], Executor()))

    best, twin, near, far = made(3, 1.0), made(3, 1.01), made(2, 1.02), made(4, 1.2)
    assert _rivals(best, [best, twin, near, far]) == (near,)


def test_one_bucket_does_not_race_with_itself_on_more_lanes() -> None:
    bucket, strategy = Bucket((Parameter("w", (8, 8)),)), Strategy.parse(TOPK)
    timeline = simulate([Job(1.0, ())], Executor())
    one, two = (Candidate(Plan((bucket,), (strategy,), lanes), timeline) for lanes in (1, 2))
    assert _rivals(one, [one, two]) == ()
    assert _rivals(two, [one, two]) == ()


def test_predictions_are_of_the_plan_in_its_own_order() -> None:
    """A vector is ready just before the matrix at the end of backward: the matrix must not
    overtake it while it waits for a lane to wake."""
    ready = [Ready(Parameter("w", (300, 300)), 0.01), Ready(Parameter("b", (300,)), 0.00999)]
    given = profile(1e6, ready=ready, contention=Contention(2.0, wake_seconds=1e-3))
    for candidate in choose(given).finalists:
        assert candidate.timeline == timeline_of(given, candidate.plan)


def test_one_parameter() -> None:
    ready = [Ready(Parameter("w", (300, 300)), 0.01)]
    plan = choose(profile(1e6, ready=ready)).best.plan
    assert [b.names for b in plan.buckets] == [("w",)]
    assert main_kinds(plan) == {TOPK}


def test_only_vectors() -> None:
    ready = [Ready(Parameter(f"{i}", (64,)), 1e-3 * i) for i in range(1, 5)]
    plan = choose(profile(1e5, ready=ready)).best.plan
    assert {str(s) for s in plan.strategies} <= {FP32, BF16}


# -- refused -----------------------------------------------------------------------------------


def test_what_cannot_be_planned_is_refused() -> None:
    with pytest.raises(PlanError, match=r"'int8 \| vote' was not.*Profile again"):
        choose(profile(1e7), ["int8 | vote"])
    with pytest.raises(PlanError, match=r"needs a parameter.*0 strategies"):
        choose(profile(1e7), [])
    given = profile(1e7)
    only = replace(given, strategies={TOPK: given.strategies[TOPK]})
    with pytest.raises(PlanError, match=r"needs 'none \| allreduce' for vectors.*not measured"):
        choose(only)
    table = Ready(Parameter("table.weight", (1000, 16), "float32", True), 0.012)
    with pytest.raises(PlanError, match="dense gradients"):
        choose(profile(1e7, ready=[table]))


# -- grouping ----------------------------------------------------------------------------------


def best_of_all(problem: Problem) -> float:
    """The least seconds over every grouping and every choice."""
    n, best = len(problem.tensors), float("inf")
    for cuts in itertools.product([False, True], repeat=n - 1):
        ends = (*(i + 1 for i, cut in enumerate(cuts) if cut), n)
        if any(b not in ends for b in problem.borders):
            continue
        for chosen in itertools.product(range(len(problem.options)), repeat=len(ends)):
            best = min(best, problem.seconds(Grouping(ends, chosen)))
    return best


@pytest.mark.once
@pytest.mark.parametrize("lanes", [1, 2])
@pytest.mark.parametrize("contention", [Contention(), Contention(1.0, 0.3)], ids=str)
@pytest.mark.parametrize("part", first(range(4)))
def test_near_the_best_of_all_groupings(lanes: int, contention: Contention, part: int) -> None:
    worst = 0.0
    for seed in range(part, 12, 4):
        tensors = [
            Bucketed(1000 + 7919 * (seed + 3 * i) % 60_000, 1, 1e-3 * (i + 1)) for i in range(6)
        ]
        given = profile(2e7 * (1 + seed % 4), start=2e-4 * (1 + seed % 3), contention=contention)
        problem = Problem(Stages(given), tensors, [FP32, TOPK, INT8], lanes)
        grouping, seconds = solve(problem)
        assert problem.seconds(grouping) == seconds
        best = best_of_all(problem)
        assert problem.lower_bound() <= best * (1 + 1e-9)
        worst = max(worst, seconds / best - 1)
    assert worst < 0.02


def test_borders_are_kept() -> None:
    tensors = [Bucketed(1000, 1, 1e-3 * (i + 1)) for i in range(6)]
    given = profile(1e8, start=0.1)
    grouping, _ = solve(Problem(Stages(given), tensors, [FP32], borders=frozenset({2, 5})))
    assert grouping.ends == (2, 5, 6)


def mixed(layers: int) -> list[Ready]:
    """Matrices in bf16 with norms in fp32, so that dtypes alternate in the order of backward."""
    found = []
    for i in range(layers):
        at = 1e-3 * (i + 1)
        found.append(Ready(Parameter(f"{i}.weight", (128, 128), "bfloat16"), at))
        found.append(Ready(Parameter(f"{i}.norm", (128,)), at))
    return found


def test_dtypes_that_alternate_do_not_cut_the_baselines_to_pieces() -> None:
    """Else the race's plan to beat would be far slower than DDP, and nearly any plan would win."""
    choice = choose(profile(1e9, start=1e-3, ready=mixed(40)))
    for text, own in choice.baselines.items():
        assert len(own.plan.buckets) <= 10, text
        assert sorted(n for b in own.plan.buckets for n in b.names) == sorted(
            r.parameter.name for r in mixed(40)
        )
        assert all(len({p.dtype for p in b.parameters}) == 1 for b in own.plan.buckets)


def test_the_effort_does_not_grow_with_the_square_of_the_tensors() -> None:
    """Rank 0 searches while the others wait for it, and these have a timeout."""

    class Counted(Problem):
        simulated = 0

        def seconds(self, grouping: Grouping) -> float:
            Counted.simulated += len(grouping.ends)
            return super().seconds(grouping)

    count = 1500
    quick = profile(1e9, start=1e-7, contention=Contention(2.0, 0.3), local=1e-9)
    many = [Bucketed(4096, 1, 1e-4 * (i + 1)) for i in range(count)]
    solve(Counted(Stages(replace(quick, backward_seconds=1e-4 * count)), many, [FP32]))
    assert Counted.simulated < 1_000_000


def test_a_profile_with_float64_is_refused_with_a_way_on() -> None:
    """An older version's: bf16, with which every plan is compared, does not take it."""
    given = [*model(), Ready(Parameter("scale", (3, 3), "float64"), 0.013)]
    whole = Plan.make([r.parameter for r in given], FP32)
    for plan in (choose, lambda own: judge(own, whole)):
        with pytest.raises(PlanError, match=r"'scale' is float64\. Attach 'none \| allreduce'"):
            plan(profile(1e8, ready=given))


def of_local_work(*elements: int, lanes: int = 2) -> Problem:
    """Tensors that come one after the other, with nothing but a microsecond each of encoding."""

    def line(slope: float) -> Fit:
        return Fit(Curve(((0.0, 0.0),), slope))

    costs = StrategyCost(line(1e-6), line(1e-12), line(0.0), line(4.0))
    tensors = [Bucketed(n, 1, 1e-3 * i) for i, n in enumerate(elements)]
    given = replace(profile(1e8), strategies={FP32: costs})
    return Problem(Stages(given), tensors, [FP32], lanes)


def test_the_bound_leaves_any_lane_to_a_tensor() -> None:
    """Groups change which lane the 17th tensor is on, and how many come before it."""
    problem = of_local_work(1_000_000, *[1000] * 15, 1_000_000)
    _, seconds = solve(problem)
    assert seconds < 1.1, "the two large ones at the same time"
    assert problem.lower_bound() <= seconds * (1 + 1e-9)


@pytest.mark.skipif(len(available_sets()) == 1, reason="the twin's bound is weaker")
@pytest.mark.parametrize("lanes", [1, 2, 4])
def test_of_local_work_a_plan_does_as_much_at_once_as_it_has_lanes(lanes: int) -> None:
    problem = of_local_work(*[100_000] * 24, lanes=lanes)
    _, seconds = solve(problem)
    assert 0.9 * seconds < problem.lower_bound() <= seconds * (1 + 1e-9)


def test_the_bound_is_of_the_most_lanes() -> None:
    given = profile(1e9)
    found = choose(replace(given, strategies={FP32: cost(1e-9, 1e-5, local=1e-6)}), lanes=[1, 2])
    assert found.best.plan.lanes == 2
    assert found.lower_bound <= found.best.seconds


@pytest.mark.parametrize("seed", range(8))
def test_options_are_searched_with_the_times_at_which_lanes_wake(seed: int) -> None:
    """Else a group with other options may have a longer step, as the vectors' time is a woken
    one."""
    dice = random.Random(seed)
    tensors = [Bucketed(dice.randrange(9000), 1, 1e-3 * dice.randrange(9)) for _ in range(5)]
    tensors.sort(key=lambda own: own.ready_seconds)
    given = profile(dice.choice([3e6, 1e7]), contention=Contention(1.5, 0.5, wake_seconds=3e-3))
    stages = Stages(given)
    vectors = stages.job(Bucketed(5000, 3, 1e-3 * dice.randrange(9)), FP32, "vectors")
    for start in itertools.product(range(3), repeat=5):
        problem = Problem(stages, tensors, [FP32, INT8, TOPK], fixed=[vectors])
        alone = Grouping((1, 2, 3, 4, 5), start)
        found = _with_best_options(problem, alone)
        assert problem.seconds(found) <= problem.seconds(alone) * (1 + 1e-9)

"""The search against all choices, its starts, and its bound."""

from __future__ import annotations

import contextlib
import math
import random
from itertools import product

import pytest
from timelines import alternatives, encode, executor, plausible, ready_times, two_levels, wire

from gradwire.errors import KernelError, PlanError
from gradwire.kernels import choices, use
from gradwire.kernels.native import available_sets
from gradwire.planner.search import Alternatives, chosen, exhaust, lower_bound, search
from gradwire.planner.timeline import Executor, Resource, machine, step_seconds, tensors

SLACK = 1 + 1e-9
native = pytest.mark.skipif(len(available_sets()) == 1, reason="no extension here")


def seconds(jobs: list[Alternatives], choice: tuple[int, ...], runs: Executor) -> float:
    return step_seconds(chosen(jobs, choice), runs)


def by_hand(jobs: list[Alternatives], runs: Executor) -> float:
    every = product(*(range(len(job.options)) for job in jobs))
    return min(seconds(jobs, choice, runs) for choice in every)


@pytest.mark.parametrize("seed", range(60))
def test_all_choices_are_tried(seed: int) -> None:
    """With pruning, the best is the same as without."""
    rng = random.Random(seed)
    jobs, runs = alternatives(rng, most=4, options=3), executor(rng)
    found = exhaust(jobs, runs)
    assert found.seconds == pytest.approx(by_hand(jobs, runs), rel=1e-12)
    assert seconds(jobs, found.choice, runs) == found.seconds
    with use("twin"):
        assert exhaust(jobs, runs).seconds == pytest.approx(found.seconds, rel=1e-12)


@native
def test_the_search_finds_the_best_of_nearly_all_instances() -> None:
    """Of 300, half random and half plausible. All is deterministic, so the count is exact."""
    best, worst = 0, 0.0
    for seed in range(300):
        rng = random.Random(seed)
        jobs = alternatives(rng) if seed % 2 else two_levels(rng)
        runs = executor(rng)
        least, found = exhaust(jobs, runs).seconds, search(jobs, runs, limit=2000).seconds
        assert found >= least / SLACK
        best += found <= least * SLACK
        worst = max(worst, found / least - 1)
    assert best >= 295
    assert worst < 0.03


@pytest.mark.parametrize("seed", range(300))
def test_the_bound_is_one(seed: int) -> None:
    """No choice is below the bound, nor below the twin's, which is weaker."""
    rng = random.Random(seed)
    jobs = alternatives(rng) if seed % 2 else two_levels(rng)
    runs = executor(rng)
    least = exhaust(jobs, runs).seconds
    assert lower_bound(jobs, runs) <= least * SLACK
    assert lower_bound(jobs, runs, by_turns=False) <= least * SLACK
    found = search(jobs, runs, limit=50)
    assert found.lower_bound <= least * SLACK
    assert found.gap >= -1e-9
    with use("twin"):
        assert lower_bound(jobs, runs) <= least * SLACK
        assert lower_bound(jobs, runs, by_turns=False) <= least * SLACK


@pytest.mark.parametrize("seed", range(60))
def test_the_result_is_what_it_says_and_beats_its_starts(seed: int) -> None:
    """No longer than: the start, one option for all, each job's shortest, the first options."""
    rng = random.Random(seed)
    jobs = [plausible(rng, ready) for ready in ready_times(rng, 12)]
    runs = executor(rng)
    start = [rng.randrange(5) for _ in jobs]
    found = search(jobs, runs, start=start, limit=300)
    assert found.seconds == seconds(jobs, found.choice, runs)
    shortest = tuple(
        min(range(5), key=lambda o, j=j: sum(s.seconds for s in j.options[o])) for j in jobs
    )
    starts = [tuple(start), shortest, *((o,) * len(jobs) for o in range(5))]
    assert found.seconds <= min(seconds(jobs, s, runs) for s in starts) * SLACK


@native
@pytest.mark.parametrize("seed", range(30))
def test_the_search_is_not_worse_than_the_greedy_of_bytecomp(seed: int) -> None:
    from gradwire.planner.bytecomp import Option, Tensor, greedy

    rng = random.Random(seed)
    jobs, runs = two_levels(rng, most=7), executor(rng)
    own = [Tensor(j.ready_seconds, 1, tuple(map(Option, j.options))) for j in jobs]
    published = greedy(own, lambda tried: step_seconds(tried, runs), runs)
    time = step_seconds(chosen(jobs, [c.option for c in published]), runs)
    assert search(jobs, runs, limit=1000).seconds <= time * SLACK


@pytest.mark.parametrize("seed", range(60))
def test_dropping_dominated_options_loses_nothing_with_one_lane(seed: int) -> None:
    """There are processors for all. The first option is plain; a worse one is beside each."""
    rng = random.Random(seed)
    jobs = two_levels(rng, most=4)
    runs = Executor(lanes=1, workers=1.0)
    worse = [
        Alternatives(
            job.ready_seconds,
            tuple(
                way
                for own in job.options[:3]
                for way in (tuple(s._replace(seconds=1.1 * s.seconds) for s in own), own)
            ),
        )
        for job in jobs
    ]
    inner = tensors([j.ready_seconds for j in worse], [j.options for j in worse])
    assert all(kept <= 3 for kept in choices.undominated(inner)) or len(available_sets()) == 1
    few = [Alternatives(j.ready_seconds, j.options[:3]) for j in jobs]
    assert exhaust(worse, runs).seconds == pytest.approx(exhaust(few, runs).seconds, rel=1e-12)


def test_the_same_arguments_give_the_same_result() -> None:
    rng = random.Random(7)
    jobs, runs = [plausible(rng, ready) for ready in ready_times(rng, 40)], Executor(lanes=2)
    one, two = (search(jobs, runs, limit=400, seed=3) for _ in range(2))
    assert one == two
    assert one.evaluations <= 400 * 1.1 + 10


def test_more_effort_is_not_worse() -> None:
    rng = random.Random(8)
    jobs, runs = [plausible(rng, ready) for ready in ready_times(rng, 40)], Executor(lanes=2)
    times = [search(jobs, runs, limit=limit).seconds for limit in (1, 10, 100, 1000)]
    assert times[-1] <= times[0]
    assert times[-1] <= times[-2] * SLACK


def test_a_fast_network_compresses_nothing_and_a_slow_one_everything() -> None:
    ways = ((wire(1),), (encode(0.5), wire(0.1)))
    fast = [Alternatives(float(i), ways) for i in range(1, 6)]
    assert search(fast, Executor(backward_seconds=7.0)).choice == (0,) * 5
    slow = [Alternatives(0.01 * i, ways) for i in range(1, 6)]
    more = [Alternatives(j.ready_seconds, ((wire(50),), ways[1])) for j in slow]
    assert search(more, Executor()).choice == (1,) * 5


def test_no_jobs_and_no_time() -> None:
    found = search([], Executor(around_seconds=1, backward_seconds=2))
    assert (found.choice, found.seconds, found.lower_bound, found.gap) == ((), 3, 3, 0)
    nothing = search([Alternatives(0.0, ((),))], Executor())
    assert (nothing.seconds, nothing.gap) == (0, 0)
    assert exhaust([], Executor(backward_seconds=2)).seconds == 2
    assert lower_bound([], Executor(backward_seconds=2)) == 2


def test_a_bound_by_hand() -> None:
    """On two lanes and one link: 2, then the least of four jobs, then the last one's decoding."""
    job = Alternatives(
        2.0, ((wire(3), encode(1, Resource.WORKERS)), (wire(4), encode(1, Resource.WORKERS)))
    )
    runs = Executor(lanes=2)
    assert exhaust([job] * 4, runs).seconds >= 15 / SLACK
    found = lower_bound([job] * 4, runs)
    assert found == pytest.approx(15) if len(available_sets()) > 1 else found <= 15


def test_with_a_lane_for_each_job_a_bound_holds_however_they_share_lanes() -> None:
    """By turns, the first and the last of 17 jobs are on one of 16 lanes."""
    long = Alternatives(0.0, ((encode(1, Resource.WORKERS),),))
    jobs, runs = [long, *[Alternatives(0.0, ((),))] * 15, long], Executor(lanes=16)
    for kind in ("twin", None):
        with use("twin") if kind else contextlib.nullcontext():
            assert lower_bound(jobs, runs) == 2
            assert lower_bound(jobs, runs, by_turns=False) == 1


def test_without_the_extension_a_sweep_finds_a_choice() -> None:
    rng = random.Random(5)
    jobs, runs = two_levels(rng, most=4), executor(rng)
    with use("twin"):
        found = search(jobs, runs, limit=200)
    assert found.seconds == pytest.approx(seconds(jobs, found.choice, runs), rel=1e-12)
    assert found.lower_bound <= exhaust(jobs, runs).seconds * SLACK <= found.seconds * SLACK**2
    assert found.evaluations <= 200


def test_what_is_refused() -> None:
    jobs = [Alternatives(0.0, ((wire(1),), (wire(2),)))] * 2
    for start, limit, message in (
        ([0], 10, "one option of each of the 2 jobs"), ([0, 2], 10, r"got \[0, 2\]"),
        ([-1, 0], 10, "Leave it out"), ([0, 0], 0, "at least 1 step; got limit=0"),
        ([0, 0], math.nan, "limit=nan"),
    ):  # fmt: skip
        with pytest.raises(PlanError, match=message):
            search(jobs, Executor(), start=start, limit=limit)
    with pytest.raises(PlanError, match="option, the offsets of lists"):
        search([Alternatives(0.0, ())], Executor())
    own = tensors([j.ready_seconds for j in jobs], [j.options for j in jobs])
    zeros = choices.search_options(own, machine(own, Executor()), own.lane[:2] * 0, limit=5).choice
    with pytest.raises(KernelError, match="finite and above 0, not -1"):
        choices.search_options(own, machine(own, Executor()), zeros, limit=-1)


def test_what_would_never_end_is_refused() -> None:
    job = Alternatives(0.0, ((), ()))
    for limit in (0.0, math.inf, math.nan):
        with pytest.raises(PlanError, match="a search must be allowed at least 1 step"):
            search([job], Executor(), limit=limit)
    with pytest.raises(PlanError, match=r"of 41 jobs with .* search instead"):
        exhaust([job] * 41, Executor())
    with pytest.raises(PlanError, match="not of 100000 jobs"):
        exhaust([Alternatives(0.0, ((),))] * 100_000, Executor())

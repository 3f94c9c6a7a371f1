"""Timelines worked out by hand, then laws on random ones, then the twin."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest
import torch
from timelines import decode, encode, executor, job, jobs, wait, wire

from gradwire.errors import KernelError, PlanError
from gradwire.kernels import use
from gradwire.kernels.jobs import Machine, jobs_of
from gradwire.kernels.native import available_sets
from gradwire.kernels.schedule import record_step, simulate_step
from gradwire.kernels.torch.schedule import Run
from gradwire.planner.timeline import (
    Executor,
    Job,
    Resource,
    Stage,
    machine,
    simulate,
    step_seconds,
    tensors,
)
from gradwire.trace import TRAINING_THREAD, Span

SEEDS = range(120)


@pytest.fixture(params=["native", "twin"], autouse=True)
def _both(request: pytest.FixtureRequest) -> object:
    sets = available_sets()
    if request.param == "native" and len(sets) == 1:
        pytest.skip("no extension here")
    with use("twin" if request.param == "twin" else sets[-1]):
        yield


def times(own: list[Job], **given: float) -> list[tuple[float, float]]:
    return list(simulate(own, Executor(**given)).jobs)  # type: ignore[arg-type]


# -- by hand -----------------------------------------------------------------------------------


def test_one_lane_runs_one_job_after_the_other() -> None:
    """
    backward  ──●─●───┐ 4
    lane        ╞1══4╡╞4══7╡
    """
    own = [job(1, wait(1), wire(2)), job(2, wait(1), wire(2))]
    line = simulate(own, Executor(around_seconds=10.5, backward_seconds=4))
    assert line.jobs == ((1, 4), (4, 7))
    assert line.backward_end_seconds == 4
    assert line.exposed_seconds == 3
    assert line.iteration_seconds == 17.5
    assert line.busy_seconds == {
        Resource.LATENCY: 2, Resource.COMPUTE: 4, Resource.WORKERS: 0, Resource.NODE: 0,
        Resource.CROSS: 4,
    }  # fmt: skip
    assert line.use[Resource.CROSS] == 4 / 7


def test_two_lanes_hide_each_others_latency_and_share_the_link() -> None:
    """Job 1 waits while job 0 is on the wire; from 3 on each has half of it.

    lane 0   ╞1 wait ╞2 ═════ wire: 1 s alone, then half speed: 2 s ═ 5╡
    lane 1      ╞2 wait ╞3 ════════ half until 5, 1 s done; 1 s alone ══ 6╡
    """
    own = [job(1, wait(1), wire(2)), job(2, wait(1), wire(2))]
    assert times(own, lanes=2, backward_seconds=4) == [(1, 5), (2, 6)]


def test_a_lane_keeps_its_jobs_whatever_is_ready() -> None:
    """Lane 0 has jobs 0 and 2: job 2 waits for job 0, although lane 1 is idle."""
    own = [job(0, wait(5)), job(0, wait(1)), job(0, wait(1))]
    assert times(own, lanes=2) == [(0, 5), (0, 1), (5, 6)]


def test_a_lane_waits_for_its_first_job_even_if_the_second_is_ready() -> None:
    assert times([job(3, wait(1)), job(0, wait(1))]) == [(3, 4), (4, 5)]


def test_compute_interrupts_backward_and_pushes_the_rest_back() -> None:
    """
    backward  ──● 1 ╫encode 2╫ ──────● 4 ╫ 5 ╫
    """
    own = [job(1, encode(1), wire(0.5)), job(3, encode(1), wire(0.5))]
    line = simulate(own, Executor(backward_seconds=3))
    assert line.jobs == ((1, 2.5), (4, 5.5))
    assert line.backward_end_seconds == 4, "the second encoding comes when backward is over"
    assert line.busy_seconds[Resource.COMPUTE] == 5
    late = simulate([job(1, wire(0.5), decode(1)), job(3, wire(1))], Executor())
    assert late.backward_end_seconds == 4, "decoding interrupts too"


def test_stages_on_compute_share_it() -> None:
    own = [job(0, encode(1)), job(0, encode(1))]
    assert times(own, lanes=2, backward_seconds=5) == [(0, 2), (0, 2)]
    assert simulate(own, Executor(lanes=2, backward_seconds=5)).backward_end_seconds == 7


def test_workers_share_what_there_is_of_them() -> None:
    own = [job(0, encode(1, Resource.WORKERS)) for _ in range(3)]
    assert times(own, lanes=3, workers=1.0) == [(0, 3)] * 3
    assert times(own, lanes=3, workers=1.5) == [(0, 2)] * 3
    assert times(own, lanes=3, workers=3.0) == [(0, 1)] * 3
    assert simulate(own, Executor(lanes=3, workers=1.0)).backward_end_seconds == 0


def test_processors_slow_all_that_demand_them() -> None:
    """Backward and a worker share one processor: each has half speed until the worker is done."""
    own = [job(0, encode(1, Resource.WORKERS))]
    line = simulate(own, Executor(cores=1.0, backward_seconds=2))
    assert line.jobs == ((0, 2),)
    assert line.backward_end_seconds == 3
    free = simulate(own, Executor(cores=2.0, backward_seconds=2))
    assert (free.jobs[0][1], free.backward_end_seconds) == (1, 2)


def test_a_link_demands_processor_once_and_is_slowed_too() -> None:
    """On one processor both run at half speed; two jobs on the link demand no more of it."""
    one = simulate([job(0, wire(1))], Executor(cores=1.0, wire_demand=1.0, backward_seconds=2))
    assert (one.jobs[0][1], one.backward_end_seconds) == (2, 3)
    own = [job(0, wire(1)), job(0, wire(1))]
    two = simulate(own, Executor(lanes=2, cores=1.0, wire_demand=1.0, backward_seconds=2))
    assert (two.jobs, two.backward_end_seconds) == (((0, 4), (0, 4)), 4)
    both = [job(0, wire(1)), job(0, wire(1, Resource.NODE))]
    links = simulate(both, Executor(lanes=2, cores=1.0, wire_demand=1.0, backward_seconds=2))
    assert (links.jobs, links.backward_end_seconds) == (((0, 3), (0, 3)), 4)
    card = simulate([job(0, wire(1))], Executor(cores=1.0, wire_demand=0.0, backward_seconds=2))
    assert (card.jobs[0][1], card.backward_end_seconds) == (1, 2), "a device of its own"


def test_a_start_up_waits_for_busy_processors_and_takes_some_of_them() -> None:
    """It takes 4 times as long beside backward, and normal time for its rest after that."""
    own = [job(0, wait(1))]
    beside = simulate(own, Executor(start_slowdown=4.0, backward_seconds=8))
    assert beside.jobs == ((0, 4),)
    over = simulate(own, Executor(start_slowdown=4.0, backward_seconds=2))
    assert over.jobs == ((0, 2.5),), "half of it was done"
    taken = simulate(own, Executor(cores=1.0, start_demand=0.25, backward_seconds=2))
    assert (taken.jobs, taken.backward_end_seconds) == (((0, 1),), 2.2), "1 s at 0.8"


def test_start_ups_share_what_they_need_of_processors() -> None:
    own = [job(0, wait(1)), job(0, wait(1))]
    assert simulate(own, Executor(lanes=2)).jobs == ((0, 1), (0, 1))
    assert simulate(own, Executor(lanes=2, start_sharing=0.5)).jobs == ((0, 1.5), (0, 1.5))
    later = [job(0, wait(1)), job(0, encode(0.5, Resource.WORKERS), wait(1))]
    assert simulate(later, Executor(lanes=2, start_sharing=1.0)).jobs == ((0, 1.5), (0, 2))


def test_the_end_waits_for_backward_and_the_last_ready_time_lengthens_it() -> None:
    assert simulate([job(1, wire(1))], Executor(backward_seconds=5)).end_seconds == 5
    assert simulate([job(6)], Executor(backward_seconds=5)).backward_end_seconds == 6
    assert simulate([], Executor(backward_seconds=5, around_seconds=1)).iteration_seconds == 6
    empty = simulate([], Executor())
    assert (empty.iteration_seconds, empty.use[Resource.CROSS], empty.bubbles) == (0, 0, ())


def test_bubbles_are_waits_for_readiness_only() -> None:
    """The link waits for job 1 from 1 to 3; its waiting during latency is no bubble."""
    own = [job(0, wire(1)), job(3, wire(1)), job(3, wait(1), wire(1))]
    assert simulate(own, Executor()).bubbles == ((1, 3),)
    apart = [job(0, wire(1)), job(0, encode(1, Resource.WORKERS), wire(1))]
    assert simulate(apart, Executor()).bubbles == ()
    before = [job(2, wire(1)), job(2, wire(1))]
    assert simulate(before, Executor()).bubbles == (), "before the first use nothing counts"


def test_bubbles_are_of_the_busiest_link() -> None:
    inside = wire(1, Resource.NODE)
    own = [job(0, inside), job(0, wire(2)), job(5, inside, wire(2))]
    assert simulate(own, Executor()).bubbles == ((3, 5),)


def test_bubbles_with_two_lanes() -> None:
    """Lane 1 is ready at 4; until 2 the link was busy with lane 0's job."""
    own = [job(0, wire(2)), job(4, wire(2))]
    assert simulate(own, Executor(lanes=2)).bubbles == ((2, 4),)


def test_a_job_without_stages_is_over_at_once() -> None:
    assert times([job(1), job(1, wire(1)), job(4)]) == [(1, 1), (1, 2), (4, 4)]
    assert times([job(0, wire(3)), job(1), job(1, wire(1))]) == [(0, 3), (3, 3), (3, 4)]


def test_the_trace_reads_as_a_measured_one() -> None:
    own = [Job(0, (encode(1), wait(0.5), wire(1), decode(0.25)), "b0 [topk]"), job(0, wire(1))]
    trace = simulate(own, Executor(lanes=2, around_seconds=2.0, backward_seconds=0.5)).trace()
    assert trace.world == 1
    assert trace.spans[:3] == [
        Span(0, TRAINING_THREAD, "compute", "", -2.0, 0.0),
        Span(0, TRAINING_THREAD, "backward", "", 0.0, 1.5),
        Span(0, TRAINING_THREAD, "wait", "", 1.5, 2.75),
    ]
    assert [(s.rank, s.lane, s.kind, s.label) for s in trace.spans[3:]] == [
        (0, 0, "encode", "b0 [topk]"), (0, 0, "wire", "b0 [topk]"), (0, 0, "wire", "b0 [topk]"),
        (0, 0, "decode", "b0 [topk]"), (0, 1, "wire", "bucket 1"),
    ]  # fmt: skip
    assert trace.seconds("encode") == 1
    assert trace.spans[5].group == "cross"
    inside = simulate([job(0, wire(1, Resource.NODE), wait(1))], Executor()).trace()
    assert [span.group for span in inside.of("wire")] == ["node", "world"]


# -- laws ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", SEEDS[:50])
def test_no_stage_is_faster_than_alone_and_none_overlap_in_a_lane(seed: int) -> None:
    rng = random.Random(seed)
    own, runs = jobs(rng), executor(rng)
    line = simulate(own, runs)
    spans = iter(line.spans)
    free = [0.0] * runs.lanes
    for i, one in enumerate(own):
        for stage in one.stages:
            span = next(spans)
            assert span.seconds >= stage.seconds - 1e-12
            assert span.start_seconds >= max(one.ready_seconds, free[i % runs.lanes]) - 1e-12
            free[i % runs.lanes] = span.end_seconds
    ends = [finish for _, finish in line.jobs]
    assert line.end_seconds == pytest.approx(max(*ends, line.backward_end_seconds))
    assert line.iteration_seconds == step_seconds(own, runs)


@pytest.mark.parametrize("seed", SEEDS[:50])
def test_no_resource_does_more_than_it_can(seed: int) -> None:
    rng = random.Random(seed)
    own, runs = jobs(rng), executor(rng)
    line = simulate(own, runs)
    stages = [stage for one in own for stage in one.stages]
    work = {lane: sum(s.seconds for s in stages if s.lane == lane) for lane in Resource}
    backward = max(runs.backward_seconds, max(j.ready_seconds for j in own))
    for lane in (Resource.NODE, Resource.CROSS):
        assert work[lane] <= line.busy_seconds[lane] + 1e-9
    assert work[Resource.COMPUTE] + backward <= line.busy_seconds[Resource.COMPUTE] + 1e-9
    busy = line.busy_seconds[Resource.WORKERS]
    assert work[Resource.WORKERS] <= min(runs.workers, 99.0) * busy + 1e-9
    demand = backward + work[Resource.COMPUTE] + work[Resource.WORKERS]
    demand += runs.wire_demand * (work[Resource.NODE] + work[Resource.CROSS])
    assert demand <= min(runs.cores, 99.0) * line.end_seconds + 1e-9


@pytest.mark.parametrize("seed", SEEDS[:50])
def test_all_times_scale_together(seed: int) -> None:
    """All times are scaled by a power of two, so the results are equal to the bit."""
    rng = random.Random(seed)
    own, runs = jobs(rng), executor(rng)
    longer = [
        Job(4 * j.ready_seconds, tuple(s._replace(seconds=4 * s.seconds) for s in j.stages))
        for j in own
    ]
    slower = Executor(
        runs.lanes, runs.cores, runs.wire_demand, runs.workers,
        *(4 * t for t in (runs.around_seconds, runs.backward_seconds)),
        runs.start_slowdown, runs.start_sharing, runs.start_demand,
    )  # fmt: skip
    assert step_seconds(longer, slower) == pytest.approx(4 * step_seconds(own, runs), rel=1e-12)
    assert simulate(longer, slower).end_seconds == 4 * simulate(own, runs).end_seconds


def test_limits() -> None:
    """Nothing to send: backward alone. Backward at once: the wire. A slow wire hides the rest."""
    rng = random.Random(3)
    ready = [float(i) for i in range(5)]
    free = [job(r, encode(0), wire(0), decode(0)) for r in ready]
    assert simulate(free, Executor(backward_seconds=9)).end_seconds == 9
    sizes = [rng.random() for _ in ready]
    at_once = [job(0, wire(size)) for size in sizes]
    assert simulate(at_once, Executor(lanes=3)).end_seconds == pytest.approx(sum(sizes))
    slow = [job(r, encode(0.1), wire(1e6 * size)) for r, size in zip(ready, sizes)]
    assert simulate(slow, Executor(lanes=2)).end_seconds == pytest.approx(
        1e6 * sum(sizes), rel=1e-4
    )


# -- twin, and what is refused --------------------------------------------------------------------


@pytest.mark.parametrize("seed", SEEDS)
def test_twin_and_native_give_the_same_bits(seed: int) -> None:
    rng = random.Random(seed)
    drawn, runs = jobs(rng, 12), executor(rng)
    own = tensors([j.ready_seconds for j in drawn], [[j.stages] for j in drawn])
    choice = torch.zeros(len(drawn), dtype=torch.int32)
    twin = Run(own.lists(), machine(own, runs), choice.tolist())
    found = record_step(own, machine(own, runs), choice)
    assert simulate_step(own, machine(own, runs), choice) == found.seconds == twin.end
    assert found.backward_end == twin.backward_end
    assert (found.start.tolist(), found.end.tolist()) == (twin.start, twin.stop)


def test_a_choice_takes_one_option_of_each_job() -> None:
    own = jobs_of([0.0, 1.0], [[[(4, 1.0)], [(4, 5.0)]], [[(4, 1.0)], [], [(4, 2.0)]]])
    whole = Machine(1, 1.0, 0.0, 1.0, 1.0)
    for choice, seconds in {(0, 0): 2, (1, 0): 6, (0, 1): 1, (1, 2): 7}.items():
        assert simulate_step(own, whole, torch.tensor(choice, dtype=torch.int32)) == seconds


WRONG = {
    "ready must be finite and not negative, but one is -1.0": [Job(-1.0, ())],
    "seconds must be finite and not negative, but one is inf": [job(0, wire(math.inf))],
    "but one is nan": [job(0, wire(math.nan))],
    "a stage's lane must be a number from 0 to 4": [Job(0.0, (Stage(7, 1.0, "wire"),))],  # type: ignore[arg-type]
}


@pytest.mark.parametrize("message", WRONG)
def test_wrong_jobs_are_refused(message: str) -> None:
    with pytest.raises(PlanError, match=message):
        simulate(WRONG[message], Executor())


def test_wrong_executors_are_refused() -> None:
    for given, message in {
        ("lanes", 0): "from 1 to 16; got 0", ("lanes", 17): "got 17",
        ("cores", 0.5): "cores must be 1.0 or more", ("workers", 0.0): "workers must be 1.0",
        ("wire_demand", -1.0): "wire_demand must be finite", ("around_seconds", math.nan): "nan",
        ("around_seconds", math.inf): "Measure it again",
        ("start_slowdown", 0.9): "start_slowdown must be finite and at least 1.0, .* got 0.9",
        ("start_sharing", -1.0): "start_sharing must be finite",
        ("start_demand", math.inf): "start_demand must be finite",
    }.items():  # fmt: skip
        with pytest.raises(PlanError, match=message):
            Executor(**{given[0]: given[1]})  # type: ignore[arg-type]


def test_the_kernel_refuses_what_does_not_fit() -> None:
    own = jobs_of([0.0, 1.0], [[[(4, 1.0)]], [[(4, 1.0)]]])
    good, none = Machine(1, 1.0, 0.0, 1.0, 1.0), torch.zeros(2, dtype=torch.int32)
    for machine_, choice, message in (
        (good._replace(lanes=0), none, "1 to 16 lanes"),
        (good._replace(cores=0.5), none, "cores and workers must be 1.0 or more"),
        (good._replace(wire_demand=-1.0), none, "wire_demand must be finite and not negative"),
        (good._replace(start_sharing=math.inf), none, "start_sharing must be finite"),
        (good._replace(start_demand=-1.0), none, "start_demand must be finite"),
        (good._replace(start_slowdown=0.5), none, "start_slowdown must be finite and 1.0 or more"),
        (good._replace(backward_seconds=0.5), none, "a job is ready at 1.0 s"),
        (good._replace(lanes=1.5), none, "1 to 16 lanes, not 1.5"),
        (good._replace(start_demand=1e300), none, "start_demand .* at most"),
        (good, none[:1], "choice must have shape"),
        (good, none + 1, "one of the job's options"),
        (good, none - 1, "one of the job's options"),
        (good, none.long(), "choice must be torch.int32"),
    ):
        with pytest.raises(KernelError, match=message):
            simulate_step(own, machine_, choice)
    with pytest.raises(KernelError, match="option, the offsets of lists"):
        jobs_of([0.0], [[]])
    with pytest.raises(KernelError, match="option, the offsets of lists, must begin at 0"):
        replace(own, option=own.option - torch.tensor([1, 0, 0], dtype=torch.int32))
    for repeats in (0, 1 << 31):
        with pytest.raises(KernelError, match=f"repeats must be 1 to 2.31 - 1, not {repeats}"):
            simulate_step(own, good, none, repeats)
    with pytest.raises(KernelError, match=r"seconds must be finite .* \(1e\+15 at most\)"):
        jobs_of([0.0], [[[(4, 1e300)]]])
    wraps = torch.tensor([0, 2**31 - 1, -2, 1], dtype=torch.int32)
    with pytest.raises(KernelError, match="option, the offsets of lists"):
        replace(own, ready=torch.zeros(3, dtype=torch.float64), option=wraps)

"""The published algorithms, and the cases in which they are known to fail."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import product

import pytest
from timelines import encode, wire

from gradwire.errors import PlanError
from gradwire.planner.bytecomp import Choice, Option, Tensor, greedy, groups, jobs, offload
from gradwire.planner.ordered import last_bubble, ordered
from gradwire.planner.timeline import Executor, Job, Resource, simulate


def tensor(
    ready: float, size: float, *, gpu: float = 1.0, cpu: float = 4.0, ratio: float = 0.25
) -> Tensor:
    """A tensor, sent as it is, or compressed to a quarter on the GPU or the CPU."""
    sent = wire(ratio * size)
    return Tensor(
        ready, int(100 * size),
        (
            Option((wire(size),)),
            Option((encode(gpu), sent), (encode(cpu, Resource.WORKERS), sent)),
        ),
    )  # fmt: skip


def lemma() -> list[Tensor]:
    """Lemma 1: compute (1, 1, 1), and two equal tensors around one that is not compressed."""
    return [tensor(1, 4), Tensor(2, 401, (Option((wire(4),)),)), tensor(3, 4)]


def test_algorithm_1_compresses_what_pays() -> None:
    own = [tensor(1, 8), tensor(2, 0.5), tensor(3, 8)]
    assert greedy(own) == [Choice(1), Choice(0), Choice(1)]


def test_algorithm_1_goes_by_size_and_latest_first() -> None:
    """The larger tensors are tried first, and of two equal ones the later."""
    own = [tensor(1, 6), tensor(2, 6), tensor(3, 1)]
    order: list[tuple[int, ...]] = []

    def once(tried: Sequence[Job]) -> float:
        order.append(tuple(i for i, job in enumerate(tried) if len(job.stages) > 1))
        return 0.0

    assert greedy(own, once) == [Choice(0)] * 3, "what gains nothing stays as it is"
    assert order == [(), (1,), (), (0,), (), (2,)]


def test_algorithm_1_leaves_out_what_is_before_the_last_bubble() -> None:
    own = [tensor(1, 3), tensor(20, 8), tensor(21, 8)]
    assert last_bubble(jobs(own, [Choice(0)] * 3)) == 1
    tried: list[int] = []

    def note(one: Sequence[Job]) -> float:
        tried.append(len(one[0].stages))
        return ordered(one)

    assert greedy(own, note)[0] == Choice(0)
    assert set(tried) == {1}, "the first was never tried"


def test_algorithm_1_looks_for_bubbles_anew() -> None:
    """Compressing the largest makes a bubble after the second, which then stays as it is."""
    own = [tensor(1, 2), tensor(2, 3, gpu=0.1), tensor(5.5, 9, gpu=0.1)]
    assert last_bubble(jobs(own, [Choice(0)] * 3)) == 0
    found = greedy(own)
    assert found[2] == Choice(1)
    seen = jobs(own, [Choice(0), found[1], found[2]])
    assert last_bubble(seen) == (2 if found[1].option else 0)


def test_algorithm_1_is_not_optimal() -> None:
    """It is optimal for most of 300 random instances, not for all: one by one is not enough."""
    rng, best, worst = random.Random(1), 0, 1.0
    for _ in range(300):
        ready = sorted(8 * rng.random() for _ in range(rng.randrange(3, 7)))
        own = [
            tensor(r, 4 * rng.random(), gpu=rng.random(), ratio=rng.random() / 2) for r in ready
        ]
        every = product((Choice(0), Choice(1)), repeat=len(own))
        least = min(ordered(jobs(own, list(choice))) for choice in every)
        reached = ordered(jobs(own, greedy(own)))
        assert reached >= least - 1e-12
        best += reached <= least + 1e-9
        worst = max(worst, reached / least)
    assert 200 <= best < 300
    assert worst > 1.02


def test_groups_have_one_size_and_one_option() -> None:
    own = [tensor(1, 4), tensor(2, 4), tensor(3, 8), tensor(4, 4)]
    compressed = [Choice(1), Choice(1), Choice(1), Choice(0)]
    assert groups(own, compressed) == [[0, 1], [2]]


def test_algorithm_2_offloads_the_earliest_of_a_group_although_another_is_better() -> None:
    """Lemma 1 allows only the first of the two equal ones: 11. The last would give 9, none 8."""
    own = lemma()
    on_gpu = [Choice(1), Choice(0), Choice(1)]
    seen: list[tuple[bool, ...]] = []

    def note(tried: Sequence[Job]) -> float:
        seen.append(tuple(job.stages[0].lane == Resource.WORKERS for job in tried))
        return ordered(tried)

    found = offload(own, on_gpu, note)
    assert seen == [(False, False, False), (True, False, False), (True, False, True)]
    assert found == on_gpu
    first, last = Choice(1, on_cpu=True), Choice(1)
    assert ordered(jobs(own, [first, Choice(0), last])) == 11
    assert ordered(jobs(own, [last, Choice(0), first])) == 9


def test_algorithm_2_offloads_where_it_pays() -> None:
    """Encoding on the GPU interrupts backward, while the CPU is free."""
    own = [tensor(1, 8, gpu=3, cpu=3), tensor(9, 8, gpu=3, cpu=3)]
    on_gpu = [Choice(1)] * 2
    found = offload(own, on_gpu)
    assert found == [Choice(1, on_cpu=True), Choice(1)], "fewest first"
    assert (ordered(jobs(own, found)), ordered(jobs(own, on_gpu))) == (14, 17)


def test_any_evaluator_will_do() -> None:
    own, runs = lemma(), Executor(lanes=2, workers=1.0)

    def evaluate(tried: Sequence[Job]) -> float:
        return simulate(tried, runs).iteration_seconds

    found = offload(own, greedy(own, evaluate, runs), evaluate, runs)
    assert evaluate(jobs(own, found)) <= evaluate(jobs(own, [Choice(0)] * 3))


def test_what_is_refused() -> None:
    own = [tensor(float(i), 1.0 + i) for i in range(6)]
    with pytest.raises(PlanError, match=r"64 ways, more than most=10\. Raise most, or "):
        offload(own, [Choice(1)] * 6, most=10)
    with pytest.raises(PlanError, match="option 0 does not compress"):
        jobs(own, [Choice(0, on_cpu=True)] * 6)

"""The published model: Lemma 1's instances, bubbles, and that a higher cost never helps."""

from __future__ import annotations

import random

import pytest
import torch
from timelines import decode, encode, job, jobs, stages, wait, wire

from gradwire.errors import PlanError
from gradwire.kernels.schedule import ordered_step
from gradwire.kernels.torch import ordered_step as ordered_step_twin
from gradwire.planner.ordered import last_bubble, ordered
from gradwire.planner.timeline import Executor, Job, Resource, Stage, tensors

SEEDS = range(150)


def lemma(ready: list[float], ways: list[tuple[Stage, ...]]) -> list[Job]:
    return [Job(r, way) for r, way in zip(ready, ways)]


def test_lemma_1_fails_where_links_serve_in_order() -> None:
    """Of three tensors the first and the last are compressed to 1 unit, one of them on the CPU. If
    that is the first, its slow encoding keeps the link from all others (research page, A.3)."""
    gpu, cpu = (encode(1), wire(1)), (encode(4, Resource.WORKERS), wire(1))
    plain = (wire(4),)
    assert ordered(lemma([1, 2, 3], [cpu, plain, gpu])) == 11
    assert ordered(lemma([1, 2, 3], [gpu, plain, cpu])) == 9


def test_lemma_1_fails_where_links_serve_by_readiness() -> None:
    gpu, cpu = (encode(1), wire(2)), (encode(6, Resource.WORKERS), wire(2))
    plain = (wire(8),)
    assert ordered(lemma([1, 2, 3], [cpu, gpu, plain]), by="ready") == 15
    assert ordered(lemma([1, 2, 3], [gpu, cpu, plain]), by="ready") == 14


def test_encoding_delays_all_later_backward() -> None:
    own = [job(1, encode(2), wire(1)), job(2, encode(1), wire(1))]
    assert ordered(own) == 6, "backward 2, encodings 3, the second wire"
    assert ordered(own, Executor(1, around_seconds=1, backward_seconds=7)) == 11


def test_decoding_on_compute_comes_last() -> None:
    """The end is max(C + D, M): decoding waits for backward and all encoding, one at a time."""
    own = [job(1, wire(1), decode(1)), job(2, wire(1), decode(1))]
    assert ordered(own) == 4 + 0, "C = 2, D = 2; M = 3 + 1"
    assert ordered(own, Executor(backward_seconds=5)) == 7, "C + D"
    assert ordered([job(1, wire(4), decode(1)), job(2, wire(1), decode(3))]) == 9, "M: 6 + 3"
    assert ordered([job(1, wire(4), decode(3)), job(2, wire(1), decode(1))]) == 9, "M: 5 + 3 + 1"


def test_workers_encode_one_at_a_time_and_do_not_wait_to_decode() -> None:
    slow = (encode(2, Resource.WORKERS), wire(5), decode(1, Resource.WORKERS))
    assert ordered(lemma([0, 0], [slow, slow])) == 13, "encodings at 2 and 4, wires at 7 and 12"


def test_a_link_serves_all_of_a_job_before_the_next() -> None:
    steps = (wire(1, Resource.NODE), wire(2), wire(1, Resource.NODE))
    assert ordered(lemma([0, 0], [steps, steps])) == 8
    assert ordered(lemma([0, 0], [(wait(3), wire(1)), (wait(3), wire(1))])) == 5, "waits overlap"
    assert ordered(lemma([0, 0], [steps, steps]), by="ready") == 6, (
        "node 0-1, 1-2; across 1-3, 3-5"
    )


def test_order_of_issue_need_not_be_that_of_readiness() -> None:
    own = [job(3, encode(1), wire(1)), job(1, encode(1), wire(1))]
    assert ordered(own) == 7, "backward reaches 1 first: the other is encoded at 5"
    assert ordered(own, by="ready") == 6


def test_where_the_last_bubble_is() -> None:
    assert last_bubble([job(0, wire(2)), job(1, wire(2)), job(2, wire(2))]) == 0
    assert last_bubble([job(0, wire(1)), job(5, wire(2)), job(6, wire(2))]) == 1
    assert last_bubble([job(0, wire(1)), job(5, wire(1)), job(9, wait(2), wire(1))]) == 2
    steady = [job(0, wait(1), wire(1)), job(0, wait(1), wire(2, Resource.NODE), wire(1))]
    assert last_bubble(steady) == 0, "latency and the other link are communication"
    assert last_bubble([]) == 0


@pytest.mark.parametrize("seed", SEEDS)
def test_compressing_before_the_last_bubble_never_helps(seed: int) -> None:
    """Property 1 of the paper holds for any way to compress."""
    rng = random.Random(seed)
    ready = sorted(6 * rng.random() for _ in range(6))
    own = [job(r, wait(rng.random() / 4), wire(2 * rng.random())) for r in ready]
    first = last_bubble(own)
    before = ordered(own)
    for which in range(first):
        way = (*stages(rng), wire(rng.random()), *stages(rng))
        tried = [*own[:which], job(ready[which], *way), *own[which + 1 :]]
        assert ordered(tried) >= before - 1e-12


@pytest.mark.parametrize("seed", SEEDS)
def test_no_cost_that_rises_makes_a_step_shorter(seed: int) -> None:
    rng = random.Random(seed)
    own = jobs(rng)
    which = rng.randrange(len(own))
    if not own[which].stages:
        return
    at, more = rng.randrange(len(own[which].stages)), rng.random()
    longer = list(own[which].stages)
    longer[at] = longer[at]._replace(seconds=longer[at].seconds + more)
    tried = [*own[:which], own[which]._replace(stages=tuple(longer)), *own[which + 1 :]]
    assert ordered(tried) >= ordered(own) - 1e-12
    later = [j._replace(ready_seconds=j.ready_seconds + more) for j in own]
    assert ordered(later) >= ordered(own) - 1e-12
    assert ordered(own, Executor(backward_seconds=9)) >= ordered(own)


@pytest.mark.parametrize("by_ready", [False, True])
@pytest.mark.parametrize("seed", SEEDS)
def test_twin_and_native_give_the_same_bits(seed: int, by_ready: bool) -> None:
    rng = random.Random(seed)
    drawn = jobs(rng, 12)
    rng.shuffle(drawn)
    own = tensors([j.ready_seconds for j in drawn], [[j.stages] for j in drawn])
    choice = torch.zeros(len(drawn), dtype=torch.int32)
    backward = max(j.ready_seconds for j in drawn) + rng.random()
    found = ordered_step(own, choice, backward, by_ready)
    twin = ordered_step_twin(own, choice, backward, by_ready)
    assert found.seconds == twin.seconds
    assert found.idle.tolist() == twin.idle.tolist()


@pytest.mark.parametrize("seed", SEEDS[:40])
def test_all_times_scale_together(seed: int) -> None:
    own = jobs(random.Random(seed))
    longer = [
        Job(4 * j.ready_seconds, tuple(s._replace(seconds=4 * s.seconds) for s in j.stages))
        for j in own
    ]
    for by in ("order", "ready"):
        assert ordered(longer, by=by) == 4 * ordered(own, by=by)  # type: ignore[arg-type]


def test_what_is_refused() -> None:
    with pytest.raises(PlanError, match="links must serve by 'order' or 'ready'; got 'size'"):
        ordered([], by="size")  # type: ignore[arg-type]
    with pytest.raises(
        PlanError, match=r"seconds must be finite and not negative, but one is -2\.0"
    ):
        ordered([job(0, wire(-2.0))])

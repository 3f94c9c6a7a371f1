"""The published planners on a profile's costs: each decides by its own rule, tensor by tensor."""

from __future__ import annotations

import math
from itertools import combinations

import pytest
from profiles import profile, resnet50

from gradwire.buckets import Parameter
from gradwire.errors import PlanError
from gradwire.planner.baselines import byteps, hipress, mergecomp
from gradwire.planner.candidates import FP32, Maker
from gradwire.planner.choose import choose
from gradwire.planner.grouping import Grouping, Problem

TOPK = "topk(0.01)+ef | allgather"
SIZES = [(16, 16), (127, 129), (128, 128), (129, 128), (512, 512), (64, 64), (300, 200)]
MIXED = [Parameter(f"w{i}", shape) for i, shape in enumerate(SIZES)]


def problem(options: list[str], bits_per_second: float = 1e9) -> Problem:
    own = profile(parameters=MIXED, bits_per_second=bits_per_second)
    return Maker(own, [1]).problem(options, 1, apart=True)


def test_byteps_compresses_from_64_kib_on() -> None:
    found, seconds = byteps(problem([TOPK, FP32]))
    elements = [math.prod(shape) for shape in reversed(SIZES)]
    assert found.ends == tuple(range(1, len(SIZES) + 1))
    assert [bool(option) for option in found.chosen] == [4 * n >= 65_536 for n in elements]
    assert 16_384 in elements, "the border itself"
    assert 127 * 129 in elements, "and one below it"
    assert seconds == problem([TOPK, FP32]).seconds(found)


def test_byteps_counts_each_tensor_by_its_own_dtype() -> None:
    """Of 20,000 elements in 16 bits there are 39 KiB, and most of the model is in fp32."""
    sizes = {"float32": [(512, 512), (100, 200)], "bfloat16": [(200, 100), (200, 200)]}
    mixed = [Parameter(f"{d}{s}", s, d) for d, own in sizes.items() for s in own]
    own = Maker(profile(parameters=mixed), [1]).problem([TOPK, FP32], 1, apart=True)
    found, _ = byteps(own)
    taken = {(t.dtype, t.elements): bool(o) for t, o in zip(own.tensors, found.chosen)}
    assert taken == {
        ("float32", 262_144): True, ("float32", 20_000): True,
        ("bfloat16", 20_000): False, ("bfloat16", 40_000): True,
    }  # fmt: skip


def test_hipress_looks_at_each_tensor_alone() -> None:
    answers = set[tuple[int, ...]]()
    for rate in (1e8, 1e9, 3e9, 1e10, 1e12):
        own = problem([FP32, TOPK, "int8+ef | alltoall"], rate)
        found, _ = hipress(own)
        for tensor, chosen in zip(own.tensors, found.chosen):
            alone = [
                sum(stage.seconds for stage in own.stages.of(tensor, option))
                for option in own.options
            ]  # fmt: skip
            assert alone[chosen] == min(alone)
        answers.add(found.chosen)
    assert max(len(set(chosen)) for chosen in answers) > 1, "some are compressed, some are not"


def test_mergecomp_of_three_groups_by_trying_all() -> None:
    """In a step with at most two valleys the bisection finds the best of its probes, which an
    exhaustive search bounds from below."""
    own = problem([TOPK], 1e7)
    count = len(own.tensors)

    def best(groups: int) -> float:
        every = [
            (*ends, count) for g in range(groups) for ends in combinations(range(1, count), g)
        ]
        return min(own.seconds(Grouping(ends, (0,) * len(ends))) for ends in every)

    found = {groups: mergecomp(own, groups) for groups in (1, 2, 3, 4)}
    for groups, (grouping, seconds) in found.items():
        assert len(grouping.ends) <= groups
        assert best(groups) <= seconds <= best(1)
    assert found[1][0].ends == (count,)
    assert found[2][1] == pytest.approx(best(2))
    with pytest.raises(PlanError, match="at least 1"):
        mergecomp(own, 0)


def test_more_groups_reach_the_chooser() -> None:
    own = profile(parameters=resnet50()[:40], bits_per_second=2e7)
    few = choose(own, [TOPK], lanes=[1], algorithm="mergecomp")
    more = choose(own, [TOPK], lanes=[1], algorithm="mergecomp", groups=3)
    assert more.best.seconds <= few.best.seconds
    compressed = [s for s in more.best.plan.strategies if str(s) == TOPK]
    assert len(compressed) <= 3


@pytest.mark.parametrize("algorithm", ["hipress", "byteps", "bytecomp"])
def test_a_tensor_may_stay_as_it_is(algorithm: str) -> None:
    own = profile(parameters=MIXED)
    found = choose(own, [TOPK], lanes=[1], algorithm=algorithm)  # type: ignore[arg-type]
    plan = found.best.plan
    assert [len(b.parameters) for b in plan.buckets] == [1] * len(SIZES)
    assert {str(s) for s in plan.strategies} <= {TOPK, FP32}
    assert found.best.seconds >= found.lower_bound

"""MergeComp's problem: by hand, against brute force, its published searches, errors."""

from __future__ import annotations

import random

import pytest
from problems import KINDS, READY, SIZES, by_hand, pair, partitions, schedule_of

from gradwire.errors import PlanError
from gradwire.planner import joint, partition
from gradwire.planner.curves import Curve
from gradwire.planner.joint import Option

ENCODE, SEND = (1.0, 0.1), (1.0, 0.5)


def brute_force(
    ready: list[float], sizes: list[float], encode: joint.Cost, send: joint.Cost, most: int
) -> float:
    by = [Option("gpu", encode, send)]
    return min(
        by_hand(groups, [0] * len(groups), (ready, sizes), by)
        for groups in partitions(len(ready))
        if len(groups) <= most
    )


def measured(
    ready: list[float], sizes: list[float], encode: joint.Cost, send: joint.Cost
) -> partition.Measure:
    """An iteration as the model has it, without noise."""
    return lambda cuts: partition.seconds(cuts, ready, sizes, encode, send)


def test_hand_instance() -> None:
    cuts, time = partition.best(READY, SIZES, ENCODE, SEND)
    assert cuts == [1, 3, 5]
    assert time == pytest.approx(16.8)


@pytest.mark.parametrize(
    ("groups", "wanted"), [(1, 22.8), (2, 17.8), (3, 16.8), (4, 17.6), (5, 18.3)]
)
def test_hand_instance_by_number_of_groups(groups: int, wanted: float) -> None:
    times = [
        partition.seconds([end for _, end in p], READY, SIZES, ENCODE, SEND)
        for p in partitions(5)
        if len(p) == groups
    ]
    assert min(times) == pytest.approx(wanted)


@pytest.mark.parametrize(("most", "cuts"), [(1, [5]), (2, [2, 5]), (3, [1, 3, 5]), (4, [1, 3, 5])])
def test_hand_instance_with_few_groups(most: int, cuts: list[int]) -> None:
    assert partition.best(READY, SIZES, ENCODE, SEND, most)[0] == cuts


@pytest.mark.parametrize("block", range(10))
def test_equal_to_brute_force(block: int) -> None:
    """500 instances, 12 tensors at most, any number of groups and few of them."""
    for seed in range(50 * block, 50 * block + 50):
        dice, kind = random.Random(seed), KINDS[seed % len(KINDS)]
        n = dice.randint(1, 12 if seed % 10 == 0 else 9)
        ready, sizes = schedule_of(kind, n, dice)
        encode, send = pair(kind, dice), pair(kind, dice)
        for most in {n, dice.randint(1, n)}:
            cuts, time = partition.best(ready, sizes, encode, send, most)
            wanted = brute_force(ready, sizes, encode, send, most)
            assert time == pytest.approx(wanted, rel=1e-11, abs=1e-300), seed
            assert time == partition.seconds(cuts, ready, sizes, encode, send), seed
            assert len(cuts) <= most


@pytest.mark.parametrize("seed", range(20))
def test_curves_with_knees(seed: int) -> None:
    dice = random.Random(seed)
    ready, sizes = schedule_of("uniform", 8, dice)
    encode = Curve(((0.5, dice.random()), (1.0, 1.0 + dice.random())))
    send = Curve(((0.3, dice.random()), (2.0, 1.0 + dice.random())), dice.random())
    wanted = brute_force(ready, sizes, encode, send, 8)
    assert partition.best(ready, sizes, encode, send)[1] == pytest.approx(wanted)


@pytest.mark.parametrize("n", [40, 161])
def test_the_recurrence_agrees(n: int) -> None:
    """C[y][j] = min over i of max(C[y-1][i], P(j, y)) + send: with y groups the clock is known."""
    dice = random.Random(n)
    ready, sizes = schedule_of("uniform", n, dice)
    (fixed, rate), (alpha, beta) = (0.5, 0.1), (0.6, 0.4)
    sums = [sum(sizes[:j]) for j in range(n + 1)]
    link, best = [0.0] + [float("inf")] * n, float("inf")
    for y in range(1, n + 1):
        encoded = [ready[j - 1] + y * fixed + rate * sums[j] for j in range(1, n + 1)]
        link = [float("inf")] + [
            min(
                max(link[i], encoded[j - 1]) + alpha + beta * (sums[j] - sums[i]) for i in range(j)
            )
            for j in range(1, n + 1)
        ]
        best = min(best, link[n])
    assert partition.best(ready, sizes, (fixed, rate), (alpha, beta))[1] == pytest.approx(best)


@pytest.mark.parametrize("seed", range(40))
def test_best_is_below_the_bisection_and_that_below_its_first_probe(seed: int) -> None:
    dice = random.Random(seed)
    n = dice.randint(2, 60)
    ready, sizes = schedule_of("uniform", n, dice)
    measure = measured(ready, sizes, ENCODE, SEND)
    split, probes = partition.bisection(measure, n)
    first = next(iter(probes.values()))
    assert first == measure((n // 2, n))
    assert probes[split] <= first
    assert partition.best(ready, sizes, ENCODE, SEND)[1] <= probes[split] * (1 + 1e-11)


@pytest.mark.parametrize("best", range(1, 161))
def test_bisection_finds_the_bottom_of_one_valley(best: int) -> None:
    split, probes = partition.bisection(lambda cuts: abs(cuts[0] - best - 0.1), 161)
    assert abs(split - best) <= 1
    assert len(probes) <= 17


def test_bisection_compares_mid_and_mid_plus_two_and_measures_once() -> None:
    asked: list[int] = []

    def measure(cuts: tuple[int, ...]) -> float:
        asked.append(cuts[0])
        return float(cuts[0])

    split, probes = partition.bisection(measure, 17)
    assert asked == [8, 10, 4, 6, 2, 1, 3]
    assert split == 1
    assert list(probes) == asked


def test_two_tensors_have_one_split() -> None:
    assert partition.bisection(lambda cuts: 1.0, 2) == (1, {1: 1.0})


def test_heuristic_stops_when_a_group_more_gains_little() -> None:
    measure = measured(READY, SIZES, ENCODE, SEND)
    assert partition.heuristic(measure, 5, 5, threshold=0.0)[0] == [1, 3, 5]
    cuts, time = partition.heuristic(measure, 5, 5, threshold=0.3)
    assert (cuts, time) == ([2, 5], pytest.approx(17.8))
    assert partition.heuristic(measure, 5, 1) == ([5], pytest.approx(22.8))
    assert partition.heuristic(lambda cuts: float(len(cuts)), 5, 3) == ([5], 1.0)


@pytest.mark.parametrize("seed", range(20))
def test_best_is_below_the_heuristic(seed: int) -> None:
    dice = random.Random(seed)
    ready, sizes = schedule_of("heavy", 12, dice)
    cuts, time = partition.heuristic(measured(ready, sizes, ENCODE, SEND), 12, 4)
    assert time == partition.seconds(cuts, ready, sizes, ENCODE, SEND)
    assert partition.best(ready, sizes, ENCODE, SEND, 4)[1] <= time * (1 + 1e-11)


def test_huge_start_up_makes_one_group_and_none_the_finest_as_good_as_any() -> None:
    ready, sizes = schedule_of("uniform", 30, random.Random(1))
    assert partition.best(ready, sizes, (1e3, 0.1), (1e3, 0.1))[0] == [30]
    finest = list(range(1, 31))
    time = partition.seconds(finest, ready, sizes, (0.0, 0.1), (0.0, 0.1))
    assert partition.best(ready, sizes, (0.0, 0.1), (0.0, 0.1))[1] == pytest.approx(time)


def test_errors() -> None:
    with pytest.raises(PlanError, match="two tensors at least, not 1"):
        partition.bisection(lambda cuts: 1.0, 1)
    for count, most, threshold in [(0, 1, 0.1), (3, 0, 0.1), (3, 2, 1.0), (3, 2, -0.1)]:
        with pytest.raises(PlanError, match="threshold is from 0 below 1"):
            partition.heuristic(lambda cuts: 1.0, count, most, threshold)
    with pytest.raises(PlanError, match="max_groups is at least 1"):
        partition.best(READY, SIZES, ENCODE, SEND, 0)
    with pytest.raises(PlanError, match="encode is a Curve or a pair"):
        partition.best(READY, SIZES, 3.0, SEND)  # type: ignore[arg-type]
    with pytest.raises(PlanError, match="from 0 to 5"):
        partition.seconds([1, 4], READY, SIZES, ENCODE, SEND)

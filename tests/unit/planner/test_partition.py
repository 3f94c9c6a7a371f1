"""MergeComp's published searches, for two groups and for more."""

from __future__ import annotations

import random
from itertools import combinations

import pytest

from gradwire.errors import PlanError
from gradwire.planner import partition


@pytest.mark.parametrize("seed", range(40))
def test_what_is_found_is_no_slower_than_the_first_probe(seed: int) -> None:
    dice = random.Random(seed)
    n = dice.randint(2, 60)
    seconds = {(split, n): dice.random() for split in range(1, n)}
    split, probes = partition.bisection(seconds.__getitem__, n)
    assert next(iter(probes)) == n // 2
    assert probes[split] == min(probes.values())
    assert all(seconds[probe, n] == took for probe, took in probes.items())


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


def test_one_tensor_is_not_cut() -> None:
    with pytest.raises(PlanError, match="at least two tensors; got 1"):
        partition.bisection(lambda cuts: 1.0, 1)


def measured(ready: list[float], sizes: list[float]) -> partition.Measure:
    """Seconds with one link and one processor that computes and encodes in turn; affine costs."""

    def seconds(cuts: tuple[int, ...]) -> float:
        delay = link = 0.0
        for begin, end in zip((0, *cuts), cuts):
            size = sum(sizes[begin:end])
            encoded = ready[end - 1] + delay + 0.4 + 0.1 * size
            delay = encoded - ready[end - 1]
            link = max(link, encoded) + 0.5 + size
        return link

    return seconds


READY, SIZES = [1.0, 2.0, 4.0, 5.0, 6.0], [4.0, 1.0, 5.0, 2.0, 3.0]


def test_the_search_for_several_tries_all_cuts_but_the_last() -> None:
    measure = measured(READY, SIZES)
    every = [(*cuts, 5) for k in range(3) for cuts in combinations(range(1, 5), k)]
    cuts, seconds = partition.heuristic(measure, 5, 3, threshold=0.0)
    assert seconds == measure(tuple(cuts))
    assert seconds == pytest.approx(min(map(measure, every)))


def test_it_stops_when_a_group_more_gains_little() -> None:
    measure = measured(READY, SIZES)
    fine, coarse = (partition.heuristic(measure, 5, 5, t)[0] for t in (0.0, 0.3))
    assert len(coarse) <= len(fine)
    assert partition.heuristic(measure, 5, 1) == ([5], measure((5,)))
    assert partition.heuristic(lambda cuts: float(len(cuts)), 5, 3) == ([5], 1.0)


@pytest.mark.parametrize("numbers", [(0, 1, 0.1), (3, 0, 0.1), (3, 2, 1.0), (3, 2, -0.1)])
def test_numbers_out_of_range(numbers: tuple[int, int, float]) -> None:
    with pytest.raises(PlanError, match="threshold from 0 to below 1"):
        partition.heuristic(lambda cuts: 1.0, *numbers)

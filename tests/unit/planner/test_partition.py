"""MergeComp's published search for two groups."""

from __future__ import annotations

import random

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
    with pytest.raises(PlanError, match="two tensors at least, not 1"):
        partition.bisection(lambda cuts: 1.0, 1)

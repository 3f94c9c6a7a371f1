"""The race: which plan runs next, which is out, and which wins."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import pytest

from gradwire.errors import PlanError
from gradwire.tuning.race import Race, ratio_interval


def drive(race: Race, seconds: Callable[[int], float], ranks: int = 1) -> list[int]:
    """Runs the race to its end; returns the plans in the order of their turns."""
    turns = list[int]()
    while not race.is_over:
        while not race.is_round_over:
            turns.append(race.plan)
            race.took(seconds(race.plan))
        race.learn([race.own_times()] * ranks)
    return turns


def noisy(means: Sequence[float], share: float, seed: int = 0) -> Callable[[int], float]:
    dice = random.Random(seed)
    return lambda number: means[number] * (1 + share * (dice.random() - 0.5))


def test_the_fastest_wins_where_it_is_clearly_faster() -> None:
    race = Race(4, baselines=(0,))
    drive(race, noisy([1.0, 0.9, 0.5, 0.7], 0.1))
    assert race.winner() == 2


def test_the_baseline_stays_where_nothing_beats_it_beyond_noise() -> None:
    race = Race(3, baselines=(1,))
    drive(race, noisy([0.99, 1.0, 1.01], 0.3))
    assert race.winner() == 1


def test_the_baseline_that_is_fastest_wins() -> None:
    race = Race(2, baselines=(0,))
    drive(race, noisy([0.5, 1.0], 0.1))
    assert race.winner() == 0


def test_a_single_plan_need_not_race() -> None:
    race = Race(1)
    assert race.is_over
    assert race.winner() == 0


def test_two_baselines_race_as_well() -> None:
    race = Race(2, baselines=(0, 1))
    drive(race, noisy([1.0, 0.5], 0.1))
    assert race.winner() == 1


def test_every_plan_has_a_turn_in_a_round_and_the_next_is_the_other_way_round() -> None:
    race = Race(3)
    turns = drive(race, lambda number: 1.0 + number)
    length = len(turns) // len([n for n in turns if n == 0])
    steps = turns.index(1)
    assert turns[: 6 * steps] == [n for n in (0, 1, 2, 2, 1, 0) for _ in range(steps)]
    assert length >= 1


def test_after_two_rounds_the_slower_half_is_out_but_never_the_baseline() -> None:
    race = Race(8, baselines=(7,))
    turns = drive(race, lambda number: 1.0 + number)
    counts = [turns.count(n) for n in range(8)]
    assert counts[7] == counts[0] == max(counts)
    assert counts[4] == counts[5] == counts[6] == min(counts)
    assert counts[2] < counts[1] or counts[1] == counts[0]
    assert race.winner() == 0


def test_the_mean_of_ranks_counts_step_by_step() -> None:
    race = Race(2)
    while not race.is_round_over:
        race.took(1.0)
    mine = race.own_times()
    theirs = [3.0 if i % 2 else 0.5 for i in range(len(mine))]
    race.learn([mine, theirs])
    assert race.seconds[0] == [0.75, 2.0] * (len(mine) // 4)


def test_ranks_that_are_late_in_turn_make_no_plan_slower() -> None:
    race = Race(2)
    while not race.is_round_over:
        race.took(1.0)
    late = [0.3, -0.3, 0.3, -0.3, *[0.0] * (len(race.own_times()) - 4)]
    race.learn([[1.0 + own for own in late], [1.0 - own for own in late]])
    assert race.seconds[0] == pytest.approx(race.seconds[1])


def test_a_slow_while_is_not_held_against_who_is_out_early() -> None:
    race = Race(8, baselines=(7,), rounds=(8, 8))
    rounds = dict.fromkeys(range(8), 0)

    def seconds(number: int) -> float:
        rounds[number] += 1
        steps_of_two_rounds = 12
        return (1.0 + number) * (1.7 if rounds[number] <= steps_of_two_rounds else 1.0)

    drive(race, seconds)
    assert race.seconds[6] == pytest.approx([1.7 * 7.0] * 8), "it ran in the slow rounds only"
    for number in range(8):
        assert race.paced(number) == pytest.approx([1.0 + number] * len(race.seconds[number]))


def test_the_first_steps_of_a_turn_do_not_count() -> None:
    race = Race(2)
    first = True
    while not race.is_round_over:
        race.took(100.0 if first else 1.0)
        first = False
    assert set(race.own_times()) == {1.0}


def test_all_ranks_decide_alike() -> None:
    one, other = Race(5, baselines=(2,)), Race(5, baselines=(2,))
    a, b = noisy([1, 2, 3, 4, 5], 0.5, seed=1), noisy([1, 2, 3, 4, 5], 0.5, seed=2)
    while not one.is_over:
        while not one.is_round_over:
            assert one.plan == other.plan
            one.took(a(one.plan))
            other.took(b(other.plan))
        times = [one.own_times(), other.own_times()]
        one.learn(times)
        other.learn(times)
    assert other.is_over
    assert one.winner() == other.winner()


def test_the_interval_holds_the_ratio_and_is_the_same_for_the_same_numbers() -> None:
    dice = random.Random(3)
    one = [0.5 + 0.01 * dice.random() for _ in range(12)]
    other = [1.0 + 0.01 * dice.random() for _ in range(12)]
    low, high = ratio_interval(one, other)
    assert low <= 0.5 <= high or abs(low - 0.5) < 0.01
    assert high < 1.0
    assert ratio_interval(one, other) == (low, high)


def test_a_race_without_a_plan_to_beat_is_refused() -> None:
    with pytest.raises(PlanError, match="got 3 plans and no baseline"):
        Race(3, ())

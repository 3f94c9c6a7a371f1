"""What real steps show about a profile: it is right, wrong about the network, or neither."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from profiles import few, profile

from gradwire.plan import Plan
from gradwire.planner.candidates import timeline_of
from gradwire.planner.choose import choose
from gradwire.planner.correction import moves_factor, with_around
from gradwire.planner.profile import Profile
from suites import first


def raced(said: Profile, real: Profile, noise: float = 0.0) -> list[tuple[Plan, float]]:
    """The finalists of what a profile predicts, with the seconds that their steps really take."""
    dice = random.Random(0)
    return [
        (c.plan, timeline_of(real, c.plan).iteration_seconds * (1 + noise * dice.uniform(-1, 1)))
        for c in choose(said).finalists
    ]


SLOW = profile(bits_per_second=2e8, parameters=few(), backward_seconds=0.01)


@pytest.mark.once
@pytest.mark.parametrize("wrong", first([0.5, 2.0, 0.25, 4.0], 2))
@pytest.mark.parametrize("noise", [0.0, 0.08])
def test_a_wrong_network_is_found(wrong: float, noise: float) -> None:
    said = SLOW.slowed(wrong)
    assert moves_factor(said, raced(said, SLOW, noise)) == pytest.approx(1 / wrong, rel=0.2)


@pytest.mark.parametrize("noise", [0.0, 0.15])
def test_what_is_right_stays(noise: float) -> None:
    assert moves_factor(SLOW, raced(SLOW, SLOW, noise)) == 1.0


def test_steps_that_wait_for_nothing_say_nothing() -> None:
    fast = profile(
        bits_per_second=1e11, start_seconds=1e-6, parameters=few(), backward_seconds=1.0
    )
    assert moves_factor(fast.slowed(0.5), raced(fast, fast, 0.1)) == 1.0


@pytest.mark.parametrize("pace", [0.6, 0.75, 1.3, 1.6])
def test_a_machine_that_is_slower_as_a_whole_is_no_slower_network(pace: float) -> None:
    measured = [(plan, seconds * pace) for plan, seconds in raced(SLOW, SLOW, 0.08)]
    assert moves_factor(SLOW, measured) == 1.0


@pytest.mark.parametrize("share", [0.3, 0.4])
def test_what_every_step_waits_for_once_is_no_slower_network(share: float) -> None:
    made = profile(
        bits_per_second=1e11, start_seconds=2e-3, parameters=few(), backward_seconds=0.01
    )
    busy = replace(made, around_seconds=0.02)
    steps = raced(busy, busy)
    waited = share * min(seconds for _, seconds in steps)
    assert moves_factor(busy, [(plan, seconds + waited) for plan, seconds in steps]) == 1.0


@pytest.mark.once
@pytest.mark.parametrize("factor", [0.5, 2.0])
def test_many_compressed_plans_do_not_outvote_the_baseline(factor: float) -> None:
    as_if = raced(SLOW, SLOW.slowed(factor))
    compressed = [p for p in as_if if p[0].main_strategy.feedback]
    bf16 = next(p for p in raced(SLOW, SLOW) if p[0].main_strategy.compressor.name == "bf16")
    assert moves_factor(SLOW, compressed) == factor
    assert moves_factor(SLOW, [*compressed, bf16]) == 1.0


def test_what_no_factor_explains_is_left() -> None:
    measured = [(plan, s * f) for (plan, s), f in zip(raced(SLOW, SLOW), (4.0, 0.25, 4.0, 0.25))]
    assert moves_factor(SLOW, measured) == 1.0


@pytest.mark.parametrize("off", [-0.1, 0.0, 0.03])
def test_what_all_plans_are_off_by_is_around_backward(off: float) -> None:
    measured = [(plan, seconds + off) for plan, seconds in raced(SLOW, SLOW)]
    measured[0] = (measured[0][0], 9.0)  # a step that something else disturbed
    found = with_around(SLOW, measured)
    assert found.around_seconds == pytest.approx(SLOW.around_seconds + off)
    assert found.backward_seconds == SLOW.backward_seconds
    assert found.strategies == SLOW.strategies


def test_nothing_takes_less_than_no_time() -> None:
    measured = [(plan, 1e-3) for plan, _ in raced(SLOW, SLOW)]
    assert with_around(SLOW, measured).around_seconds == 0.0


def test_nothing_measured_corrects_nothing() -> None:
    assert moves_factor(SLOW, []) == 1.0
    assert with_around(SLOW, []) == SLOW


def test_moves_take_so_many_times_as_long() -> None:
    slower = SLOW.slowed(3.0)
    for text, cost in SLOW.strategies.items():
        assert slower.strategies[text].wire(5000) == pytest.approx(3 * cost.wire(5000))
        assert slower.strategies[text].encode == cost.encode
        assert slower.strategies[text].bytes == cost.bytes
    assert {n: f(1e6) for n, f in slower.moves.items()} == pytest.approx(
        {n: 3 * f(1e6) for n, f in SLOW.moves.items()}
    )

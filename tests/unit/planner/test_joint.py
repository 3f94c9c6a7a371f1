"""Groups and options for one link: by hand, by brute force, laws, limits, the twin, errors."""

from __future__ import annotations

import random
from itertools import product
from typing import Any

import pytest
from problems import (
    KINDS,
    READY,
    SIZES,
    Schedule,
    brute_force,
    by_hand,
    options_of,
    partitions,
    realistic,
    schedule_of,
)

from gradwire.errors import PlanError
from gradwire.kernels import lanes, use
from gradwire.kernels.lanes import Problem
from gradwire.kernels.native import TWIN
from gradwire.kernels.one_link import plan_link
from gradwire.planner import joint
from gradwire.planner.curves import Curve
from gradwire.planner.joint import Option, Solution, solve
from suites import first

HAND = [
    Option(send=(1.0, 1.0)),
    Option("gpu", (1.0, 0.1), (1.0, 0.1), (0.5, 0.05)),
    Option("cpu", (2.0, 0.3), (1.0, 0.1), (0.5, 0.05)),
]


def drawn(seed: int, most: int = 6) -> tuple[Schedule, list[Option]]:
    """The seed's instance, of one kind after the other."""
    dice, kind = random.Random(seed), KINDS[seed % len(KINDS)]
    return schedule_of(kind, dice.randint(1, most), dice), options_of(kind, dice)


def best(*asked: Any) -> tuple[list[tuple[int, int]], list[int], float]:
    """A solution without its proof."""
    found = solve(*asked)
    return found.groups, found.chosen, found.time


def close(a: float, b: float) -> bool:
    return a == pytest.approx(b, rel=1e-11, abs=1e-300)


# -- by hand -------------------------------------------------------------------------------------


def test_hand_instance() -> None:
    """Tensor 0: ready 2, sent 11. The others: ready 10, encoded 12, sent 14, decoded 15."""
    assert best(READY, SIZES, HAND) == ([(0, 1), (1, 5)], [0, 1], 15.0)
    assert joint.seconds([(0, 1), (1, 5)], [0, 1], READY, SIZES, HAND) == 15.0
    assert brute_force((READY, SIZES), HAND) == 15.0


def test_hand_instance_has_one_best_plan() -> None:
    plans = [(p, c) for p in partitions(5) for c in product(range(3), repeat=len(p))]
    times = [joint.seconds(p, c, READY, SIZES, HAND) for p, c in plans]
    assert [plan for plan, time in zip(plans, times) if time < 15.05] == [
        ([(0, 1), (1, 5)], (0, 1))
    ]


@pytest.mark.parametrize(("chosen", "time"), [([2, 0, 1], 11.0), ([1, 0, 2], 9.0)])
def test_offloading_the_first_tensor_need_not_be_best(chosen: list[int], time: float) -> None:
    """A slow encode of the first tensor on the worker holds up all that is sent after it."""
    options = [Option(send=(4, 0)), Option("gpu", (1, 0), (1, 0)), Option("cpu", (4, 0), (1, 0))]
    groups = [(0, 1), (1, 2), (2, 3)]
    assert joint.seconds(groups, chosen, [1, 2, 3], [1, 1, 1], options) == time


def test_decodes_wait_for_all_else_and_for_one_another() -> None:
    """Sent at 3 and 5 (or 7 and 12, on a slower link), then decoded for 2 + 2 seconds."""
    groups = [(0, 1), (1, 2)]
    options = [Option("gpu", (1.0, 0.0), (1.0, 0.0), (2.0, 0.0))]
    assert joint.seconds(groups, [0, 0], [1.0, 2.0], [1.0, 1.0], options) == 9.0
    late = [Option("gpu", (1.0, 0.0), (5.0, 0.0), (2.0, 0.0))]
    assert joint.seconds(groups, [0, 0], [1.0, 2.0], [1.0, 1.0], late) == 16.0


def test_decodes_of_both_lanes_are_one_debt() -> None:
    """Sent at 2 and 3, then decoded for 4 seconds on the worker and for 8 on the compute lane."""
    options = [
        Option("gpu", send=(1.0, 0.0), decode=(8.0, 0.0)),
        Option("cpu", send=(1.0, 0.0), decode=(4.0, 0.0)),
    ]
    assert joint.seconds([(0, 1), (1, 2)], [1, 0], [1.0, 2.0], [1.0, 1.0], options) == 15.0


def test_one_tensor_takes_the_fastest_option() -> None:
    assert best([3.0], [10.0], HAND)[1:] == ([1], pytest.approx(8.0))


# -- brute force ---------------------------------------------------------------------------------


@pytest.mark.parametrize("block", first(range(10), 3))
def test_equal_to_brute_force(block: int) -> None:
    """500 instances: zero costs, ties, equal ready times, huge costs among them."""
    for seed in range(50 * block, 50 * block + 50):
        schedule, options = drawn(seed)
        found = solve(*schedule, options)
        assert found.is_exact, seed
        assert close(found.time, brute_force(schedule, options)), seed
        assert found.time == joint.seconds(found.groups, found.chosen, *schedule, options), seed
        hand = by_hand(found.groups, found.chosen, schedule, options)
        assert close(found.time, hand), seed


@pytest.mark.parametrize("seed", range(40))
def test_seconds_is_the_model_as_worded(seed: int) -> None:
    (ready, sizes), options = drawn(seed, most=5)
    for groups in partitions(len(ready)):
        for chosen in product(range(3), repeat=len(groups)):
            wanted = by_hand(groups, chosen, (ready, sizes), options)
            assert close(joint.seconds(groups, chosen, ready, sizes, options), wanted)


@pytest.mark.parametrize("seed", range(60))
def test_curves_with_knees(seed: int) -> None:
    dice = random.Random(seed)
    schedule = schedule_of("uniform", 5, dice)

    def knee() -> Curve:
        low, high = dice.random(), dice.random()
        return Curve(((0.2, low), (1.0, low + high), (1.5, low + high)), dice.random())

    options = [Option(send=knee()), Option("gpu", knee(), knee(), knee()), Option("cpu", knee())]
    assert close(solve(*schedule, options).time, brute_force(schedule, options))


@pytest.mark.parametrize("seed", range(60))
def test_few_labels_are_never_better_and_their_bound_holds(seed: int) -> None:
    schedule, options = drawn(seed)
    wanted = brute_force(schedule, options)
    for labels in (1, 2, 3):
        found = solve(*schedule, options, max_labels=labels)
        assert found.lower_bound <= wanted * (1 + 1e-11)
        assert wanted <= found.time * (1 + 1e-11)
        assert found.time == joint.seconds(found.groups, found.chosen, *schedule, options)


@pytest.mark.parametrize("seed", range(60))
def test_a_tolerance_is_kept(seed: int) -> None:
    schedule, options = drawn(seed)
    found = solve(*schedule, options, tolerance=0.1)
    assert found.time <= 1.1 * brute_force(schedule, options) * (1 + 1e-11)
    assert found.gap <= 0.1 + 1e-11


@pytest.mark.parametrize("seed", range(30))
def test_spans_and_counts_are_kept(seed: int) -> None:
    (ready, sizes), options = drawn(seed)
    for span, most in product((1, 2, 3), (2, 3, 6)):
        if span * most < len(ready):
            continue
        found = solve(ready, sizes, options, max_span=span, max_groups=most)
        allowed = [
            by_hand(groups, chosen, (ready, sizes), options)
            for groups in partitions(len(ready))
            if len(groups) <= most and all(end - first <= span for first, end in groups)
            for chosen in product(range(3), repeat=len(groups))
        ]
        assert close(found.time, min(allowed))
        assert len(found.groups) <= most
        assert all(end - first <= span for first, end in found.groups)


# -- laws ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(40))
def test_no_cost_that_rises_makes_it_faster(seed: int) -> None:
    (ready, sizes), options = drawn(seed)
    time = solve(ready, sizes, options).time * (1 - 1e-11)
    more = Curve.affine(0.3, 0.1)
    for number, by in enumerate(options):
        for name in ("encode", "send", "decode") if by.lane != "none" else ("send",):
            costs = {x: getattr(by, x) for x in ("encode", "send", "decode")}
            costs[name] = costs[name] + more
            raised = [*options]
            raised[number] = Option(by.lane, **costs)
            assert solve(ready, sizes, raised).time >= time
    assert solve([x + 0.5 for x in ready], sizes, options).time >= time
    assert solve(ready, [x + 0.5 for x in sizes], options).time >= time


@pytest.mark.parametrize("seed", range(40))
def test_one_option_more_makes_it_no_slower(seed: int) -> None:
    schedule, options = drawn(seed)
    times = [solve(*schedule, options[: k + 1]).time for k in range(3)]
    assert times[0] * (1 + 1e-11) >= times[1]
    assert times[1] * (1 + 1e-11) >= times[2]


@pytest.mark.parametrize("seed", range(40))
def test_time_scales(seed: int) -> None:
    """Powers of two scale without rounding: the same plan."""
    (ready, sizes), options = drawn(seed)
    found = solve(ready, sizes, options)
    slower = [
        Option(o.lane, *(c.scaled(1.0, 4.0) for c in (o.encode, o.send, o.decode)))
        for o in options
    ]
    scaled = solve([4.0 * x for x in ready], sizes, slower)
    assert scaled == Solution(
        found.groups, found.chosen, 4 * found.time, 4 * found.lower_bound, found.labels
    )


@pytest.mark.parametrize("seed", range(40))
def test_the_unit_of_sizes_does_not_matter(seed: int) -> None:
    (ready, sizes), options = drawn(seed)
    other = [
        Option(o.lane, *(c.scaled(0.125) for c in (o.encode, o.send, o.decode))) for o in options
    ]
    assert solve(ready, [8.0 * x for x in sizes], other) == solve(ready, sizes, options)


# -- limits --------------------------------------------------------------------------------------


def test_infinite_bandwidth_compresses_nothing() -> None:
    (ready, sizes), options = realistic(40, 0.0, random.Random(1))
    found = solve(ready, sizes, options)
    assert set(found.chosen) == {0}
    assert found.is_exact


def test_hardly_any_bandwidth_compresses_all_that_counts() -> None:
    (ready, sizes), options = realistic(24, 1e4, random.Random(1))
    found = solve(ready, sizes, options)
    raw = [g for g, o in zip(found.groups, found.chosen) if o == 0]
    assert sum(sum(sizes[a:b]) for a, b in raw) < 0.01 * sum(sizes)


def test_huge_start_up_makes_one_group() -> None:
    (ready, sizes), _ = realistic(40, 1.0, random.Random(1))
    options = [Option(send=(1e3, 1e-9)), Option("gpu", (1e3, 1e-9), (1e3, 1e-10))]
    assert best(ready, sizes, options)[0] == [(0, 40)]


def test_no_start_up_makes_finest_groups_as_good_as_any() -> None:
    (ready, sizes), _ = realistic(40, 1.0, random.Random(1))
    options = [Option(send=(0.0, 1e-8))]
    finest = [(j, j + 1) for j in range(40)]
    time = joint.seconds(finest, [0] * 40, ready, sizes, options)
    assert close(best(ready, sizes, options)[2], time)


def test_nothing_at_all_takes_no_time() -> None:
    found = solve([0.0, 0.0], [0.0, 0.0], [Option(), Option("gpu")])
    assert (found.time, found.groups, found.chosen) == (0.0, [(0, 2)], [0])
    assert found.is_exact
    assert found.gap == 0.0


def test_of_equal_plans_few_groups_and_low_options() -> None:
    free = [Option("gpu"), Option("cpu"), Option()]
    assert best([1.0, 2.0, 3.0], [1.0, 1.0, 1.0], free) == ([(0, 3)], [0], 3.0)


def test_a_hostile_instance_says_how_far_off_it_may_be() -> None:
    """Encodes to be shared evenly between two processors: like splitting a set into equal sums."""
    dice = random.Random(3)
    sizes = [dice.uniform(1, 2) for _ in range(60)]
    options = [Option("gpu", (0.0, 1.0), (0.0, 1e-3)), Option("cpu", (0.0, 1.0), (0.0, 1e-3))]
    found = solve([0.0] * 60, sizes, options, max_labels=8)
    assert sum(sizes) / 2 < found.time < sum(sizes)
    assert found.lower_bound <= found.time
    assert found.gap < 0.1
    assert (found.gap == 0.0) == found.is_exact


# -- twin and native -----------------------------------------------------------------------------


def in_turn(schedule: Schedule, options: list[Option], **asked: int) -> list[Solution]:
    """By the native kernel, where there is one, and by its twin."""
    found = [solve(*schedule, options, **asked)]
    with use(TWIN):
        return [*found, solve(*schedule, options, **asked)]


@pytest.mark.parametrize("seed", range(200))
def test_twin_is_native_to_the_bit(seed: int) -> None:
    native, twin = in_turn(*drawn(seed, most=9))
    assert native == twin


@pytest.mark.parametrize("slow", [0.3, 1.0, 3.0, 10.0])
@pytest.mark.parametrize("n", first([24, 70]))
def test_twin_is_native_where_labels_are_dropped(slow: float, n: int) -> None:
    native, twin = in_turn(*realistic(n, slow, random.Random(n)), max_labels=4)
    assert native == twin


def test_one_label_at_a_stop_is_an_end_too() -> None:
    """The one with the lowest bound has used up more groups than another: they are never near."""
    none = [(0.0, 0.0, 0.0)]
    sends = [
        [(0.0, 1.414, 0.9228)],
        [(0.0, 0.1625, 0.3759), (0.7504, 0.4446, 0.6335), (4.2109, 2.6368, 0.6004)],
        [(0.0, 6.8e-05, 0.06274), (2.2696, 0.14246, 0.6759)],
    ]
    problem = Problem(
        (0.0004, 0.0007, 1.0, 2.3347, 8.3421),
        (0.0, 4.5334, 8.5426, 12.273, 12.4305, 16.7155),
        [lanes.Option(0, none, send, none) for send in sends], 5, 3,
    )  # fmt: skip
    native = plan_link(problem, 0.01, 1)
    with use(TWIN):
        assert native == plan_link(problem, 0.01, 1)
    assert native.lower_bound <= native.seconds


@pytest.mark.parametrize("seed", range(20))
def test_twin_is_native_with_limits(seed: int) -> None:
    schedule, options = drawn(seed, most=9)
    n = len(schedule[0])
    native, twin = in_turn(schedule, options, max_span=max(n // 2, 1), max_groups=n // 2 + 2)
    assert native == twin


# -- errors --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "rule"),
    [
        ({"lane": "tpu"}, "lane is one of none, gpu, cpu, not 'tpu'"),
        ({"encode": (1.0, 0.0)}, "neither encodes nor decodes"),
        ({"decode": (0.0, 1.0)}, "neither encodes nor decodes"),
        ({"send": (-1.0, 0.0)}, "not negative"),
        ({"send": 3.0}, "send is a Curve or a pair"),
    ],
)
def test_what_is_no_option(asked: dict[str, object], rule: str) -> None:
    with pytest.raises(PlanError, match=rule):
        Option(**asked)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("asked", "rule"),
    [
        ({"tolerance": -0.1}, "tolerance is a part of the time"),
        ({"tolerance": float("nan")}, "tolerance is a part of the time"),
        ({"max_span": 0}, "max_span is at least 1, not 0"),
        ({"max_groups": -1}, "max_groups is at least 1"),
        ({"max_labels": 0}, "max_labels is at least 1"),
        ({"max_span": 2, "max_groups": 2}, "hold 4, but there are 5"),
    ],
)
def test_what_cannot_be_asked(asked: dict[str, float], rule: str) -> None:
    with pytest.raises(PlanError, match=rule):
        solve(READY, SIZES, HAND, **asked)  # type: ignore[arg-type]


def test_there_must_be_an_option() -> None:
    with pytest.raises(PlanError, match="one option at least"):
        solve(READY, SIZES, [])


@pytest.mark.parametrize(
    ("groups", "chosen", "rule"),
    [
        ([(0, 5)], [3], "an option from 0 to 2"),
        ([(0, 5)], [], "an option from 0 to 2"),
        ([(0, 4)], [0], "from 0 to 5"),
        ([(1, 5)], [0], "from 0 to 5"),
        ([(0, 2), (3, 5)], [0, 0], "one after the other"),
        ([(0, 5), (5, 5)], [0, 0], "not empty"),
        ([], [], "from 0 to 5"),
    ],
)
def test_what_is_no_plan(groups: list[tuple[int, int]], chosen: list[int], rule: str) -> None:
    with pytest.raises(PlanError, match=rule):
        joint.seconds(groups, chosen, READY, SIZES, HAND)

"""Lower bounds for one link: no plan is faster, from the start, after a prefix, before a rest."""

from __future__ import annotations

import random
from itertools import accumulate, pairwise, product

import pytest
from problems import KINDS, Schedule, brute_force, options_of, partitions, schedule_of

from gradwire.kernels import lanes
from gradwire.kernels.lanes import LANES, Clocks, Problem
from gradwire.kernels.link_bounds_twin import Bounds, Paths
from gradwire.planner.joint import Option

SLACK = 1 + 1e-11


def drawn(seed: int) -> tuple[Schedule, list[Option], Problem]:
    dice, kind = random.Random(seed), KINDS[seed % len(KINDS)]
    (ready, sizes), options = schedule_of(kind, 5, dice), options_of(kind, dice)
    ways = [
        lanes.Option(LANES.index(o.lane), o.encode.rows, o.send.rows, o.decode.rows)
        for o in options
    ]
    position = tuple(accumulate(sizes, initial=0.0))
    return (ready, sizes), options, Problem(ready, position, ways, 5, 5)


def plans(p: Problem) -> list[list[tuple[int, Clocks]]]:
    """Of every plan the stops and the clocks there."""
    found = []
    for groups in partitions(p.n):
        for chosen in product(range(len(p.options)), repeat=len(groups)):
            clocks, course = Clocks(), [(0, Clocks())]
            for (first, end), option in zip(groups, chosen):
                clocks = clocks.after(p.group(first, end, option))
                course.append((end, clocks))
            found.append(course)
    return found


@pytest.mark.parametrize("seed", range(35))
def test_every_round_has_a_bound_and_a_plan(seed: int) -> None:
    schedule, options, p = drawn(seed)
    wanted = brute_force(schedule, options)
    paths = Paths(p, range(p.n + 1))
    for _ in range(30):
        ends, numbers = paths.play(wanted)
        assert ends[-1] == p.n
        assert len(ends) == len(numbers)
        assert paths.bound <= wanted * SLACK
        weights = paths.best
        assert all(a.delay >= b.delay and a.link <= b.link for a, b in pairwise(weights))
        assert all(w.delay >= 0 and w.delay + w.link <= 1 + 1e-12 for w in weights)


@pytest.mark.parametrize("seed", range(35))
def test_no_plan_ends_before_the_bounds_on_its_way(seed: int) -> None:
    _, _, p = drawn(seed)
    courses = plans(p)
    best = min(course[-1][1].link for course in courses)
    paths = Paths(p, range(p.n + 1))
    for _ in range(20):
        paths.play(best)
    paths.look_back()
    limit = 1.5 * best
    for longest in (2, 64):
        bounds = Bounds(p, range(p.n + 1), paths, limit, longest)
        for course in courses:
            time = course[-1][1].link
            for stop, clocks in course:
                assert paths(clocks, stop) <= time * SLACK + 1e-300
                assert min(bounds(clocks, stop), limit) <= time * SLACK + 1e-300


@pytest.mark.parametrize("seed", range(35))
def test_a_bound_of_whole_fronts_is_the_best_time(seed: int) -> None:
    schedule, options, p = drawn(seed)
    wanted = brute_force(schedule, options)
    paths = Paths(p, range(p.n + 1))
    paths.play(wanted)
    paths.look_back()
    bounds = Bounds(p, range(p.n + 1), paths, 2 * wanted, 10_000)
    assert bounds(Clocks(), 0) == pytest.approx(wanted, rel=1e-11, abs=1e-300)


def test_paths_of_few_stops_are_a_beginning_for_many() -> None:
    """The same weights at the stops that both have, so nearly the same bound from the start."""
    _, _, p = drawn(0)
    rough, fine = Paths(p, [0, 2, 5]), Paths(p, range(6))
    for _ in range(10):
        rough.play(1e9)
    fine.begin_like(rough)
    assert [fine.logs[k] for k in (1, 2, 3, 5)] == [rough.logs[k] for k in (1, 1, 2, 2)]


def test_where_no_plan_is_allowed_the_bound_is_infinite() -> None:
    _, _, p = drawn(0)
    narrow = Problem(p.ready, p.position, p.options, 2, 5)
    paths = Paths(narrow, [0, 4, 5])
    assert paths.play(1.0) == ((), ())
    assert paths.bound == float("inf")

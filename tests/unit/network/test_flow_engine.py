"""Fair shares: textbook cases, the twin, and the time of routes."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import simgrid_cases
from demands import FABRICS, SIZE, demands, groups, permutation, unequal
from hypothesis import given
from hypothesis import strategies as st

from gradwire.errors import NetworkError
from gradwire.network import Fabric, Flows, bounds, dual_plane, leaf_spine, route, simulate
from gradwire.network.engines.flow import transfers_of
from gradwire.network.engines.maxmin import (
    Change,
    Rows,
    Transfers,
    rates,
    rates_twin,
    run,
    run_twin,
)
from gradwire.network.native import core

NATIVE = pytest.mark.skipif(core() is None, reason="needs the extension")


def transfers(
    uses: list[list[int]], rate: list[float], bytes: list[float] | None = None,
    waits: list[tuple[int, int]] = [], delay: list[float] | None = None,  # noqa: B006
    many: list[int] | None = None,
) -> Transfers:  # fmt: skip
    """Makes transfers. waits: (transfer, the one that it waits for)."""
    n = len(uses)
    rows = np.repeat(np.arange(n), [len(own) for own in uses])
    pairs = np.array(sorted((before, after) for after, before in waits), np.int64).reshape(-1, 2)
    return Transfers(
        Rows.of(rows, np.array([link for own in uses for link in own], np.int64), n),
        np.ones(len(rows)), np.array(bytes or [1.0] * n, float), np.array(many or [1] * n, float),
        Rows.of(pairs[:, 0], pairs[:, 1], n),
        np.array(delay or [0.0] * n, float), np.array(rate, float),
    )  # fmt: skip


def test_a_parking_lot() -> None:
    """One flow over k links and one flow on each link: all get a half."""
    for k in (1, 2, 7):
        lot = transfers([list(range(k)), *([i] for i in range(k))], [1.0] * k)
        assert rates(lot).tolist() == [0.5] * (k + 1)


def test_a_triangle() -> None:
    """Each of three flows uses two of three links, so all get a half."""
    assert rates(transfers([[0, 1], [1, 2], [2, 0]], [1.0] * 3)).tolist() == [0.5] * 3


def test_what_one_cannot_use_others_get() -> None:
    """Bertsekas and Gallager's example: shares 1/3, 1/3, 1/3, 2/3 and 1."""
    five = transfers([[0, 1], [0], [0, 2], [1], [2, 3]], [1.0, 1.0, 4 / 3, 9.0])
    assert rates(five) == pytest.approx([1 / 3, 1 / 3, 1 / 3, 2 / 3, 1.0])


def test_one_transfer_stands_for_many() -> None:
    one = transfers([[0], [0, 1]], [6.0, 1.5], many=[2, 3])
    assert rates(one) == pytest.approx([2.25, 0.5])


def test_when_one_ends_the_others_go_faster() -> None:
    times = run(transfers([[0], [0]], [1.0], bytes=[1.0, 2.0]))
    assert times.end == pytest.approx([2.0, 3.0])
    assert times.rounds == 2


def test_transfers_wait_for_others_and_a_delay() -> None:
    """0 runs, then 1 after a delay of 5 s, then 3, which waits for 2 as well; 2 moves no bytes."""
    chain = transfers(
        [[0], [0], [], [0]], [1.0], [1.0, 2.0, 0.0, 3.0], [(1, 0), (3, 1), (3, 2)],
        [0.0, 5.0, 20.0, 0.5],
    )  # fmt: skip
    times = run(chain)
    assert times.begin == pytest.approx([0.0, 6.0, 20.0, 20.5])
    assert times.end == pytest.approx([1.0, 8.0, 20.0, 23.5])


def test_rates_and_links_change_meanwhile() -> None:
    """Two share a link, which dies at second 1; from 3 on the first has another link. The second's
    comes back at 5, after the first has ended."""
    two = transfers([[0], [0]], [1.0, 2.0], bytes=[1.0, 2.0])
    first = Rows(np.array([0, 1, 2]), np.array([1, 0]))
    parts, dead = np.ones(2), np.array([0.0, 2.0])
    changes = (Change(1.0, two.uses, parts, dead), Change(3.0, first, parts, dead),
               Change(5.0, first, parts, two.rate))  # fmt: skip
    changing = replace(two, changes=changes)
    for times in (run(changing), run_twin(changing, 0.0)):
        assert times.end == pytest.approx([3.25, 6.5])
    with pytest.raises(NetworkError, match="1 of 2 never do, the first is number 1"):
        run(replace(two, changes=changes[:2]))


def test_what_never_ends_is_told() -> None:
    with pytest.raises(NetworkError, match="1 of 2 never do, the first is number 1"):
        run(transfers([[0], [1]], [1.0, 0.0]))
    with pytest.raises(NetworkError, match="2 of 2 never do"):
        run(transfers([[0], [0]], [1.0], waits=[(0, 1), (1, 0)]))
    with pytest.raises(NetworkError, match="tolerance must be a fraction"):
        run(transfers([[0]], [1.0]), 1.0)


@st.composite
def any_transfers(draw: st.DrawFn) -> Transfers:
    n, links = draw(st.integers(1, 14)), draw(st.integers(1, 6))
    dice = np.random.default_rng(draw(st.integers(0, 10**6)))
    uses = [dice.choice(links, dice.integers(1, links + 1), False).tolist() for _ in range(n)]
    made = transfers(
        uses, dice.uniform(0.5, 3, links).tolist(),
        (dice.integers(1, 5, n) * (dice.random(n) > 0.2)).astype(float).tolist(),
        [(a, int(dice.integers(0, a))) for a in range(1, n) if dice.random() < 0.5],
        (dice.random(n) * (dice.random(n) < 0.3)).tolist(), dice.integers(1, 4, n).tolist(),
    )  # fmt: skip
    made.part[:] = dice.uniform(0.1, 1, len(made.part))
    when = np.sort(dice.uniform(0, 6, draw(st.integers(0, 3))))
    return replace(made, changes=tuple(_change(dice, float(own), n, links) for own in when))


def _change(dice: np.random.Generator, when: float, n: int, links: int) -> Change:
    """A change to other random links and rates for all."""
    uses = [dice.choice(links, dice.integers(1, links + 1), False).tolist() for _ in range(n)]
    other = transfers(uses, dice.uniform(0.5, 3, links).tolist())
    part = dice.uniform(0.1, 1, len(other.part))
    return Change(when, other.uses, part, other.rate)


@NATIVE
@given(any_transfers(), st.sampled_from([0.0, 0.0, 0.1]))
def test_the_twin_finds_the_same(given_: Transfers, tolerance: float) -> None:
    assert rates(given_) == pytest.approx(rates_twin(given_, np.arange(len(given_))))
    begin, end, _ = run_twin(given_, tolerance)
    times = run(given_, tolerance)
    near = 1e-6 + tolerance / 10  # of two that end at the same time, either may be first
    assert times.begin == pytest.approx(begin, rel=near)
    assert times.end == pytest.approx(end, rel=near)


@given(any_transfers())
def test_no_link_is_overfull_and_everyone_has_a_full_one(given_: Transfers) -> None:
    """Max-min fairness by its definition: each uses a full link on which none is faster."""
    rate = rates(given_)
    row = np.repeat(np.arange(len(given_)), np.diff(given_.uses.start))
    load = np.zeros(len(given_.rate))
    np.add.at(load, given_.uses.value, given_.part * (rate * given_.many)[row])
    assert (load <= given_.rate * (1 + 1e-9)).all()
    is_full = load >= given_.rate * (1 - 1e-9)
    fastest = np.zeros(len(load))
    np.maximum.at(fastest, given_.uses.value, rate[row])
    for one in range(len(given_)):
        own = given_.uses.of_row(one)
        assert any(is_full[link] and fastest[link] <= rate[one] * (1 + 1e-9) for link in own)


@pytest.mark.parametrize("fabric", FABRICS)
@pytest.mark.parametrize("scheme", ["spray", "coloured", "min_split", "ecmp", "ecmp_k(3)"])
def test_nothing_is_faster_than_the_bound(fabric: Fabric, scheme: str) -> None:
    for flows in demands(fabric):
        least = bounds(flows, fabric).seconds
        took = simulate(route(flows, fabric, scheme), "flow")
        assert took >= least * (1 - 1e-9)
        assert took >= simulate(route(flows, fabric, scheme)) * (1 - 1e-9)


@pytest.mark.parametrize("scheme", ["spray", "coloured", "wrap"])
def test_plans_that_can_take_the_bound_do(scheme: str) -> None:
    fabric = leaf_spine(8, 8, 8)
    for flows in (permutation(fabric, 3), unequal(permutation(fabric, 4), 1)):
        if scheme == "coloured" and len(set(flows.bytes.tolist())) > 1:
            continue
        took = simulate(route(flows, fabric, scheme), "flow")
        assert took == pytest.approx(bounds(flows, fabric).seconds)


def test_by_two_ports_a_flow_is_twice_as_fast() -> None:
    fabric = dual_plane(2, 2, 2, host_gbps=200)
    for scheme, factor in (("spray", 1), ("coloured", 2), ("min_split", 1)):
        took = simulate(route([(0, 2, SIZE)], fabric, scheme), "flow")
        assert took == pytest.approx(factor * SIZE * 8 / 200e9)


def test_the_fullest_link_is_busy_to_the_end() -> None:
    """With ECMP and a common start, flows take about as long as the fullest link is busy."""
    fabric = leaf_spine(8, 8, 8)
    flows = groups(fabric, 8, 2)
    for seed in range(3):
        routes = route(flows, fabric, "ecmp", seed)
        assert simulate(routes, "flow") == pytest.approx(simulate(routes), rel=0.1)


def test_steps_wait_for_all_of_the_step_before() -> None:
    fabric = leaf_spine(2, 2, 2, host_gbps=8)
    flows = Flows([0, 1, 0, 3], [2, 3, 1, 0], [10**9, 2 * 10**9, 10**9, 10**9], [0, 0, 3, 9])
    assert simulate(route(flows, fabric, "spray"), "flow") == pytest.approx(4.0)


def test_pieces_that_are_alike_are_one_transfer() -> None:
    fabric = leaf_spine(2, 2, 1)
    routes = route(Flows([0] * 5 + [1], [2] * 5 + [3], SIZE), fabric)
    found = transfers_of(routes)
    assert sorted(found.many.tolist()) == [1.0, 5.0]
    assert simulate(routes, "flow") == pytest.approx(6 * SIZE * 8 / 100e9)


@pytest.mark.parametrize("tolerance", [0.001, 0.01, 0.05])
def test_tolerance_is_how_much_too_long_it_takes_at_most(tolerance: float) -> None:
    fabric = leaf_spine(4, 8, 4)
    routes = route(unequal(groups(fabric, 6, 1), 7), fabric, "ecmp", 1)
    exact, rough = (run(transfers_of(routes), t) for t in (0.0, tolerance))
    assert exact.end.max() <= rough.end.max() * (1 + 1e-9)
    assert rough.end.max() <= exact.end.max() * (1 + tolerance)
    assert rough.rounds < exact.rounds


def test_a_tolerance_adds_nothing_where_ends_coincide() -> None:
    """Twenty steps of equal transfers: each begins when the last ends, not a tolerance later."""
    fabric = leaf_spine(2, 2, 2, host_gbps=8)
    hops = [(src, dst) for _ in range(20) for src, dst in ((0, 2), (1, 3))]
    flows = Flows(*zip(*hops), [10**9] * 40, [step for step in range(20) for _ in range(2)])
    given_ = transfers_of(route(flows, fabric, "spray"))
    assert run(given_, 0.05).end.max() == pytest.approx(20.0)
    assert run_twin(given_, 0.05).end.max() == pytest.approx(20.0)


def test_nothing_takes_no_time() -> None:
    assert simulate(route([], leaf_spine(2, 2, 2)), "flow") == 0.0


@pytest.mark.parametrize("case", range(simgrid_cases.CASES))
def test_flows_end_when_simgrid_says(case: int) -> None:
    """Ten random cases of hashed flows of unequal size end when SimGrid says."""
    _, routes = simgrid_cases.made(case)
    ends = run(transfers_of(routes)).end[: len(routes.flows)]
    wanted = json.loads(simgrid_cases.FILE.read_text())[case]
    assert len(set(wanted)) > 8, "a case in which rates change often"
    assert ends.tolist() == pytest.approx(wanted, rel=1e-6)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"delay": np.array([0.0, np.nan])}, "delay of transfers must be numbers .* 1 is nan"),
        ({"bytes": np.array([1.0, -1.0])}, "bytes of transfers .* number 1 is -1.0"),
        ({"rate": np.array([np.inf])}, "rate of transfers .* is inf"),
        ({"many": np.ones(3)}, "the same length; got 2 of bytes, 3 of many"),
        ({"part": np.ones(1)}, "got 2 of uses, 1 of part"),
        ({"part": np.array(["1", "2"])}, "part of transfers must be one row of numbers; got <U1"),
        ({"uses": Rows(np.array([0, 1, 2]), np.array([0, 1]))}, "uses .* from 0 to 0; number 1"),
        ({"uses": Rows(np.array([0, 5, 2]), np.array([0, 0]))}, "uses must be 2 rows, each from"),
        ({"next": Rows(np.array([0, 1]), np.array([0]))}, "next must be 2 rows, .* got 2 begins"),
        ({"next": Rows(np.array([0, 0, 1]), np.array([2]))}, "next .* from 0 to 1; number 0 is 2"),
    ],
)
def test_columns_that_do_not_fit_are_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(NetworkError, match=said):
        replace(transfers([[0], [0]], [1.0]), **changes)


def test_columns_of_any_kind_and_step_are_read() -> None:
    """A strided array of 32-bit byte counts is read."""
    two = replace(transfers([[0], [0]], [1.0]), bytes=np.array([1, 9, 3, 9], np.int32)[::2])
    assert run(two).end.tolist() == [2.0, 4.0]

"""The function `route`: schemes as text, steps, and refusals."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from demands import SIZE, permutation, unequal

from gradwire.errors import NetworkError
from gradwire.families import ROUTING
from gradwire.network import Flow, Flows, bounds, leaf_spine, route, samples
from gradwire.network.routes import Routes
from gradwire.network.routing import MEMBERS, EcmpK, Spray
from gradwire.network.routing.route import scheme_of

FABRIC = leaf_spine(4, 4, 4)


def test_every_scheme_is_known_by_its_name() -> None:
    assert set(ROUTING) == {
        "coloured", "min_split", "optimal", "wrap", "lpt", "ethereal", "spray", "adaptive", "reps",
        "mp_rdma", "ecmp_k", "ecmp",
    }  # fmt: skip
    assert len(ROUTING) == len(MEMBERS)


@pytest.mark.parametrize(
    "scheme", [EcmpK(8), Spray("rotating", 1500), ROUTING["wrap"](4096), ROUTING["ecmp"]()]
)
def test_a_scheme_is_read_as_it_prints(scheme: object) -> None:
    assert scheme_of(str(scheme)) == scheme


def test_flows_are_given_as_tuples_too() -> None:
    one = route([Flow(0, 4, 10), (1, 5, 10)], FABRIC, "ecmp", 3)
    other = route(Flows([0, 1], [4, 5], 10), FABRIC, "ecmp", 3)
    assert one.assignments == other.assignments


def test_steps_are_routed_one_by_one() -> None:
    """Two equal steps take the same paths, as if each were alone."""
    once = permutation(FABRIC, 1)
    twice = Flows(
        *(np.tile(c, 2) for c in (once.src, once.dst, once.bytes)),
        np.arange(len(once) * 2) // len(once),
    )
    for scheme in ("coloured", "min_split", "ethereal"):
        single, double = (route(flows, FABRIC, scheme) for flows in (once, twice))
        assert double.max_load == 2 * single.max_load
        assert double.pieces == 2 * single.pieces
        assert double.fabric_seconds == pytest.approx(2 * single.fabric_seconds)


def test_seconds_of_steps_add_up_although_links_differ() -> None:
    fabric = leaf_spine(2, 2, 2, host_gbps=8)
    routes = route([(0, 2, 10**9, 0), (1, 3, 10**9, 1)], fabric)
    assert routes.fabric_seconds == pytest.approx(2.0)
    assert routes.max_load in (10**9, 2 * 10**9)


def test_steps_that_differ_in_one_thing_are_not_taken_for_repeated() -> None:
    # Two flows share the link of leaf 0; one is larger, begins elsewhere, or takes another path.
    # Two share the link of leaf 2; one ends elsewhere. Then the first again.
    steps = [
        [(0, 4, 7), (1, 9, 7)], [(0, 4, 7), (1, 9, 9)], [(0, 4, 7), (5, 9, 7)],
        [(0, 4, 7), (1, 9, 7)], [(0, 9, 7), (5, 10, 7)], [(0, 9, 7), (5, 12, 7)],
        [(0, 4, 7), (1, 9, 7)],
    ]  # fmt: skip
    rows = [(*flow, i) for i, step in enumerate(steps) for flow in step]
    flows = Flows(*np.array(rows).T)
    path = np.array([0, 0] * 3 + [0, 1] + [0, 0] * 3)
    routes = Routes(FABRIC, flows, np.arange(14), path, flows.bytes)
    expected = []
    for i in range(7):
        own = np.flatnonzero(flows.step == i)
        alone = Routes(FABRIC, flows[own], np.arange(2), path[own], flows.bytes[own])
        expected.append((alone.seconds, alone.fabric_seconds, alone.host_seconds))
    assert len(set(expected)) > 2
    found = routes.seconds, routes.fabric_seconds, routes.host_seconds
    assert found == pytest.approx([sum(each) for each in zip(*expected, strict=True)])


def test_no_flows_need_no_paths() -> None:
    for scheme in (
        "coloured",
        "min_split",
        "optimal",
        "wrap",
        "lpt",
        "ethereal",
        "spray",
        "adaptive",
    ):
        routes = route([], FABRIC, scheme)
        assert (routes.pieces, routes.max_load, routes.fabric_seconds) == (0, 0, 0.0)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("colored", "'colored' is not a scheme .* Use 'coloured'"),
        ("ecmp_k", "parameters of 'ecmp_k' do not fit: .*'k'.* Use 'ecmp_k\\(k\\)'"),
        ("ecmp_k(0)", "k is a whole number of at least 1; got 0"),
        ("spray('sometimes')", "one of 'ideal', 'random', 'rotating'; got 'sometimes'"),
        (f"spray('random', {10**30})", f"packet is a whole number of at most {2**53}; got 10+"),
        ("wrap(least=-1)", "least is a whole number of at least 0; got -1"),
        ("", "it must be a non-empty string"),
        ("ecmp(", "it must have the form 'a scheme with its parameters'"),
    ],
)
def test_texts_that_are_no_scheme_are_refused(text: str, said: str) -> None:
    with pytest.raises(NetworkError, match=said):
        route([(0, 4, 1)], FABRIC, text)


@pytest.mark.parametrize("ask", [route, bounds, samples])
def test_a_text_is_no_topology(ask: Callable[..., object]) -> None:
    with pytest.raises(NetworkError, match=r"must be a Fabric; got 'leaf_spine\(2, 2, 2\)'"):
        ask([(0, 2, 1000)], "leaf_spine(2, 2, 2)")


def test_hosts_that_are_not_there_are_refused() -> None:
    with pytest.raises(NetworkError, match="from 0 to 15; got a flow with host 16"):
        route([(0, 16, 1)], FABRIC)


def test_hosts_without_a_path_are_refused() -> None:
    apart = FABRIC.without("leaf1")
    assert route([(0, 8, 1), (4, 5, 1)], apart).pieces == 1, "below the leaf nothing failed"
    with pytest.raises(NetworkError, match="0 and 4 have none, and 1 of 2 flows are so"):
        route([(0, 8, 1), (0, 4, 1)], apart)


@pytest.mark.parametrize("scheme", ["coloured", "min_split", "ethereal"])
def test_unequal_flows_are_told_of_schemes_for_any(scheme: str) -> None:
    flows = unequal(Flows(np.zeros(6, int), np.arange(6) + 4, SIZE), 1)
    with pytest.raises(NetworkError, match=r"the same size; got .* use 'wrap' .* or 'lpt'"):
        route(flows, FABRIC, scheme)

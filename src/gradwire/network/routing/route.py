"""Routes flows over a topology by the text of a scheme: the entry point of all schemes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from gradwire.errors import NetworkError
from gradwire.families import ROUTING
from gradwire.network.amounts import scaled
from gradwire.network.fabric import EVERY, Fabric, count, fabric_of
from gradwire.network.flows import Flow, Flows
from gradwire.network.routes import Routes
from gradwire.network.routing.scheme import Crossing, Scheme, Share
from gradwire.notation import Notation

NOTATION = Notation("routing scheme", "a scheme with its parameters", "ecmp_k(8)", NetworkError)


def route(
    flows: Flows | Iterable[Flow | tuple[int, ...]], topology: Fabric,
    scheme: str | Scheme = "coloured", seed: int = 0,
) -> Routes:  # fmt: skip
    """Chooses paths for all flows, step by step: those of one step share the network. Equal steps
    take the same paths.

    scheme: 'coloured', 'min_split', 'wrap', 'lpt', 'ethereal', 'spray', 'adaptive', 'reps',
    'mp_rdma(4)', 'ecmp_k(8)', 'ecmp', or, where scipy is installed, 'optimal'. Equal seeds give
    equal routes. Raises NetworkError for a text that is no scheme, unknown hosts, hosts between
    which no path works, and flows that the scheme cannot route.

    Example:
        >>> from gradwire.network import Flow, leaf_spine, route
        >>> routes = route([Flow(0, 4, 10**9)], leaf_spine(leaves=2, hosts=4, spines=4), "ecmp")
        >>> routes.seconds  # a gigabyte at 100 Gbit/s
        0.08
    """
    chosen, given = scheme_of(scheme), Flows.of(flows)
    count("seed", seed, 0)
    given.refuse_beyond(fabric_of(topology).hosts)
    refuse_disconnected(topology, given)
    groups = given.steps()
    if sum(map(len, groups)) < 2:
        return _routed(chosen, topology, given, seed)
    routed = [(steps, _routed(chosen, topology, given[steps[0]], seed)) for steps in groups]
    return Routes(topology, given, *Share.joined([
        Share(rows[own.flow], own.path, own.amount, own.unit)
        for steps, own in routed
        for rows in steps
    ]))  # fmt: skip


def _routed(scheme: Scheme, topology: Fabric, flows: Flows, seed: int) -> Routes:
    """Routes by the scheme, and checks the routes of one from another package."""
    whose = ROUTING.whose(scheme.name)
    if whose is None:
        return scheme.route(topology, flows, seed)
    try:
        found: Any = scheme.route(topology, flows, seed)
        wrong = _wrong_routes(found, topology, flows)
    except NetworkError:
        raise
    except Exception as error:
        wrong = f"it raised {type(error).__name__}: {error}"
    if wrong is not None:
        raise NetworkError(
            f"'{scheme}', a routing scheme of {whose}, breaks the contract of its "
            f"family: {wrong}. Tell its authors, or use another."
        )
    return found  # type: ignore[no-any-return]


def _wrong_routes(routes: Any, topology: Fabric, flows: Flows) -> str | None:
    if not isinstance(routes, Routes):
        return f"route must return Routes; it returned {type(routes).__name__}"
    if not (routes.fabric is topology or routes.fabric.is_like(topology)):
        return "it must route over the topology that it is given; it took another"
    if routes.flows is not flows and routes.flows != flows:
        return f"it must route the flows that it is given; it routed {routes.flows}"
    sent = np.zeros(len(flows), np.int64)
    np.add.at(sent, routes.flow, routes.amount)
    off = np.flatnonzero(sent != scaled(flows.bytes, routes.unit))
    if len(off):
        had = f"those of flow {off[0]} add up to {sent[off[0]] / routes.unit:g}"
        return f"the pieces of a flow must add up to its bytes; {had}"
    off = np.flatnonzero((routes.path < EVERY) | routes.off_paths)
    if len(off):
        return f"pieces must take paths between their leaves; piece {off[0]} takes another"
    dead = np.flatnonzero((routes.loads.amount > 0) & (topology.rates == 0))
    if len(dead):
        return f"pieces must take paths that work; {topology.links[dead[0]].name} has failed"
    return None


def scheme_of(scheme: str | Scheme) -> Scheme:
    """Reads a scheme from its text: 'ecmp_k(8)', 'spray(order="rotating")'. Raises NetworkError if
    it is none."""
    if isinstance(scheme, Scheme):
        return scheme
    made: Scheme = NOTATION.member(scheme, NOTATION.read(scheme), ROUTING, "scheme")
    return made


def refuse_disconnected(topology: Fabric, flows: Flows) -> None:
    """Raises NetworkError for flows between hosts that no path connects."""
    crossing = Crossing(topology, flows)
    lost = np.flatnonzero(crossing.usable.counts == 0)
    if len(lost):
        flow = flows[crossing.which[lost[:1]]]
        raise NetworkError(
            f"hosts that send to each other need a path that works; {int(flow.src[0])} and "
            f"{int(flow.dst[0])} have none, and {len(lost)} of {len(flows)} flows are so. Restore "
            "a link, or leave these flows out."
        )

"""Routes as one JSON document: the topology, the flows, and the path of every piece.

    {"format": 1,
     "topology": {"leaf_of": […], "pod_of": […], "uplinks": [["spine0", 0], …], "plane_of": […],
                  "cores": 0, "host_up": [[…], …], "host_down": [[…], …], "rates": […]},
     "flows": {"src": […], "dst": […], "bytes": […], "step": […]},
     "unit": 1, "pieces": {"flow": […], "path": […], "amount": […]}}

Rates are bits per second in the order of `Fabric.links`; paths as `fabric` numbers them, -1: below
the leaf, -2: sprayed over all; amounts are in 1/unit bytes.
"""

from __future__ import annotations

import json
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from gradwire.errors import NetworkError
from gradwire.network.fabric import BELOW, EVERY, Fabric
from gradwire.network.flows import Flows
from gradwire.network.routes import Routes

FORMAT = 1
_FABRIC = ("leaf_of", "pod_of", "plane_of", "host_up", "host_down", "rates")
_FLOWS = ("src", "dst", "bytes", "step")
_PIECES = ("flow", "path", "amount")


def to_json(routes: Routes) -> str:
    """Equal when read back, link by link."""
    fabric, flows = routes.fabric, routes.flows
    return json.dumps({
        "format": FORMAT,
        "topology": {
            **{name: getattr(fabric, name).tolist() for name in _FABRIC},
            "uplinks": fabric.uplinks, "cores": fabric.cores,
        },
        "flows": {name: getattr(flows, name).tolist() for name in _FLOWS},
        "unit": routes.unit,
        "pieces": {name: getattr(routes, name).tolist() for name in _PIECES},
    }) + "\n"  # fmt: skip


def from_json(text: str) -> Routes:
    """NetworkError for what is no such document of this format, and for pieces that are not their
    flows' bytes, or take paths that are not there or do not work."""
    try:
        data = json.loads(text)
    except ValueError as error:
        _fail(f"it is no JSON: {error}")
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        _fail(
            f"the format is {data.get('format')!r}" if isinstance(data, dict) else "it is a list"
        )
    try:
        fabric = _fabric(data["topology"])
        flows = Flows(*(data["flows"][name] for name in _FLOWS))
        flow, path = (np.array(data["pieces"][name], np.int64) for name in _PIECES[:2])
        amount = _amounts(data["pieces"]["amount"])
        routes = Routes(fabric, flows, flow, path, amount, int(data["unit"]))
    except NetworkError:
        raise
    except (KeyError, TypeError, ValueError) as error:
        _fail(f"{type(error).__name__}: {error}")
    _check(routes)
    return routes


def _amounts(values: list[int]) -> NDArray[Any]:
    """Whole numbers; beyond 64 bits as Python's own."""
    if not all(isinstance(value, int) for value in values):
        raise TypeError("amounts of pieces are whole numbers")
    fits = all(-(1 << 63) <= value < 1 << 63 for value in values)
    return np.array(values, np.int64 if fits else object)


def _fabric(data: dict[str, Any]) -> Fabric:
    columns = {name: np.array(data[name], np.int64) for name in _FABRIC}
    uplinks = tuple((str(name), int(number)) for name, number in data["uplinks"])
    fabric = Fabric(uplinks=uplinks, cores=int(data["cores"]), **columns)
    if len(fabric.rates) != len(fabric.links) or len(fabric.plane_of) != len(uplinks):
        _fail(f"there are {len(fabric.links)} links and {len(fabric.rates)} rates")
    if int(fabric.leaf_of.max(initial=-1)) >= fabric.leaves or len(fabric.host_up) != fabric.hosts:
        _fail("hosts, leaves and ports do not fit together")
    return fabric


def _check(routes: Routes) -> None:
    fabric, flows = routes.fabric, routes.flows
    if not len(routes.flow) == len(routes.path) == len(routes.amount):
        _fail("flow, path and amount of pieces are not equally long")
    if len(routes.flow) and not 0 <= routes.flow.min() <= routes.flow.max() < len(flows):
        _fail(f"pieces are of flows 0 to {len(flows) - 1}")
    last = int(max(flows.src.max(initial=-1), flows.dst.max(initial=-1)))
    if last >= fabric.hosts:
        _fail(f"hosts are numbered from 0 to {fabric.hosts - 1}; a flow names {last}")
    sums = np.zeros(len(flows), routes.amount.dtype)
    np.add.at(sums, routes.flow, routes.amount)
    wrong = np.flatnonzero(sums != flows.bytes.astype(sums.dtype) * routes.unit)
    if len(wrong):
        _fail(f"pieces of flow {wrong[0]} are not its {flows.bytes[wrong[0]]} bytes")
    source, target = (fabric.leaf_of[end[routes.flow]] for end in (flows.src, flows.dst))
    far = fabric.pod_of[source] != fabric.pod_of[target]
    most = len(fabric.uplinks) * np.where(far, fabric.cores, 1)
    if ((routes.path < EVERY) | (routes.path >= most)).any():
        _fail("a piece takes a path that is not there")
    if ((routes.path == BELOW) != (source == target)).any():
        _fail("pieces stay below their leaf where both hosts are, and only there")
    pinned = np.flatnonzero(routes.path >= 0)
    hops = fabric.hops(source[pinned], target[pinned], routes.path[pinned])
    if ((hops >= 0) & (fabric.rates[hops] == 0)).any():
        _fail("a piece takes a link of rate 0")


def _fail(found: str) -> NoReturn:
    raise NetworkError(
        f"saved routes are a JSON document of format {FORMAT} as this version writes it; {found}. "
        "Plan them again."
    )

"""Routes as one JSON document: the topology, the flows, and the path of every piece.

    {"format": 1,
     "topology": {"leaf_of": […], "pod_of": […], "uplinks": [["spine0", 0], …], "plane_of": […],
                  "cores": 0, "host_up": [[…], …], "host_down": [[…], …], "rates": […]},
     "flows": {"src": […], "dst": […], "bytes": […], "step": […], "start_ns": […]},
     "unit": 1, "pieces": {"flow": […], "path": […], "amount": […]}}

start_ns may be left out, and is then 0. Rates are bits per second in the order of `Fabric.links`;
paths as `fabric` numbers them, -1: below the leaf, -2: sprayed over all; amounts in 1/unit bytes.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gradwire.document import Document
from gradwire.errors import NetworkError
from gradwire.network.amounts import as_bytes, numbers
from gradwire.network.fabric import EVERY, NO_LINK, Fabric
from gradwire.network.flows import LATEST_NS, Flow, Flows
from gradwire.network.loads import ports
from gradwire.network.routes import Routes
from gradwire.schema import Broken, Columns, List, Row, Table, Text, Whole, broken

FORMAT = 1
_COLUMNS = ("leaf_of", "pod_of", "plane_of", "host_up", "host_down", "rates")


def to_json(routes: Routes) -> str:
    """Writes routes as JSON; read back, they are equal link by link."""
    fabric, flows = routes.fabric, routes.flows
    return json.dumps({
        "format": FORMAT,
        "topology": {
            **{name: getattr(fabric, name).tolist() for name in _COLUMNS},
            "uplinks": fabric.uplinks, "cores": fabric.cores,
        },
        "flows": {name: getattr(flows, name).tolist() for name in Flow._fields},
        "unit": routes.unit,
        "pieces": {name: getattr(routes, name).tolist() for name in ("flow", "path", "amount")},
    }) + "\n"  # fmt: skip


def from_json(text: str) -> Routes:
    """Reads routes from JSON. Raises NetworkError for any other document, and for pieces that do
    not add up to their flows' bytes, or take paths that do not exist or do not work."""
    routes: Routes = _DOCUMENT.read(text)
    return routes


def load(path: str | Path) -> Routes:
    """Reads routes from a file. Raises NetworkError as `from_json` does, and if there is none."""
    routes: Routes = _DOCUMENT.load(path)
    return routes


def _fabric(uplinks: list[tuple[str, int]], cores: int, **columns: list[Any]) -> Fabric:
    hosts, leaves = len(columns["leaf_of"]), len(columns["pod_of"])
    ports = len(columns["host_up"][0])
    for name in ("host_up", "host_down"):
        if [len(row) for row in columns[name]] != [ports] * hosts:
            raise broken(
                f"must have {ports} ports for each of {hosts} hosts", columns[name], f".{name}"
            )
    if len(columns["plane_of"]) != len(uplinks):
        raise broken(
            f"must have one value for each of {len(uplinks)} uplinks",
            columns["plane_of"],
            ".plane_of",
        )
    own = {name: np.array(column, np.int64) for name, column in columns.items()}
    leaf_of, pod_of, plane_of = own["leaf_of"], own["pod_of"], own["plane_of"]
    _refuse(".leaf_of", leaf_of, leaf_of >= leaves, f"must be one of {leaves} leaves")
    _refuse(".pod_of", pod_of, pod_of >= leaves, f"must be one of at most {leaves} pods")
    _refuse(".plane_of", plane_of, plane_of >= ports, f"must be one of {ports} ports")
    pods = int(pod_of.max()) + 1
    if pods > 1 and not cores:
        raise broken("must be 1 or more, because there are several pods", cores, ".cores")
    links = 2 * len(uplinks) * (leaves + pods * cores)
    if len(own["rates"]) != links:
        raise Broken(
            f"must have one rate for each of {links} links; got {len(own['rates'])} rates",
            ".rates",
        )
    return Fabric(uplinks=tuple(uplinks), cores=cores, **own)


def _routes(topology: Fabric, flows: Flows, unit: int, pieces: dict[str, list[int]]) -> Routes:
    hosts = topology.hosts
    _refuse(".flows.src", flows.src, flows.src >= hosts, f"must be one of {hosts} hosts")
    _refuse(".flows.dst", flows.dst, flows.dst >= hosts, f"must be one of {hosts} hosts")
    flow, path = (np.array(pieces[name], np.int64) for name in ("flow", "path"))
    _refuse(".pieces.flow", flow, flow >= len(flows), f"must be one of {len(flows)} flows")
    total = max(unit, sum(pieces["amount"]), unit * sum(flows.bytes.tolist()))
    sums = np.zeros(len(flows), np.int64 if total < 1 << 62 else object)
    np.add.at(sums, flow, np.array(pieces["amount"], sums.dtype))
    wrong = sums != flows.bytes.astype(sums.dtype) * unit
    _refuse(".flows.bytes", flows.bytes, wrong, "must be the sum of its pieces")
    routes = Routes(topology, flows, flow, path, numbers(pieces["amount"]), unit)
    _refuse_paths(routes)
    return routes


def _refuse_paths(routes: Routes) -> None:
    """Raises Broken for paths that do not exist, and for those that do not work."""
    fabric, flow, path, at = routes.fabric, routes.flow, routes.path, ".pieces.path"
    ends = routes.flows.src[flow], routes.flows.dst[flow]
    source, target = (fabric.leaf_of[end] for end in ends)
    rule = "must be a path between its leaves, or -1 for a flow below one leaf"
    _refuse(at, path, routes.off_paths, rule)
    slowest = np.ones(len(path), np.int64)
    rows = np.flatnonzero(path >= 0)
    hops = fabric.hops(source[rows], target[rows], path[rows])
    slowest[rows] = np.where(hops == NO_LINK, 1, fabric.rates[hops]).min(1, initial=1)
    rows = np.flatnonzero(path == EVERY)
    slowest[rows] = fabric.usable_paths(source[rows], target[rows])
    _refuse(at, path, slowest == 0, "must not use a link of rate 0")
    loads = ports(fabric, routes.flows, flow, path, as_bytes(routes.amount, routes.unit))
    for name, load in zip(("host_up", "host_down"), loads):
        rates = getattr(fabric, name)
        stuck = ~(load >= 0) | ((load > 0) & (rates == 0))
        _refuse(f".topology.{name}", rates, stuck, "must be above 0 where a port is used")


def _refuse(place: str, column: ArrayLike, wrong: NDArray[np.bool_], rule: str) -> None:
    """Raises Broken for the first value that is wrong."""
    if wrong.any():
        at = [int(i) for i in np.argwhere(wrong)[0]]
        found = np.array(column, object)[tuple(at)]
        raise broken(rule, found, place + "".join(f"[{i}]" for i in at))


_RATE = Whole(0, 1 << 60)
_TOPOLOGY = Table(
    {
        "leaf_of": List(Whole(), 1), "pod_of": List(Whole(), 1),
        "uplinks": List(Row(Text(), Whole())), "plane_of": List(Whole()), "cores": Whole(),
        "host_up": List(List(_RATE, 1), 1), "host_down": List(List(_RATE, 1), 1),
        "rates": List(_RATE),
    },
    make=_fabric,
)  # fmt: skip
_FLOWS = Columns(
    {"src": Whole(), "dst": Whole(), "bytes": Whole(1, 1 << 61), "step": Whole(0, 1 << 40)}, Flows,
    {"start_ns": Whole(0, LATEST_NS - 1)},
)  # fmt: skip
_PIECES = Columns({"flow": Whole(), "path": Whole(EVERY), "amount": Whole(0, None)})
_DOCUMENT = Document(
    "a document of routes",
    Table(
        {"topology": _TOPOLOGY, "flows": _FLOWS, "unit": Whole(1, None), "pieces": _PIECES},
        make=_routes,
    ),
    NetworkError, "Plan them again", FORMAT,
)  # fmt: skip

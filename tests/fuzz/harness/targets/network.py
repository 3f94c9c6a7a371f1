"""Routes, colourings, engines: what plans the network."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from gradwire.network import (
    Fabric,
    Flows,
    colouring,
    dual_plane,
    failures,
    fat_tree,
    leaf_spine,
    least_loaded,
    rail_optimized,
    route,
    samples,
    saved,
    simulate,
)  # fmt: skip
from gradwire.network.engines import maxmin, packet
from gradwire.network.engines.maxmin import Rows, Transfers
from gradwire.network.engines.transport import CHOICES, Transport
from gradwire.network.fabric import Link
from gradwire.network.routes import Routes
from gradwire.network.workload import Workload
from harness.draws import Draw, Made
from harness.targets._register import target

PINNED = ("coloured", "min_split", "wrap", "lpt", "ethereal", "adaptive", "mp_rdma(4)",
          "ecmp_k(8)", "ecmp")  # fmt: skip
SPRAYED = ("spray", "reps")
_NUMBERS: dict[Any, int] = {leaf_spine: 3, dual_plane: 3, fat_tree: 5, rail_optimized: 4}
"""The number of arguments that make each topology."""


# -- colourings -------------------------------------------------------------------------------


@target(colouring.colour, same=None)
def _colour(draw: Draw) -> dict[str, object]:
    edges, vertices = draw.whole(0, 60), draw.whole(1, 9)
    sides = dict[str, object]()
    for name in ("left", "right"):
        vertex = np.array([draw.whole(0, vertices - 1) for _ in range(edges)], np.int32)
        group = np.array([draw.whole(0, 2) for _ in range(vertices)], np.int32)
        sides[name] = Made(colouring.Side, {"vertex": vertex, "group": group})
    return {**sides, "colours": draw.whole(1, 9), "seed": draw.word()}


# -- topologies -------------------------------------------------------------------------------


def fabric(build: Any, shape: list[int], down: list[int]) -> Fabric:
    """A topology with some links or switches down."""
    made: Fabric = build(*(*shape, 1, 1, 1, 1, 1)[: _NUMBERS[build]])
    names = sorted({name for link in made.links for name in link[:2] if name[:4] != "leaf"})
    what = [*names, *made.links]
    return made.without(*(what[i % len(what)] for i in down)) if what and down else made


def _fabric(draw: Draw) -> tuple[Made, int]:
    """Draws a topology, and returns how many hosts it has, too."""
    few = [draw.whole(1, 3) for _ in range(5)]
    build = draw.one((leaf_spine, leaf_spine, dual_plane, fat_tree, rail_optimized))
    shape = few[: _NUMBERS[build]]
    hosts = {leaf_spine: 2, dual_plane: 2, fat_tree: 3, rail_optimized: 3}[build]
    down = [draw.whole(0, 40) for _ in range(draw.one((0, 0, 0, 1, 2, 5)))]
    given = {"build": build, "shape": shape, "down": down}
    return Made(fabric, given), int(np.prod(shape[:hosts]))


def _flows(draw: Draw, hosts: int, steps: int = 2) -> list[tuple[int, ...]]:
    pairs = [(a, b) for a in range(hosts) for b in range(hosts) if a != b]
    if not pairs:
        return []
    sizes = (1, 7, 1000, 1000, 65536, draw.whole(1, 10**6))
    return [
        (*draw.one(pairs), draw.one(sizes), draw.whole(0, steps - 1))
        for _ in range(draw.whole(0, 12))
    ]


def _asked(draw: Draw, schemes: tuple[str, ...] = (*PINNED, *SPRAYED)) -> dict[str, object]:
    topology, hosts = _fabric(draw)
    return {
        "flows": _flows(draw, hosts), "topology": topology, "scheme": draw.one(schemes),
        "seed": draw.whole(0, 99),
    }  # fmt: skip


@target(route, weight=2, same=None)
def _route(draw: Draw) -> dict[str, object]:
    return _asked(draw)


def sampled(number: int, **given: Any) -> object:
    """`samples`, with few of them where many are allowed, which would take too long."""
    return samples(number=50 if 50 < number <= 1 << 28 else number, **given)


@target(sampled, name="network.samples.samples", weight=3, same=None)
def _samples(draw: Draw) -> dict[str, object]:
    schemes = ("ecmp", "ecmp_k(2)", "ecmp", "coloured")
    return {**_asked(draw, schemes), "number": draw.whole(1, 5), "hosts": draw.chance(0.5)}


@target(least_loaded.least_loaded, weight=2, same=lambda given, paths: paths)
def _least_loaded(draw: Draw) -> dict[str, object]:
    n, leaves = draw.whole(0, 12), draw.whole(2, 4)
    source = np.array([draw.whole(0, leaves - 1) for _ in range(n)], np.int64)
    target = (source + draw.whole(1, leaves - 1)) % leaves
    amount = np.array([draw.whole(1, 1000) for _ in range(n)], np.int64)
    topology = Made(fabric, {"build": leaf_spine, "shape": [leaves, 1, 3], "down": []})
    return {
        "fabric": topology, "source": source, "target": target, "amount": amount,
        "seed": draw.word(), "local": draw.chance(0.5),
    }  # fmt: skip


# -- engines ----------------------------------------------------------------------------------


def routed(asked: dict[str, Any], then: Any, **more: Any) -> object:
    """Finds routes, and calls something with them."""
    return then(route(**asked), **more)


def swept(routes: Routes, what: Sequence[tuple[Link, ...]] | None, seed: int) -> object:
    """`sweep`, with some failures of a large fabric only: each is a plan of its own."""
    if what is None and isinstance(routes, Routes) and len(routes.fabric.links) > 2000:
        what = failures.cables(routes.fabric)[:100]
    return failures.sweep(routes, what, seed)


@target(swept, name="network.failures.sweep", weight=2, same=None)
def _sweep(draw: Draw) -> dict[str, object]:
    asked = _asked(draw, PINNED)
    return {"routes": Made(route, asked), "what": None, "seed": draw.whole(0, 99)}


@target(simulate, weight=2, same=None)
def _simulate(draw: Draw) -> dict[str, object]:
    return {
        "routes": Made(route, _asked(draw)), "engine": draw.one(("static", "flow")),
        "tolerance": draw.one((0.0, 0.01)), "seed": draw.whole(0, 99),
    }  # fmt: skip


@target(packet.send, weight=1, same=None)
def _send(draw: Draw) -> dict[str, object]:
    how = {
        "packet_bytes": draw.one((1000, 4096)), "window": draw.one((1, 8, 64)),
        "latency_ns": 500.0, "timeout_us": draw.one((10.0, 100.0)),
        "queue_bytes": draw.one((5000, 64 << 20)), "mark_bytes": draw.one((5000, 800_000)),
        "spraying": draw.one(CHOICES[1:]), "entropies": draw.one((1, 16)),
        "header_bytes": draw.one((0, 64)), "ack_bytes": draw.one((0, 64)),
        "ack_packets": draw.one((1, 4, 100)), "band_bytes": draw.one((1, 16_384)),
        "slow_down": draw.chance(0.5), "repath": draw.chance(0.5),
        "exclude_us": draw.one((0.0, 50.0)), "jitter_ns": draw.one((0.0, 50.0)),
    }  # fmt: skip
    return {"routes": Made(route, _asked(draw)), "transport": Made(Transport, how),
            "seed": draw.whole(0, 99)}  # fmt: skip


def _transfers(draw: Draw) -> Made:
    n, links = draw.whole(0, 12), draw.whole(1, 5)

    def rows(values: int) -> Made:
        lists = [[draw.whole(0, values - 1) for _ in range(draw.whole(0, 3))] for _ in range(n)]
        start = np.cumsum([0, *map(len, lists)]).astype(np.int64)
        return Made(Rows, {
            "start": start, "value": np.array([v for own in lists for v in own], np.int64),
        })  # fmt: skip

    def reals(size: int, least: float = 0.0) -> np.ndarray:
        return np.array([draw.one((least, draw.real(least, 9))) for _ in range(size)], float)

    uses = rows(links)
    after = rows(max(n, 1)) if draw.chance(0.2) else Made(Rows, {
        "start": np.zeros(n + 1, np.int64), "value": np.zeros(0, np.int64),
    })  # fmt: skip
    used = len(uses.given["value"])  # type: ignore[arg-type]
    return Made(Transfers, {
        "uses": uses, "part": np.ones(used), "bytes": reals(n), "many": np.ones(n),
        "next": after, "delay": reals(n), "rate": reals(links, 1.0),
    })  # fmt: skip


@target(maxmin.run, weight=2, same=None)
def _run(draw: Draw) -> dict[str, object]:
    return {"transfers": _transfers(draw), "tolerance": draw.one((0.0, 0.01))}


@target(maxmin.rates, weight=2, same=None)
def _rates(draw: Draw) -> dict[str, object]:
    return {"transfers": _transfers(draw)}


def worked(
    ranks: int, flows: list[tuple[int, ...]], seconds: float, rows: int, before: np.ndarray,
    after: np.ndarray, bytes: int, topology: Fabric, tolerance: float,
) -> float:  # fmt: skip
    """Makes a workload of work, messages and waits as a caller does. Returns its seconds."""
    own = Workload(ranks)
    own.work(seconds, rows)
    own.send(own.connect(Flows.of(flows)), bytes)
    own.wait(before, after)
    return own.seconds(topology, tolerance=tolerance) + own.work_seconds()


@target(worked, name="network.workload.Workload", weight=2, same=None)
def _worked(draw: Draw) -> dict[str, object]:
    topology, hosts = _fabric(draw)
    flows, rows = _flows(draw, hosts), draw.whole(0, 4)
    all_rows, waits = rows + len(flows), draw.whole(0, 3)
    before = np.array([draw.whole(0, max(all_rows - 2, 0)) for _ in range(waits)], np.int64)
    if all_rows < 2:
        before = before[:0]
    return {
        "ranks": hosts, "flows": flows, "seconds": draw.real(0, 3), "rows": rows,
        "before": before, "after": np.minimum(before + 1, max(all_rows - 1, 0)),
        "bytes": draw.whole(1, 5000), "topology": topology, "tolerance": draw.one((0.0, 0.01)),
    }  # fmt: skip


# -- what is read -----------------------------------------------------------------------------


def read(routes: Any, at: list[int], put: object) -> object:
    """Changes one value of saved routes, then reads and simulates them."""
    import json

    data = json.loads(saved.to_json(routes))
    where, last = data, None
    for i in at:
        keys = list(where) if isinstance(where, dict) else range(len(where))
        if not isinstance(where, dict | list) or not len(keys):
            break
        last, name = where, keys[i % len(keys)]
        where = where[name]
        if not isinstance(where, dict | list):
            break
    if last is not None:
        last[name] = put
    again = saved.from_json(json.dumps(data))
    return [simulate(again, engine) for engine in ("static", "flow")]


@target(read, name="network.saved.from_json", weight=1, same=None, spoiled=0.0)
def _read(draw: Draw) -> dict[str, object]:
    values = (-1, 0, 1, 2**31, 2**62, 2**70, 10**9, 1.5, "x", None, [], {}, [1, 2], True, 1e300)
    return {
        "routes": Made(route, {**_asked(draw), "flows": _flows(draw, 2)}),
        "at": [draw.whole(0, 20) for _ in range(draw.whole(1, 4))], "put": draw.one(values),
    }  # fmt: skip

"""Pinned paths in a real kernel: 16 hosts below 4 leaves, each sends 20 MB to another leaf.

OMP_NUM_THREADS=1 python benchmarks/network/kernel.py [--rounds 5] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from transfers import Transfer, Transferred, by_ports, hashed, pinned, transfer

from gradwire.lab import Cluster
from gradwire.network import Fabric, Flows, Link, bounds, leaf_spine, route
from gradwire.report.table import Table

BYTES, RATE = 20_000_000, 200_000_000
SEGMENT = 1448  # bytes
IDEAL = BYTES * 8 / RATE
Make = Callable[[Cluster, Flows, int], list[Transfer]]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    found = {}
    for spines in (4, 3):
        fabric = leaf_spine(leaves=4, hosts=4, spines=spines)
        rows = measured(fabric, arguments.rounds)
        least = bounds(to_other_leaves(fabric, 0), leaf_spine(4, 4, spines, host_gbps=RATE / 1e9))
        found[f"{spines} spines"] = {"bound": least.seconds / IDEAL, "rows": rows}
        print(f"\n{spines} spines: T* is {least.seconds / IDEAL:.3f} of a flow's own time\n")
        print(as_table(rows))
    if arguments.json:
        arguments.json.write_text(json.dumps(found) + "\n")
    return 0


def to_other_leaves(fabric: Fabric, seed: int) -> Flows:
    """Returns a random permutation of hosts in which no flow stays below its leaf."""
    draw, source = np.random.default_rng(seed), np.arange(fabric.hosts)
    while True:
        target = draw.permutation(fabric.hosts)
        if (fabric.leaf_of[target] != fabric.leaf_of).all():
            return Flows(source, target, BYTES)


def makers(fabric: Fabric) -> dict[str, Make]:
    def planned(scheme: str) -> Make:
        return lambda lab, flows, seed: pinned(route(flows, fabric, scheme))

    def hashes(pieces: int) -> Make:
        return lambda lab, flows, seed: hashed(flows, seed, pieces)

    return {
        "ecmp": hashes(1), **{f"ecmp_k({k})": hashes(k) for k in (2, 4, 8, 16)},
        "ethereal": planned("ethereal"), "coloured": planned("coloured"),
        "coloured, by ports": lambda lab, flows, seed: by_ports(
            lab, route(flows, fabric, "coloured"), seed
        ),
        "min_split": planned("min_split"),
    }  # fmt: skip


def measured(fabric: Fabric, rounds: int) -> list[dict[str, Any]]:
    """Measures every scheme in turn, with other traffic and other ports in every round."""
    makes = makers(fabric)
    seconds: dict[str, list[float]] = {name: [] for name in makes}
    loads: dict[str, list[float]] = {name: [] for name in makes}
    wrong: dict[str, list[float]] = {name: [] for name in makes}
    resent: dict[str, list[float]] = {name: [] for name in makes}
    sockets, kept = dict.fromkeys(makes, 0), dict.fromkeys(makes, "–")
    with Cluster(topology=fabric, rate=str(RATE), hash_seed=1) as lab:
        for seed in range(rounds):
            flows = to_other_leaves(fabric, seed)
            for name, make in makes.items():
                transfers = make(lab, flows, seed)
                done = transfer(lab, transfers)
                expected = predicted(lab, fabric, transfers)
                seconds[name].append(done.seconds / IDEAL)
                loads[name].append(max(done.link_bytes[link] for link in fabric.links) / BYTES)
                wrong[name].append(worst(done, expected))
                resent[name].append(done.segments_resent * SEGMENT / BYTES)
                sockets[name] = len(transfers)
                if seed == 0 and len(transfers) <= 24:
                    kept[name] = followed(lab, fabric, transfers)
    return [
        {"scheme": name, "sockets": sockets[name], "seconds": median(seconds[name]),
         "least": min(seconds[name]), "most": max(seconds[name]), "load": median(loads[name]),
         "links_off": max(wrong[name]), "resent": median(resent[name]), "as_predicted": kept[name]}
        for name in makes
    ]  # fmt: skip


def predicted(lab: Cluster, fabric: Fabric, transfers: list[Transfer]) -> dict[Link, int]:
    """Returns the bytes of every link: on the named plane, or for hosts' own addresses as the
    kernel looks up."""
    looked_up = iter(lab.paths([t.connection for t in transfers if t.plane is None]))
    found = dict.fromkeys(fabric.links, 0)
    for one in transfers:
        path = next(looked_up) if one.plane is None else one.plane
        for link in links_of(fabric, one, path):
            found[link] += one.bytes
    return found


def links_of(fabric: Fabric, one: Transfer, path: int) -> list[Link]:
    leaves = fabric.leaf_of[[one.connection.source]], fabric.leaf_of[[one.connection.target]]
    hops = fabric.hops(*leaves, np.array([path]))[0] if path >= 0 else []
    return [fabric.links[hop] for hop in hops if hop >= 0]


def worst(done: Transferred, expected: dict[Link, int]) -> float:
    """Returns the largest difference of a link's bytes, relative to the fullest link."""
    most = max(expected.values())
    return max(abs(done.link_bytes[link] - n) for link, n in expected.items()) / most


def followed(lab: Cluster, fabric: Fabric, transfers: list[Transfer]) -> str:
    """Sends on each connection alone, and counts those whose bytes took the predicted links."""
    same = 0
    for one in transfers:
        small = one._replace(bytes=300_000)
        (path,) = lab.paths([one.connection]) if one.plane is None else [one.plane]
        carried = transfer(lab, [small]).link_bytes
        used = {link for link in fabric.links if carried[link] > 150_000}
        same += used == set(links_of(fabric, small, path))
    return f"{same} of {len(transfers)}"


def as_table(rows: list[dict[str, Any]]) -> str:
    headers = ("scheme", "sockets", "seconds / ideal", "min to max", "fullest link / flow",
               "links off by", "sent again / flow", "path as predicted")  # fmt: skip
    cells = [
        (r["scheme"], str(r["sockets"]), f"{r['seconds']:.2f}",
         f"{r['least']:.2f} to {r['most']:.2f}", f"{r['load']:.2f}", f"{r['links_off']:.1%}",
         f"{r['resent']:.2f}", r["as_predicted"])
        for r in rows
    ]  # fmt: skip
    return Table(headers, cells).as_markdown()


if __name__ == "__main__":
    raise SystemExit(main())

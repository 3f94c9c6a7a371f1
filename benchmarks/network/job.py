"""A training step between 16 hosts below 4 leaves, with ranks on random hosts: hashed and pinned.

OMP_NUM_THREADS=1 python benchmarks/network/job.py [--places 3] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from gradwire.lab import Cluster
from gradwire.network import Flows, leaf_spine, route, samples
from gradwire.network.demand import in_groups
from gradwire.network.exports import pins_of
from gradwire.network.flows import joined
from gradwire.network.patterns import all_to_all, direct, pairwise, ring
from gradwire.network.placement import Placement
from gradwire.report.table import Table

RATE = 200_000_000
FABRIC = leaf_spine(4, 4, 4, host_gbps=RATE / 1e9)
SIDE = 3072
BYTES = 4 * SIDE * SIDE
EXPERTS = 4
STOCK = {"none | allreduce": ring, "none | alltoall": direct}
"""The patterns that Gloo uses: a ring; all pairs at once, twice."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--places", type=int, default=3, help="of ranks, at random")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    rows = []
    for order in (False, True):
        seeds = range(1 if order else arguments.places)
        placements = [
            Placement.in_order(16) if order else Placement.shuffled(16, s) for s in seeds
        ]
        found = [run(placement, seed + 1) for seed, placement in enumerate(placements)]
        rows += summary("in order" if order else "at random", placements, found)
    headers = ("ranks", "among", "strategy", "carried by", "paths", "seconds", "× ideal",
               "predicted ×", "pinned is faster")  # fmt: skip
    print(Table(headers, [tuple(map(str, row.values())) for row in rows]).as_markdown())
    if arguments.json:
        arguments.json.write_text(json.dumps(rows) + "\n")
    return 0


def run(placement: Placement, hash_seed: int) -> dict[str, list[float]]:
    """Returns seconds of steps by variant, on one cluster."""
    lines: list[str] = []
    demands = {"all": pairwise(16, BYTES), "groups": in_groups(all_to_all, 16, EXPERTS, BYTES)}
    with tempfile.TemporaryDirectory() as folder:
        files = []
        for name, flows in demands.items():
            files.append(Path(folder, f"{name}.json"))
            planned = route(placement.placed(flows), FABRIC, "coloured")
            files[-1].write_text(pins_of(planned).to_json())
        worker = Path(__file__).with_name("job_worker.py")
        with Cluster(
            topology=FABRIC, rate=str(RATE), order=placement.host, hash_seed=hash_seed
        ) as lab:
            code = lab.run(
                [sys.executable, str(worker), *map(str, files), str(SIDE)],
                env=dict(os.environ), on_line=hear(lines),
            )  # fmt: skip
    if code:
        raise SystemExit(f"a rank ended with {code}")
    print(lines[-1], file=sys.stderr)  # progress
    return dict(json.loads(lines[-1]))


def hear(lines: list[str]) -> Callable[[int, str, str], None]:
    def on_line(rank: int, stream: str, line: str) -> None:
        if stream == "stderr":
            print(f"[{rank}] {line}", file=sys.stderr)
        elif rank == 0:
            lines.append(line)

    return on_line


def summary(
    ranks: str, placements: list[Placement], found: list[dict[str, list[float]]]
) -> list[dict[str, Any]]:
    rows = []
    for name in found[0]:
        among, strategy, carried, paths = name.split(" / ")
        members = 16 if among == "all" else EXPERTS
        ideal = 2 * (members - 1) / members * BYTES * 8 / RATE
        each = [median(one[name]) for one in found]
        pinned = [
            median(seconds)
            for one in found
            for other, seconds in one.items()
            if other.startswith(f"{among} / {strategy} / ") and other.endswith("/ pinned")
        ]
        scheme = "coloured" if paths == "pinned" else "ecmp"
        pattern = demand(among, strategy, carried)
        predicted = median(expected(p.placed(pattern), scheme) for p in placements)
        rows.append({
            "ranks": ranks, "among": among if among == "all" else f"groups of {EXPERTS}",
            "strategy": strategy, "carried": carried, "paths": paths,
            "seconds": spread(each), "to_ideal": f"{median(each) / ideal:.2f}",
            "predicted": f"{predicted / ideal:.2f}",
            "gain": f"{median(a / b for a, b in zip(each, pinned)):.2f} ×",
        })  # fmt: skip
    return rows


def spread(seconds: list[float]) -> str:
    least, most = min(seconds), max(seconds)
    about = f" ({least:.2f} to {most:.2f})" if most > least else ""
    return f"{median(seconds):.2f}{about}"


def demand(among: str, strategy: str, carried: str) -> Flows:
    """Returns the flows between ranks, in both directions."""
    if among == "groups":
        return in_groups(direct, 16, EXPERTS, BYTES)
    return STOCK[strategy](16, BYTES) if carried == "Gloo" else in_turns(16, BYTES)


def in_turns(ranks: int, bytes: int) -> Flows:
    there = pairwise(ranks, bytes)
    return joined([there, Flows(there.src, there.dst, there.bytes, there.step + ranks)])


def expected(flows: Flows, scheme: str) -> float:
    """Returns the planner's prediction, the median of 200 samples for hashed schemes."""
    if scheme == "coloured":
        return route(flows, FABRIC, scheme).seconds
    return float(median(samples(flows, FABRIC, scheme, 200, hosts=True)))


if __name__ == "__main__":
    raise SystemExit(main())

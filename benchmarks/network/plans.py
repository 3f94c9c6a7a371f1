"""The load that schemes put on the fullest link, their pieces, and their planning time.

    OMP_NUM_THREADS=1 python benchmarks/network/plans.py            # the table; --json for numbers
    OMP_NUM_THREADS=1 python benchmarks/network/plans.py --large    # 32,768 hosts

Loads are exact, relative to the bound that no routing can beat. For hashed and random schemes,
they are the median of 200 seeds, or of 20 if a seed takes long.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from time import process_time
from typing import Any

import numpy as np
from cases import all_to_all, groups, permutation, ring, shown

from gradwire.network import Fabric, Flows, bounds, leaf_spine, route, samples
from gradwire.report.table import Table

SCHEMES = (
    "ecmp", "ecmp_k(2)", "ecmp_k(4)", "ecmp_k(8)", "ecmp_k(16)", "ethereal",
    'spray("random")', 'spray("rotating")', "spray", "adaptive", "coloured", "min_split",
)  # fmt: skip
CHANCE = ("ecmp", "ecmp_k", 'spray("', "adaptive")

FEW = ("ecmp", "ecmp_k(8)", "ethereal", "spray", "coloured", "min_split")
DEMANDS: dict[str, Callable[[Fabric], Flows]] = {
    "ring at random places": lambda fabric: ring(fabric, 1),
    "permutation": lambda fabric: permutation(fabric, 1),
    "groups of 8": lambda fabric: groups(fabric, 8, 1),
    "groups of 64": lambda fabric: groups(fabric, 64, 1),
    "all to all": all_to_all,
}
SMALL = [
    ((16, 16, 16), "ring at random places", SCHEMES), ((16, 16, 16), "permutation", SCHEMES),
    ((16, 16, 16), "groups of 8", SCHEMES), ((16, 16, 12), "ring at random places", SCHEMES),
    ((16, 16, 12), "groups of 8", SCHEMES), ((8, 12, 5), "permutation", SCHEMES),
    ((16, 16, 12), "all to all", SCHEMES),
]  # fmt: skip
LARGE = [
    ((512, 64, 64), "permutation", FEW), ((512, 64, 48), "permutation", FEW),
    ((512, 64, 64), "groups of 64", ("ecmp", "spray", "coloured", "min_split")),
]  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--large", action="store_true")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    rows = []
    for sizes, name, schemes in LARGE if arguments.large else SMALL:
        fabric = leaf_spine(*sizes)
        flows = DEMANDS[name](fabric)
        case = "{} × {}, {} spines, {}".format(*sizes, name)
        rows += [measured(case, fabric, flows, scheme) for scheme in schemes]
    headers = ("case", "flows", "scheme", "load / T*", "load / spraying", "cut", "pieces",
               "planned in, ms")  # fmt: skip
    print(Table(headers, [tuple(map(shown, row.values())) for row in rows]).as_markdown())
    if arguments.json:
        arguments.json.write_text(json.dumps(rows) + "\n")
    return 0


def measured(name: str, fabric: Fabric, flows: Flows, scheme: str) -> dict[str, Any]:
    route(flows[np.arange(1)], fabric, scheme)  # warm up: loads modules
    began = process_time()
    routes = route(flows, fabric, scheme)
    took = process_time() - began
    seconds = routes.fabric_seconds
    if scheme.startswith(CHANCE):
        many = 200 if took < 0.05 or scheme.startswith("ecmp") else 20
        seconds = float(np.median(samples(flows, fabric, scheme, many)))
    least = bounds(flows, fabric)
    return {
        "case": name, "flows": len(flows), "scheme": scheme, "load": seconds / least.seconds,
        "to_spraying": seconds / least.fabric_seconds, "cut": routes.splits,
        "pieces": routes.pieces, "milliseconds": took * 1e3,
    }  # fmt: skip


if __name__ == "__main__":
    raise SystemExit(main())

"""The evaluation of Addanki et al. 2025 ("Ethereal"), packet by packet, with more schemes.

OMP_NUM_THREADS=1 python benchmarks/network/paper.py [--topology …] [--json FILE] [--plot FILE]
python benchmarks/network/paper.py --read FILE FILE [--json FILE] [--plot FILE]

256 hosts below 16 leaves, 16 spines, 400 Gbit/s; and 512 hosts in a fat tree of 32 leaves and 32
switches in 8 pods, 16 cores, 1,600 Gbit/s above hosts. All-reduce by four algorithms, ranks in
order. Steps follow each other; equal ones are simulated once. Failed: one cable in fifty between
switches; hashes, packets and plans avoid them.
"""

from __future__ import annotations

import argparse
import itertools
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from cases import shown

from gradwire.errors import NetworkError
from gradwire.network import Fabric, Flows, Link, bounds, fat_tree, leaf_spine, route
from gradwire.network.demand import Pattern
from gradwire.network.engines.packet import send
from gradwire.network.engines.transport import Spraying, Transport
from gradwire.network.patterns import direct, double_tree, halving_doubling, ring
from gradwire.report.table import Table

TOPOLOGIES = {
    "leaf-spine": leaf_spine(16, 16, 16, host_gbps=400),
    "fat tree": fat_tree(8, 4, 16, 4, 4, host_gbps=400, fabric_gbps=1600, core_gbps=1600),
}
PATTERNS = (direct, halving_doubling, ring, double_tree)
HOW = Transport(packet_bytes=9000, slow_down=True, jitter_ns=50)
SEEDS = 3
FAILED = 50  # one cable in this many

SCHEMES: dict[str, tuple[str, Spraying]] = {
    **{name: (name, "random") for name in (
        "ecmp", "ecmp_k(2)", "ecmp_k(4)", "ecmp_k(8)", "ethereal", "coloured", "min_split",
        "optimal",
    )},
    "spray, random": ("spray", "random"), "spray, rotating": ("spray", "rotating"),
    "spray, recycled (REPS)": ("spray", "recycled"),
}  # fmt: skip
CHANCE = ("ecmp", "spray")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--sizes", type=int, nargs="+", default=[1, 8, 64], help="MB")
    parser.add_argument("--topology", nargs="+", choices=TOPOLOGIES, default=list(TOPOLOGIES))
    names = {pattern.__name__: pattern for pattern in PATTERNS}
    parser.add_argument("--algorithm", nargs="+", choices=names, default=list(names))
    parser.add_argument("--scheme", nargs="+", choices=SCHEMES, default=list(SCHEMES))
    parser.add_argument("--failed", nargs="+", choices=FAILURES, default=list(FAILURES))
    parser.add_argument("--fixed", action="store_true", help="windows do not shrink by marks")
    overheads = "headers of 64 bytes, and an acknowledgement of 64 for two packets"
    parser.add_argument("--overheads", action="store_true", help=overheads)
    parser.add_argument("--read", type=Path, nargs="+", help="rows of earlier runs, instead")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--plot", type=Path)
    arguments = parser.parse_args()
    rows: list[dict[str, Any]] = []
    if arguments.read:
        rows = together(json.loads(file.read_text()) for file in arguments.read)
    else:
        patterns = [names[name] for name in arguments.algorithm]
        how = replace(HOW, slow_down=not arguments.fixed)
        if arguments.overheads:
            how = replace(how, header_bytes=64, ack_bytes=64, ack_packets=2)
        cases = itertools.product(arguments.topology, arguments.failed, patterns, arguments.scheme)
        for row in measured(cases, arguments.sizes, how):
            rows.append(row)
            if arguments.json:  # large sizes take an hour
                arguments.json.write_text(json.dumps(rows) + "\n")
    columns = tuple(dict.fromkeys(key for row in rows for key in row))
    cells = [tuple(shown(row[c]) if c in row else "–" for c in columns) for row in rows]
    print(Table(columns, cells).as_markdown())
    if arguments.json:
        arguments.json.write_text(json.dumps(rows) + "\n")
    if arguments.plot:
        plot(rows, arguments.plot)
    return 0


def together(runs: Iterable[list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Merges rows of the same case, which have other sizes."""
    found: dict[tuple[Any, ...], dict[str, Any]] = {}
    for row in (row for run in runs for row in run):
        case = tuple(value for key, value in row.items() if not key.endswith(" MB"))
        found.setdefault(case, {}).update(row)
    return list(found.values())


def measured(
    cases: Iterable[tuple[str, str, Pattern, str]], sizes: list[int], transport: Transport
) -> Iterator[dict[str, Any]]:
    for topology, failed, pattern, label in cases:
        scheme, spraying = SCHEMES[label]
        if scheme == "optimal" and failed == "none":
            continue  # min_split is as good if nothing has failed
        fabric = FAILURES[failed](TOPOLOGIES[topology])
        how = replace(transport, spraying=spraying)
        times = [completion(fabric, pattern(fabric.hosts, size << 20), scheme, how)
                 for size in sizes]  # fmt: skip
        if None not in times:
            yield {
                "topology": topology, "failed": failed, "algorithm": pattern.__name__,
                "scheme": label, "windows": "shrink" if transport.slow_down else "fixed",
                **{f"{size} MB": t for size, t in zip(sizes, times)},
            }  # fmt: skip


def completion(fabric: Fabric, flows: Flows, scheme: str, how: Transport) -> float | None:
    """Returns the time relative to the bound; None if the scheme does not support these flows."""
    seconds = least = 0.0
    for alike in flows.steps():
        own = Flows(flows.src[alike[0]], flows.dst[alike[0]], flows.bytes[alike[0]])
        seeds = range(SEEDS if scheme.startswith(CHANCE) else 1)
        try:
            took = [
                send(route(own, fabric, scheme, seed), how, seed=seed).seconds.max()
                for seed in seeds
            ]
        except NetworkError:
            return None
        seconds += float(median(took)) * len(alike)
        least += bounds(own, fabric).seconds * len(alike)
    return seconds / least


def without_some(fabric: Fabric) -> Fabric:
    """Returns the fabric without some cables between switches, both ways; always the same ones."""
    up = [link for link in fabric.links if link.target.startswith(("spine", "core"))]
    up += [link for link in fabric.links if link.source.startswith("leaf") and link not in set(up)]
    chosen = np.random.default_rng(1).choice(len(up), len(up) // FAILED, replace=False)
    cables = [up[i] for i in chosen]
    return fabric.without(*cables, *(Link(b, a, n) for a, b, n in cables))


FAILURES: dict[str, Callable[[Fabric], Fabric]] = {
    "none": lambda fabric: fabric, f"1 in {FAILED}": without_some
}  # fmt: skip


LOOKS = {
    "ecmp": ("tab:red", ":"), "ecmp_k(2)": ("tab:orange", ":"), "ecmp_k(4)": ("goldenrod", ":"),
    "ecmp_k(8)": ("tab:brown", ":"), "ethereal": ("tab:purple", "-"),
    "coloured": ("black", "-"), "min_split": ("tab:gray", "-"), "optimal": ("tab:pink", "-"),
    "spray, random": ("tab:blue", "--"), "spray, rotating": ("tab:cyan", "--"),
    "spray, recycled (REPS)": ("tab:green", "--"),
}  # fmt: skip
"""Dotted: hashes; dashed: packets; solid lines: pinned."""


def plot(rows: list[dict[str, Any]], file: Path) -> None:
    """Plots a panel for each algorithm and network, with a line for each scheme."""
    from matplotlib.figure import Figure

    panels = sorted({(r["topology"], r["failed"], r["windows"]) for r in rows}, reverse=True)
    figure = Figure(figsize=(15, 3.2 * len(panels)), layout="constrained")
    axes = figure.subplots(len(panels), len(PATTERNS), squeeze=False)
    for row, panel in enumerate(panels):
        topology, failed, windows = panel
        for axis, pattern in zip(axes[row], PATTERNS):
            own = [r for r in rows if r["algorithm"] == pattern.__name__
                   and (r["topology"], r["failed"], r["windows"]) == panel]  # fmt: skip
            for r in own:
                sizes = [key for key in r if key.endswith(" MB")]
                colour, style = LOOKS[r["scheme"]]
                axis.plot(sizes, [r[key] for key in sizes], style, color=colour, marker="o",
                          markersize=3, label=r["scheme"])  # fmt: skip
            more = ", fixed windows" if windows == "fixed" else ""
            axis.set_title(f"{topology}, failed: {failed}, {pattern.__name__}{more}", fontsize=8)
            axis.set_yscale("log")
            axis.yaxis.set_major_formatter("{x:g}")
            axis.yaxis.set_minor_formatter("{x:.3g}")
            axis.tick_params(axis="y", which="both", labelsize=7)
            axis.grid(alpha=0.3, which="both")
        axes[row][0].set_ylabel("completion / bound")
    lines = {line.get_label(): line for axis in axes.reshape(-1) for line in axis.get_lines()}
    figure.legend(lines.values(), lines.keys(), fontsize=8, loc="outside right upper")
    figure.savefig(file, dpi=110)


if __name__ == "__main__":
    raise SystemExit(main())

"""Weak scaling of top-k sums to 32 ranks: how much throughput is left, and what takes the rest?

    python benchmarks/sparse/weak_scaling.py --json benchmarks/sparse/results/weak-scaling.json

A rank's own work per step does not change with their number; a step is that work, selection and
moves one after the other, as Shi et al. 2019, "gTop-k", measured it (without overlap). lab.py
measures every exchange on hosts whose links are slower by the number of hosts that share a core,
and divides times by it: 32 ranks have a core and a link of the given rate each. The gradient is
normal, of --elements; a step's computation is not measured but given (--compute-ms).
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from gradwire.report.table import Table

CORES = 2
DENSE = "none | allreduce"
COLLECTIVES = ("allgather", "gtopk", 'gtopk(variant="tree")')
GIGABYTES = 14.0  # memory for all ranks


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--hosts", type=int, nargs="*", default=(4, 8, 16, 32))
    parser.add_argument("--densities", nargs="*", default=("0.001", "0.0005", "0.0001"))
    parser.add_argument("--elements", type=float, default=8.0e6, help="those of `words`")
    parser.add_argument("--compute-ms", type=float, default=46.0, help="of `words`, on one core")
    parser.add_argument("--rate", default="1gbit")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    texts = [DENSE] + [
        f"topk({density})+ef | {name}"
        for density in arguments.densities for name in COLLECTIVES
    ]  # fmt: skip
    found = {hosts: measured(hosts, texts, arguments) for hosts in arguments.hosts}
    if arguments.json:
        document = {
            "elements": arguments.elements, "compute_ms": arguments.compute_ms,
            "rate": arguments.rate, "hosts": found,
        }  # fmt: skip
        arguments.json.write_text(json.dumps(document) + "\n")
    headers = ("strategy", *(f"{hosts} ranks" for hosts in found))
    rows = [
        (text, *(_cell(own[text], arguments.compute_ms) for own in found.values()))
        for text in texts
    ]  # fmt: skip
    print(Table(headers, rows).as_markdown())
    return 0


def measured(
    hosts: int, texts: Sequence[str], arguments: argparse.Namespace
) -> dict[str, dict[str, float]]:
    """Returns, for each strategy, the milliseconds of a step's exchange, the part in moves, and
    the MB that a rank sends."""
    found: dict[str, dict[str, float]] = {}
    for part in _parts(texts, hosts, arguments.elements):
        for text, run in _job(hosts, part, arguments)["runs"].items():
            found[text] = {
                "ms": 1e3 * median(run["seconds"]), "wire_ms": 1e3 * median(run["wire_seconds"]),
                "mb": median(run["bytes"]) / 1e6,
            }  # fmt: skip
            print(hosts, text, found[text], file=sys.stderr, flush=True)
    return found


def _parts(texts: Sequence[str], hosts: int, elements: float) -> Iterator[Sequence[str]]:
    """Yields as many strategies at once as fit into memory."""
    own, each = 0.25 + 4e-9 * elements, 16e-9 * elements
    many = max(1, int((GIGABYTES / hosts - own) / each))
    for i in range(0, len(texts), many):
        yield texts[i : i + many]


def _job(hosts: int, texts: Sequence[str], arguments: argparse.Namespace) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        file = f"{folder}/job.json"
        command = [
            sys.executable, str(Path(__file__).with_name("lab.py")), "normal",
            "--hosts", str(hosts), "--rate", arguments.rate, "--slower",
            str(max(1, hosts // CORES)), "--elements", str(arguments.elements),
            "--rounds", str(arguments.rounds), "--json", file, "--strategies", *texts,
        ]  # fmt: skip
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        document: dict[str, Any] = json.loads(Path(file).read_text())
    return document


def _cell(own: dict[str, float], compute_ms: float) -> str:
    """Returns efficiency, the parts of a step, and MB."""
    step = compute_ms + own["ms"]
    local = max(0.0, own["ms"] - own["wire_ms"])
    parts = f"{compute_ms:.0f} + {local:.1f} + {own['wire_ms']:.1f}"
    return f"{100 * compute_ms / step:.0f} %; {parts} ms; {own['mb']:.2f} MB"


if __name__ == "__main__":
    sys.exit(main())

"""Networks, traffic and a command line that the benchmarks share."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from gradwire.network import Fabric, Flows
from gradwire.report.table import Table


def permutation(fabric: Fabric, seed: int, bytes: int = 1 << 20) -> Flows:
    """Returns flows in which every host sends to a random other one."""
    target = np.random.default_rng(seed).permutation(fabric.hosts)
    source = np.arange(fabric.hosts)
    own = target != source
    return Flows(source[own], target[own], bytes)


def ring(fabric: Fabric, seed: int, bytes: int = 1 << 20) -> Flows:
    """Returns one step of a ring whose ranks are on random hosts."""
    order = np.random.default_rng(seed).permutation(fabric.hosts)
    return Flows(order, np.roll(order, -1), bytes)


def groups(fabric: Fabric, size: int, seed: int, bytes: int = 1 << 20) -> Flows:
    """Returns all-to-all flows within groups of random hosts."""
    order = np.random.default_rng(seed).permutation(fabric.hosts).reshape(-1, size)
    a, b = np.divmod(np.arange(size * size), size)
    own = a != b
    return Flows(order[:, a[own]].reshape(-1), order[:, b[own]].reshape(-1), bytes)


def all_to_all(fabric: Fabric, bytes: int = 1 << 20) -> Flows:
    """Returns flows from every host to every other."""
    a, b = np.divmod(np.arange(fabric.hosts**2), fabric.hosts)
    own = a != b
    return Flows(a[own], b[own], bytes)


def shown(value: object) -> str:
    """Returns a value as tables show it."""
    if isinstance(value, float):
        return f"{value:.4g}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def tell(doc: str, kinds: Mapping[str, Callable[[], Iterable[dict[str, Any]]]]) -> int:
    """Runs a benchmark: prints a table of each requested kind, and writes all to one file."""
    parser = argparse.ArgumentParser(description=doc.split("\n", maxsplit=1)[0])
    parser.add_argument("--only", nargs="*", choices=kinds, default=list(kinds))
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    found = {kind: list(kinds[kind]()) for kind in arguments.only}
    for kind, rows in found.items():
        print(f"\n{kind}\n")
        cells = [tuple(map(shown, row.values())) for row in rows]
        print(Table(tuple(rows[0]), cells).as_markdown())
    if arguments.json:
        arguments.json.write_text(json.dumps(found) + "\n")
    return 0

"""Our packets beside uet-htsim's, cell by cell.

python benchmarks/network/htsim/compare.py --source uet-htsim/htsim/sim --json rows.json

The source is https://github.com/ultraethernet/uet-htsim, commit 40ccb05. It is copied, a line is
added that gets a flow's given path from `pins.hpp`, and it is built with cmake. Without --source
only our side runs.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from functools import partial
from json import dumps
from pathlib import Path
from time import process_time
from typing import Any

import numpy as np
from cells import ACK, HEADER, LATENCY_NS, SEED, Cell, cells

from gradwire.network import Flows, bounds
from gradwire.network.dice import draws, pick
from gradwire.network.engines.packet import _connections, send
from gradwire.network.exports_htsim import connections, topology
from gradwire.network.jobs import together
from gradwire.network.outages import NONE
from gradwire.report.table import Table

ANCHOR = "FibEntry* e = (*available_hops)[ecmp_choice];"
ASKS = "ecmp_choice = pins::choice(pkt, _type == TOR, *available_hops, ecmp_choice);\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--source", type=Path, help="htsim/sim of the repository")
    parser.add_argument("--build", type=Path, default=Path(tempfile.gettempdir()) / "htsim")
    parser.add_argument("--only", default="", help="cells with this in their name")
    parser.add_argument("--repeat", type=int, default=1, help="the best of so many is its speed")
    parser.add_argument("--json", type=Path, help="tests/golden/htsim.json is such a file")
    arguments = parser.parse_args()
    known = read(arguments.json) if arguments.json and arguments.json.exists() else {}
    run = None
    if arguments.source:
        run = partial(by_htsim, program=built(arguments.source, arguments.build))
    rows, speeds = dict[str, Row](), list[tuple[str, ...]]()
    for cell in cells():
        if arguments.only in cell.name:
            theirs, pace = timed(cell, run, arguments.repeat) if run else (None, None)
            ours, own_pace = timed(cell, by_ours, arguments.repeat)
            theirs = theirs or known.get(cell.name, {}).get("htsim_us")
            rows[cell.name] = row(cell, ours, theirs)
            speeds.append((shown(own_pace), shown(pace), shown(pace and own_pace / pace)))
    header = ("cell", "at least, µs", "ours", "htsim", "ours / htsim", "packets/s", "htsim's", "×")
    told = [(name, *map(shown, own.values()), *speed)
            for (name, own), speed in zip(rows.items(), speeds)]  # fmt: skip
    print(Table(header, told).as_markdown())
    if arguments.json:
        arguments.json.write_text(document({**known, **rows}))
    return 0


Row = dict[str, float | None]
Run = Callable[[Cell], tuple[float, float]]
"""For a cell: microseconds until the last byte has arrived, and seconds of CPU time."""


def row(cell: Cell, ours: float, theirs: float | None) -> Row:
    """Returns the values for the table and the file."""
    return {
        "least_us": round(bounds(cell.flows, cell.fabric).seconds * 1e6, 6), "ours_us": ours,
        "htsim_us": theirs, "ratio": theirs and round(ours / theirs, 4),
    }  # fmt: skip


def document(rows: dict[str, Row]) -> str:
    """Returns JSON with one row per line."""
    return "{\n" + ",\n".join(f"{dumps(n)}: {dumps(r)}" for n, r in rows.items()) + "\n}\n"


def read(file: Path) -> dict[str, Row]:
    """Reads the rows of such a file."""
    found: dict[str, Row] = json.loads(file.read_text())
    return found


def timed(cell: Cell, run: Run, repeat: int) -> tuple[float, float]:
    """Returns microseconds, and packets per second of CPU time."""
    found = [run(cell) for _ in range(repeat)]
    packets = float(np.ceil(cell.flows.bytes / cell.payload).sum())
    return found[0][0], packets / min(took for _, took in found)


def by_ours(cell: Cell) -> tuple[float, float]:
    """Runs a cell, as a `Run`."""
    routes = cell.routes
    began = process_time()
    sent = send(routes, cell.transport, seed=SEED)
    return round(float(sent.seconds.max()) * 1e6, 6), process_time() - began


def built(source: Path, build: Path) -> Path:
    """Returns the program, and builds it if it does not exist."""
    program = build / "build" / "datacenter" / "htsim_uec"
    if program.exists():
        return program
    shutil.copytree(source, build / "sim", dirs_exist_ok=True)
    shutil.copy(Path(__file__).with_name("pins.hpp"), build / "sim" / "datacenter")
    file = build / "sim" / "datacenter" / "fat_tree_switch.cpp"
    text = file.read_text()
    if text.count(ANCHOR) != 1:
        raise SystemExit(f"{file} has no line {ANCHOR!r}, or many; use commit 40ccb05.")
    file.write_text('#include "pins.hpp"\n' + text.replace(ANCHOR, ASKS + ANCHOR))
    made = str(build / "build")
    options = ["-DCMAKE_BUILD_TYPE=Release", "-DCMAKE_CXX_FLAGS=-w"]
    subprocess.run(["cmake", "-S", str(build / "sim"), "-B", made, *options], check=True)
    subprocess.run(["cmake", "--build", made, "--target", "htsim_uec"], check=True)
    return program


def by_htsim(cell: Cell, program: Path) -> tuple[float, float]:
    """Runs a cell, as a `Run`."""
    _, own = _connections(together(cell.routes), cell.transport, NONE, 0)
    flows = Flows(own.source, own.target, own.bytes)
    gbps = int(cell.fabric.host_up.min()) // 10**9
    with tempfile.TemporaryDirectory() as folder:
        files = {
            "cm": connections(flows, cell.fabric.hosts),
            "topo": topology(cell.fabric, LATENCY_NS),
            "pins": pins(cell, own) if cell.theirs is None else "",
        }
        for name, text in files.items():
            (Path(folder) / name).write_text(text)
        asked = [
            str(program), "-tm", "cm", "-topo", "topo", "-nodes", str(cell.fabric.hosts),
            "-linkspeed", str(gbps * 1000), "-sender_cc_algo", "constant", "-cwnd", "64",
            "-mtu", str(cell.payload + HEADER), "-q", str(cell.queue), "-ecn", str(cell.queue),
            str(cell.queue), "-end", "1000000", "-sack_threshold", str(cell.acked),
            *(cell.theirs or ("-load_balancing_algo", "oblivious", "-paths", "1")),
        ]  # fmt: skip
        before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
        said = subprocess.run(
            asked, cwd=folder, env={**os.environ, "PINS": "pins"}, capture_output=True, text=True,
        ).stdout  # fmt: skip
        took = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before
    found = re.findall(r"flowId (\d+) .* finished at ([0-9.e+]+)", said)
    if len(found) != len(flows):
        raise SystemExit(f"{cell.name}: {len(found)} of {len(flows)} flows ended.\n{said[-2000:]}")
    leaf = cell.fabric.leaf_of
    a, b = leaf[flows.src], leaf[flows.dst]
    hops = np.where(a == b, 2, np.where(cell.fabric.pod_of[a] == cell.fabric.pod_of[b], 4, 6))
    end = np.zeros(len(flows))
    for number, when in found:  # at the sender: minus the acknowledgement, which never waits
        i = int(number) - 1
        end[i] = float(when) * 1e-6 - hops[i] * (LATENCY_NS * 1e-9 + ACK * 8 / (gbps * 1e9))
    return round(float(end.max()) * 1e6, 3), took


def pins(cell: Cell, own: Any) -> str:
    """Returns the lines that `pins.hpp` reads: for each connection the switches of its path, or of
    all in rotation."""
    fabric, lines = cell.fabric, list[str]()
    for i, path in enumerate(own.path.tolist()):
        a, b = fabric.leaf_of[own.source[i]], fabric.leaf_of[own.target[i]]
        if a == b:
            continue
        paths = np.array([path])
        if path < 0:
            count = int(own.counts[i])
            first = pick(int(draws(SEED + i, 1)[0]), count)
            paths = (first + np.arange(count)) % count
        pod, up = int(fabric.pod_of[a]), len(fabric.uplinks)
        cores = fabric.cores if fabric.pod_of[a] != fabric.pod_of[b] else 1
        above, core = pod * up + paths // cores, paths % cores * up + paths // cores
        lines.append(" ".join(map(str, [i + 1, len(paths), *above, *core])))
    return "\n".join(lines) + "\n"


def shown(value: float | None) -> str:
    """Returns a value as tables show it."""
    if value is None:
        return "–"
    return f"{value / 1e3:,.0f} k" if value > 1e4 else f"{value:.{3 if value < 10 else 1}f}"


if __name__ == "__main__":
    raise SystemExit(main())

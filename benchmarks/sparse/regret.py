"""How far the chooser is from the best member, on every preset and several numbers of hosts.

    python benchmarks/sparse/regret.py

Every cell is one job of lab.py in which all members take turns, so ratios are of one run: the
median of sparse_auto over that of the fastest member, less 1. It has raced by then.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

from gradwire.report.table import Table

PRESETS = ("lstm", "nmt", "bert", "deepfm", "topk", "adversarial")
AUTO = "nonzero | sparse_auto"
MEMBERS = (
    "none | allreduce", "nonzero | allgather", "nonzero | sparcml", "nonzero | zen",
    "nonzero | columns",
)  # fmt: skip
FLAT = ("topk", "adversarial")  # without rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--hosts", type=int, nargs="*", default=(2, 3, 4, 8))
    parser.add_argument("--presets", nargs="*", default=PRESETS)
    parser.add_argument("--elements", type=float, default=4e6)
    parser.add_argument("--rounds", type=int, default=31)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    found = {
        f"{preset} {hosts}": cell(preset, hosts, arguments)
        for preset in arguments.presets
        for hosts in arguments.hosts
    }
    rows = [row(name, seconds) for name, seconds in found.items()]
    headers = ("preset", "hosts", "dense, ms", "best", "ms", "sparse_auto, ms", "regret")
    print(Table(headers, rows).as_markdown())
    if arguments.json:
        arguments.json.write_text(json.dumps(found, indent=1) + "\n")
    return 0


def cell(preset: str, hosts: int, arguments: argparse.Namespace) -> dict[str, float]:
    """Median seconds by strategy."""
    members = [m for m in MEMBERS if preset not in FLAT or "columns" not in m]
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        command = [
            sys.executable, str(Path(__file__).with_name("lab.py")), preset,
            "--hosts", str(hosts), "--elements", str(arguments.elements),
            "--rounds", str(arguments.rounds), "--warm-up", "72", "--json", file.name,
            "--strategies", *members, AUTO,
        ]  # fmt: skip
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        runs = json.loads(Path(file.name).read_text())["runs"]
    return {text: median(run["seconds"]) for text, run in runs.items()}


def row(name: str, seconds: dict[str, float]) -> tuple[str, ...]:
    best = min(MEMBERS, key=lambda text: seconds.get(text, float("inf")))
    preset, hosts = name.split()
    times = (1e3 * seconds[text] for text in (MEMBERS[0], best, AUTO))
    dense, fastest, auto = times
    return (
        preset, hosts, f"{dense:.0f}", best.split(" | ")[1], f"{fastest:.1f}", f"{auto:.1f}",
        f"{100 * (auto / fastest - 1):+.0f} %",
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())

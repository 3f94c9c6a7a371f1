"""How far the chooser is from the best member, on every preset and several numbers of hosts.

    python benchmarks/sparse/regret.py

Every cell is one job of lab.py in which all members take turns, so ratios are of one run. Its
races are over by the first round that counts. Regret: what the chosen member takes when it takes
its turn, over what the fastest does, less 1; and what sparse_auto itself took, medians all.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

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
    parser.add_argument("--rounds", type=int, default=41)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    cells = [
        cell(preset, hosts, arguments) for preset in arguments.presets for hosts in arguments.hosts
    ]
    headers = ("preset", "hosts", "dense, ms", "best", "ms", "chosen", "ms", "regret", "took, ms")
    print(Table(headers, [row(found) for found in cells]).as_markdown())
    if arguments.json:
        arguments.json.write_text(json.dumps(cells, indent=1) + "\n")
    return 0


def cell(preset: str, hosts: int, arguments: argparse.Namespace) -> dict[str, Any]:
    """Median seconds by strategy, and the choice."""
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
    seconds = {text.split(" | ")[1]: median(run["seconds"]) for text, run in runs.items()}
    chosen = runs[AUTO]["chosen"].replace("dense", "allreduce")
    return {"preset": preset, "hosts": hosts, "seconds": seconds, "chosen": chosen}


def row(found: dict[str, Any]) -> tuple[str, ...]:
    seconds = dict(found["seconds"])
    took, chosen = seconds.pop("sparse_auto"), found["chosen"]
    best = min(seconds, key=seconds.__getitem__)
    return (
        found["preset"], str(found["hosts"]), f"{1e3 * seconds['allreduce']:.0f}",
        best, f"{1e3 * seconds[best]:.1f}", chosen, f"{1e3 * seconds[chosen]:.1f}",
        f"{100 * (seconds[chosen] / seconds[best] - 1):.0f} %", f"{1e3 * took:.1f}",
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())

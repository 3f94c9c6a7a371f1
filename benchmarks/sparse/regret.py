r"""The chooser's distance from the best member, on every preset and several numbers of hosts.

    python benchmarks/sparse/regret.py
    python benchmarks/sparse/regret.py --rows --presets nmt lstm deepfm --hosts 4 8 \
        --rates 1gbit 100mbit --rounds 9

--rows: gradients as from nn.Embedding(sparse=True), and beside the members the methods of others:
DistributedDataParallel (torch's all-reduce), AGsparse (allgather), SparCML, a sparse parameter
server (which OmniReduce is on rows), ZEN as published. Links are slower by the number of hosts
that share a core, and times are divided by it.

Every cell is one job of lab.py in which all members take turns, so ratios are of one run. Its
races are over by the first round that counts. Regret: the chosen member's time in its own turns
over the fastest member's, minus 1; the time of sparse_auto itself is also shown. All are medians.
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
TORCH = "torch.distributed.all_reduce"
OF_ROWS = (
    TORCH, "none | allgather", "nonzero | sparcml", "nonzero | sparcml_split",
    "nonzero | sparse_ps", 'nonzero | zen(variant="paper")', "nonzero | zen", "none | columns",
)  # fmt: skip
OURS = ("zen", "columns")
CORES = 2


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--hosts", type=int, nargs="*", default=(2, 3, 4, 8))
    parser.add_argument("--presets", nargs="*", default=PRESETS)
    parser.add_argument("--rates", nargs="*", default=("1gbit",))
    parser.add_argument("--elements", type=float, default=4e6)
    parser.add_argument("--rounds", type=int, default=41)
    parser.add_argument("--rows", action="store_true")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    cells = [
        cell(preset, hosts, rate, arguments)
        for preset in arguments.presets for hosts in arguments.hosts for rate in arguments.rates
    ]  # fmt: skip
    headers = ("preset", "hosts", "dense, ms", "best", "ms", "chosen", "ms", "regret", "took, ms")
    headers += ("ours ÷ others",) if arguments.rows else ()
    print(Table(headers, [row(found) for found in cells]).as_markdown())
    if arguments.json:
        arguments.json.write_text(json.dumps(cells, indent=1) + "\n")
    return 0


def cell(preset: str, hosts: int, rate: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """Returns median seconds by strategy, and the choice."""
    members = [m for m in MEMBERS if preset not in FLAT or "columns" not in m]
    more = list[str]()
    if arguments.rows:
        members, more = list(OF_ROWS), ["--sparse", "--slower", str(max(1, hosts // CORES))]
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        command = [
            sys.executable, str(Path(__file__).with_name("lab.py")), preset,
            "--hosts", str(hosts), "--elements", str(arguments.elements), "--rate", rate, *more,
            "--rounds", str(arguments.rounds), "--warm-up", "72", "--json", file.name,
            "--strategies", *members, AUTO,
        ]  # fmt: skip
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        runs = json.loads(Path(file.name).read_text())["runs"]
    seconds = {_name(text): median(run["seconds"]) for text, run in runs.items()}
    chosen = runs[AUTO]["chosen"].replace("dense", "allreduce")
    found = {"preset": preset, "hosts": hosts, "rate": rate, "rows": arguments.rows}
    return {**found, "seconds": seconds, "chosen": chosen}


def _name(text: str) -> str:
    return "allreduce" if text == TORCH else text.split(" | ")[1]


def row(found: dict[str, Any]) -> tuple[str, ...]:
    seconds = dict(found["seconds"])
    took, chosen = seconds.pop("sparse_auto"), found["chosen"]
    best = min(seconds, key=seconds.__getitem__)
    others = [own for name, own in seconds.items() if name not in OURS]
    ours = min(took, *(seconds[name] for name in OURS if name in seconds)) / min(others)
    return (
        f"{found['preset']}, {found['rate']}", str(found["hosts"]),
        f"{1e3 * seconds['allreduce']:.0f}",
        best, f"{1e3 * seconds[best]:.1f}", chosen, f"{1e3 * seconds[chosen]:.1f}",
        f"{100 * (seconds[chosen] / seconds[best] - 1):.0f} %", f"{1e3 * took:.1f}",
        *([f"{ours:.2f}"] if found["rows"] else []),
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())

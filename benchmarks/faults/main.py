"""Lets jobs go wrong in every way that we know, and judges how they end.

    python benchmarks/faults/main.py --seeds 0 200 --json benchmarks/faults/results/faults.json
    python benchmarks/faults/main.py --only 17 --folder out      # one again, with its output

Every scenario runs on real ranks, each on a host of the lab; a seed is always the same scenario.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from judge import complaints
from scenario import NEEDS_LINKS, RATE, scenario

from gradwire.lab import Cluster, available
from gradwire.report.table import Table

HERE = Path(__file__).parent


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seeds", type=int, nargs=2, default=(0, 200), help="from, to")
    parser.add_argument("--only", type=int, nargs="*", help="these seeds")
    parser.add_argument("--folder", type=Path, help="where all that happened is kept")
    parser.add_argument("--json", type=Path, help="the verdicts")
    arguments = parser.parse_args()
    seeds = arguments.only or list(range(*arguments.seeds))
    with tempfile.TemporaryDirectory() as temporary:
        found = verdicts(seeds, arguments.folder or Path(temporary))
    wrong = {seed: texts for seed, texts in found.items() if texts}
    for seed, texts in wrong.items():
        print(scenario(seed), *texts, sep="\n    ")
    kinds = Counter(scenario(seed).kind for seed in found)
    rows = [
        (kind, f"{count}", f"{sum(scenario(seed).kind == kind for seed in wrong)}")
        for kind, count in kinds.items()
    ]
    print(Table(("what goes wrong", "scenarios", "not as they must end"), rows).as_markdown())
    print(f"{len(found)} scenarios, of which {len(wrong)} did not end as they must")
    if arguments.json:
        told = [{"scenario": str(scenario(seed)), "wrong": texts} for seed, texts in found.items()]
        arguments.json.write_text(json.dumps(told, indent=0) + "\n")
    return bool(wrong)


def verdicts(seeds: Sequence[int], folder: Path) -> dict[int, list[str]]:
    """Runs the scenarios of these seeds, one after the other. Returns what was wrong with each.

    Where no namespaces can be had, those that need links of their own are left out.
    """
    loopback = available().mode == "none"
    own = [s for s in seeds if not (loopback and scenario(s).kind in NEEDS_LINKS)]
    hosts = max(scenario(seed).world for seed in own)
    folder.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, str(HERE / "host.py"), str(folder), *map(str, own)]
    limit = sum(120.0 + 2 * scenario(seed).job.steps for seed in own)
    with Cluster(hosts, RATE, loopback=loopback) as cluster:
        code = cluster.run(command, timeout_seconds=limit)
    if code:
        raise RuntimeError(f"a host of the lab must run all scenarios; one ended with {code}")
    return {seed: complaints(scenario(seed), folder / f"{seed}") for seed in own}


if __name__ == "__main__":
    raise SystemExit(main())

"""The long demo: time to the loss that DDP fp32 reaches, and a ten times slower network.

Prints the tables in README.md; writes results/RATE.json and results/RATE.png beside this file.
"""

from __future__ import annotations

import argparse
import json
import time
from functools import partial
from pathlib import Path

from gradwire.demo import runner
from gradwire.demo.runner import Setting
from gradwire.demo.summary import document, save_plot, summarize, table
from gradwire.lab import Cluster
from gradwire.progress import Lines

STRATEGIES = ("none | allreduce", "dgc(0.001) | allgather")
SETTINGS = {
    "1gbit": Setting(strategies=STRATEGIES, most_steps=80, dense_seconds=120.0),
    "100mbit": Setting(rate="100mbit", strategies=STRATEGIES[1:], dense_seconds=100.0),
}


def main() -> None:
    """Runs the requested settings, all by default."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rates", nargs="*", choices=[[], *SETTINGS], help="all by default")
    parser.add_argument("--date", default=time.strftime("%Y-%m-%d"))
    parser.add_argument("--machine", default="")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    arguments = parser.parse_args()
    origin = {"date": arguments.date, "machine": arguments.machine}
    for rate in arguments.rates or SETTINGS:
        print(f"\n{run(SETTINGS[rate], origin, arguments.out)}", flush=True)


def run(setting: Setting, origin: dict[str, str], folder: Path) -> str:
    """Runs one setting, saves what was measured, and returns its table as Markdown."""
    began = time.monotonic()
    with Cluster(setting.hosts, setting.rate) as cluster:
        ran = runner.run(setting, cluster, Lines(partial(print, flush=True)))
    summary = summarize(ran)
    save_plot(ran, summary, cluster, folder, setting.rate)
    kept = origin | document(summary, cluster, time.monotonic() - began)
    (folder / f"{setting.rate}.json").write_text(json.dumps(kept, indent=1) + "\n")
    return table(summary).as_markdown()


if __name__ == "__main__":
    main()

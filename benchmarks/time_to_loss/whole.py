"""Seconds of whole runs of the study's `gpt` in the lab, by real ranks.

    python benchmarks/time_to_loss/whole.py --rate 100mbit --runs gpt,dense,2000,2 \\
        gpt-muon,muon-2-turns-4-rest-1,950,1

A run is task, method, steps and how many times the task's learning rate. Dense is DDP. Losses have
the same bits as in lockstep, except for DDP's sums, so a run's metric is in the study's records.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "convergence"))
from contestants import SETTLED, in_lab

from train import Run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rate", nargs="+", default=["100mbit"], help="of each host's link")
    parser.add_argument("--runs", nargs="+", required=True, help="TASK,METHOD,STEPS,RATE")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for rate in arguments.rate:
            for text in arguments.runs:
                task, method, steps, times = text.split(",")
                run = Run(task, method, 0, 4, int(steps), 0.01, float(times))
                found = in_lab("whole", [run], rate, Path(folder))
                # The first steps connect and allocate, and are not timed.
                (seconds,) = found["seconds"]
                seconds *= run.steps / (run.steps - SETTLED)
                last = found["losses"][-run.steps // 20 :]
                facts = {"rate": rate, "run": run.name, "seconds": round(seconds, 1)}
                print(json.dumps({**facts, "training_loss": sum(last) / len(last)}), flush=True)


if __name__ == "__main__":
    main()

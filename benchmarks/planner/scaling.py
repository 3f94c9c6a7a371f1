"""Scaling factors of well-known networks at a GPU's speed, by strategy and bandwidth.

    python benchmarks/planner/scaling.py bert_base vgg16 --rates 200mbit 1gbit

The step that computes alone, over the step that synchronizes as well: 1 is perfect. Every job
trains one replayed network (replay.py); its plans take turns on real steps.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
from predicted import settle, tuned
from replay import REPLAYS, SCALE
from turns import Trainer, measure, seconds_of, wait_for_quiet

from gradwire.lab import Cluster
from gradwire.plan import Plan
from gradwire.report.table import Table
from gradwire.strategy import Strategy

STRATEGIES = (
    "none | allreduce", "bf16 | allreduce", "topk(0.01)+ef | allgather",
    "sign(scaled=True)+ef | alltoall",
)  # fmt: skip
ROWS = {  # how DDP and layer-wise compressors group
    "fp32, 25 MB": ("none | allreduce", 25 << 20),
    "bf16, 25 MB": ("bf16 | allreduce", 25 << 20),
    "topk, layer-wise": ("topk(0.01)+ef | allgather", 1),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("models", nargs="*", choices=[[], *REPLAYS])
    parser.add_argument("--rates", nargs="*", default=["200mbit", "1gbit", "5gbit"])
    parser.add_argument("--hosts", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--patience", type=float, default=30.0, help="seconds, for calm turns")
    parser.add_argument("--out", default="", help="of one rank")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    if "RANK" in os.environ:
        work(arguments)
        return 0
    cells = [
        cell(model, rate, arguments)
        for model in arguments.models or REPLAYS
        for rate in arguments.rates
    ]
    names = ("model", "network", *ROWS, "auto", "which is")
    print(Table(names, [row(found) for found in cells]).as_markdown())
    if arguments.json:
        arguments.json.write_text(json.dumps(cells, indent=1) + "\n")
    return 0


def cell(model: str, rate: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """One job."""
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        command = [
            sys.executable, __file__, model, "--out", file.name,
            "--rounds", str(arguments.rounds), "--patience", str(arguments.patience),
        ]  # fmt: skip
        with Cluster(arguments.hosts, rate) as cluster:
            code = cluster.run(command)
        if code:
            raise SystemExit(f"{model} at {rate} ended with {code}")
        found: dict[str, Any] = json.loads(Path(file.name).read_text())
    return {"model": model, "rate": rate, "hosts": arguments.hosts, **found}


def row(found: dict[str, Any]) -> tuple[str, ...]:
    alone = found["alone"]
    factors = (f"{alone / median(found['seconds'][name]):.2f}" for name in (*ROWS, "auto"))
    return found["model"], found["rate"], *factors, found["auto"]


def work(arguments: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo")
    wait_for_quiet(30.0)
    training = REPLAYS[arguments.models[0]]()
    alone = Trainer(training)
    single = seconds_of([[alone.step() for _ in range(8)][2:]])[0]
    trainer, tuner = tuned(training, STRATEGIES)
    settle(trainer, tuner)
    tuner.close()
    assert tuner.profile is not None
    adopted, ordered = tuner.handle.plan, list(reversed(tuner.profile.parameters))
    plans = {
        name: Plan.make(ordered, Strategy.parse(text), bucket_bytes=cap // SCALE or 1, lanes=2)
        for name, (text, cap) in ROWS.items()
    }
    plans["auto"] = adopted
    steps = measure(trainer, list(plans.values()), arguments.rounds, arguments.patience)
    seconds = dict(zip(plans, seconds_of(steps)))
    if dist.get_rank() == 0:
        auto = f"{adopted.main_strategy}, {len(adopted.buckets)} buckets"
        document = {"alone": median(single), "seconds": seconds, "auto": auto}
        Path(arguments.out).write_text(json.dumps(document))
    dist.barrier()
    sys.stdout.flush()
    os._exit(0)  # torch 2.13 now and then aborts while it takes Gloo's threads down


if __name__ == "__main__":
    sys.exit(main())

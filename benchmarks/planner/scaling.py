"""Scaling factors of well-known networks at a GPU's speed, by strategy and bandwidth.

    python benchmarks/planner/scaling.py bert_base vgg16 --rates 200mbit 1gbit

A factor is the time of a step without synchronization over that of one with it: 1 is perfect.
Every job trains one replayed network (replay.py); its plans take turns on real steps: what
attach(model, "auto") adopts, how DDP and layer-wise compressors group, and what published planners
make of the same profile (published.py). bound: the time of a step without any exchange, over the
planner's lower bound of a step with one.
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
from predicted import STRATEGIES, settle, tuned
from published import PUBLISHED, plans_of
from replay import REPLAYS, SCALE
from turns import Trainer, against, measure, parts, seconds_of, wait_for_quiet

from gradwire.lab import Cluster
from gradwire.plan import Plan
from gradwire.planner.choose import judge
from gradwire.report.table import Table
from gradwire.strategy import Strategy

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
    parser.add_argument("--profiles", default="", help="a folder, for a closer look")
    arguments = parser.parse_args()
    if "RANK" in os.environ:
        work(arguments)
        return 0
    if arguments.profiles:
        Path(arguments.profiles).mkdir(exist_ok=True, parents=True)
    cells = list[dict[str, Any]]()
    for model in arguments.models or REPLAYS:
        for rate in arguments.rates:
            cells.append(cell(model, rate, arguments))
            if arguments.json:
                arguments.json.write_text(json.dumps(cells, indent=1) + "\n")
    names = ("model", "network", *ROWS, "auto", "bound", "which is")
    print(Table(names, [row(found) for found in cells]).as_markdown())
    names = ("model", "network", "auto, ms", *PUBLISHED, "the best of them / auto")
    print(Table(names, [beside(found) for found in cells]).as_markdown())
    return 0


def cell(model: str, rate: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """Runs one job."""
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        command = [
            sys.executable, __file__, model, "--out", file.name,
            "--rounds", str(arguments.rounds), "--patience", str(arguments.patience),
            *(["--profiles", str(arguments.profiles), "--rates", rate] * bool(arguments.profiles)),
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
    bound = f"{found['bound']:.2f}"
    return found["model"], found["rate"], *factors, bound, found["auto"]


def beside(found: dict[str, Any]) -> tuple[str, ...]:
    """Returns published planners' steps over that of the plan that auto adopted."""
    own = found["seconds"]["auto"]
    theirs = {name: found["seconds"][name] for name in PUBLISHED}
    ratio, low, high = against(own, list(theirs.values()))
    return (
        found["model"], found["rate"], f"{1e3 * median(own):.1f}",
        *(f"{median(seconds) / median(own):.2f}" for seconds in theirs.values()),
        f"{1 / ratio:.2f} ({1 / high:.2f} to {1 / low:.2f})",
    )  # fmt: skip


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
    plans |= plans_of(tuner.profile) | {"auto": adopted}
    digests = {plan.digest(): plan for plan in plans.values()}  # equal plans share their turns
    steps = measure(trainer, list(digests.values()), arguments.rounds, arguments.patience)
    measured = dict(zip(digests, seconds_of(steps)))
    seconds = {name: measured[plan.digest()] for name, plan in plans.items()}
    if dist.get_rank() == 0:
        judged = judge(tuner.profile, adopted)
        document = {
            "alone": median(single), "seconds": seconds, "predicted": judged.best.seconds,
            "bound": median(single) / judged.lower_bound,
            "auto": f"{adopted.main_strategy}, {len(adopted.buckets)} buckets",
            "parts": parts(steps[list(digests).index(adopted.digest())]),
        }  # fmt: skip
        Path(arguments.out).write_text(json.dumps(document))
        if arguments.profiles:
            name = f"{arguments.models[0]}-{arguments.rates[0]}.json"
            tuner.profile.save(Path(arguments.profiles) / name)
    dist.barrier()
    sys.stdout.flush()
    os._exit(0)  # torch 2.13 sometimes aborts while it shuts down Gloo's threads


if __name__ == "__main__":
    sys.exit(main())

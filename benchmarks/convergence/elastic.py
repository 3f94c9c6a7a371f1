"""Does a run learn as much whose number of workers changes? 4, 2, and 4 again, a third each.

    python elastic.py --task gpt --method adam-2-allgather dense --rate 1.5 --seeds 0 1

Each method runs so, and on 4 workers throughout. Workers' memory is passed on by the rule by which
`attach` resumes with another number of ranks. Prints a line of JSON for each run.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import replace

import torch
from exchange import Exchange
from methods import BY_NAME
from tasks import TASKS

from gradwire.training.elastic import by_rate, rates_of, regroup, sources
from train import Run, Training

WORKERS = (4, 2, 4), (4, 4, 4)


def trained(run: Run, workers: Sequence[int]) -> float:
    """Returns the metric at the end of a run whose equal parts have these numbers of workers."""
    training = Training(replace(run, workers=workers[0]))
    for part, now in enumerate(workers):
        if now != training.run.workers:
            training = among(training, now)
        while training.step < run.steps * (part + 1) // len(workers):
            training.advance()
    return training.metrics[-1][1]


def among(before: Training, workers: int) -> Training:
    """Returns the same run, continued by another number of workers."""
    now = Training(replace(before.run, workers=workers))
    now.model.load_state_dict(before.model.state_dict())
    now.optimizer.load_state_dict(before.optimizer.state_dict())
    now.step, now.metrics = before.step, before.metrics
    pass_on(before.exchange, now.exchange)
    return now


def pass_on(before: Exchange, now: Exchange) -> None:
    """Passes on what workers remember."""
    old, new = before.workers, now.workers
    rates = {} if before.rates is None else before.rates.units
    saved = [
        {"part": (0, 1), "state": own.memory, "leftovers": own.leftovers, "rates": by_rate(rates)}
        for own in old.ledgers
    ]
    plan: dict[str, list[str]] = {}
    for bucket, strategy in zip(old.plan.buckets, old.plan.strategies):
        plan.setdefault(str(strategy), []).extend(bucket.names)
    for rank, ledger in enumerate(new.ledgers):
        whose = sources(rank, len(new.ledgers), len(old.ledgers))
        own = regroup(
            {k: saved[k] for k in whose}, plan, ledger.sizes, len(old.ledgers), len(new.ledgers)
        )
        for name, state in own["state"].items():
            ledger.memory[name].update({key: x.clone() for key, x in state.items()})
        ledger.leftovers = {name: x.clone() for name, x in own["leftovers"].items()}
        if now.rates is not None:
            now.rates.units = rates_of(own)
    new.step = old.step


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--task", default="gpt", choices=sorted(TASKS))
    parser.add_argument(
        "--method", nargs="+", default=["adam-2-allgather"], choices=sorted(BY_NAME)
    )
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--rate", type=float, default=1.5)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--workers", type=int, nargs="+", action="append")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    for seed in arguments.seeds:
        for method in arguments.method:
            for workers in arguments.workers or WORKERS:
                run = Run(arguments.task, method, seed, 4, arguments.steps, 0.01, arguments.rate)
                facts = {"method": method, "seed": seed, "workers": workers}
                print(json.dumps({**facts, "metric": trained(run, workers)}), flush=True)


if __name__ == "__main__":
    main()

"""Does the guard see harm, and is it silent on sound runs? Real jobs, from their first step.

python benchmarks/guard/main.py [--ranks 4] [--seed 0] [--llama] [--json FILE]

Tasks are those of benchmarks/convergence. Each run is one window of the guard, and two steps.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import nn
from torch.multiprocessing.spawn import spawn
from torch.nn.utils import clip_grad_norm_

sys.path.insert(0, str(Path(__file__).parent.parent / "convergence"))
from tasks import TASKS

import gradwire
from gradwire.report.table import Table
from gradwire.training.guard import WINDOW, Apart

BETAS = 0.9, 0.99


_CLIPPED = "AdamW", "gradwire.optim.Muon"
"""The optimizers whose averages are clipped; averages that are steps must not be."""


class Twice(torch.optim.SGD):
    """A mistake: it declares that the plan keeps the momentum, and has one of its own."""

    asks_the_plan = True


class Case(NamedTuple):
    """A case. rate: times the task's learning rate, at which dense does best."""

    task: str
    plan: str
    optimizer: str
    rate: float = 1.0
    seed: int = 0


def _cases() -> tuple[list[Case], list[Case]]:
    """Returns the sound cases, and those that do harm."""
    by_adamw = (
        "none | allreduce", "bf16 | allreduce", "int8+ef | alltoall", "fp8 | alltoall",
        "qsgd(4) | alltoall", "qsgd(4) | allgather",
    )  # fmt: skip
    by_sgd = ("topk(0.01)+ef | allgather", "sign(scaled=True)+ef | allgather",
              "onebit+ef | allgather", "qsgd(4) | alltoall")  # fmt: skip
    with_momentum = ("dgc(0.01) | allgather", "dgc(0.001) | allgather")
    adam = "lloyd(2)+adam(beta2=0.99) | allgather"
    sound = [Case("gpt", plan, "AdamW", 2.0, seed) for plan in by_adamw for seed in (0, 1)]
    sound += [Case("gpt", adam, "gradwire.optim.AdamW", 2.0, seed) for seed in (0, 1)]
    sound += [Case("glyphs", plan, "SGD") for plan in by_sgd]
    sound += [Case("glyphs", plan, "gradwire.optim.SGD") for plan in with_momentum]
    muon = ("bf16 | allreduce", "int8 | alltoall", "lloyd(2)+muon(beta2=0.99) | alltoall")
    in_turns = 'lloyd(2)+muon(beta2=0.99, turns=4, rest="qsgd(4) | alltoall") | alltoall'
    sound += [Case("gpt-muon", plan, "gradwire.optim.Muon") for plan in (*muon, in_turns)]
    harm = [
        Case("gpt-muon", "qsgd(4) | alltoall", "gradwire.optim.Muon"),
        Case("gpt-muon", "topk(0.01)+ef | allgather", "gradwire.optim.Muon"),
        Case("gpt", "topk(0.01)+ef | allgather", "AdamW", 2.0),
        Case("gpt", "sign(scaled=True)+ef | allgather", "AdamW", 2.0),
        Case("gpt", "topk(0.001) | allgather", "AdamW", 2.0),
        Case("glyphs", "topk(0.001) | allgather", "SGD"),
        Case("glyphs", "dgc(0.01) | allgather", "momentum twice"),
        Case("glyphs", "terngrad+ef | allgather", "SGD"),
    ]
    return sound, harm


def _optimizer(case: Case, model: nn.Module) -> torch.optim.Optimizer:
    s, parameters = TASKS[case.task].settings, list(model.parameters())
    of_adam: Any = {"betas": BETAS, "weight_decay": s.weight_decay}
    of_sgd: Any = {"momentum": s.momentum, "weight_decay": s.weight_decay}
    makers: dict[str, Callable[[], torch.optim.Optimizer]] = {
        "AdamW": lambda: torch.optim.AdamW(parameters, s.rate, **of_adam),
        "gradwire.optim.AdamW": lambda: gradwire.optim.AdamW(parameters, s.rate, **of_adam),
        "SGD": lambda: torch.optim.SGD(parameters, s.rate, **of_sgd),
        "gradwire.optim.Muon": lambda: gradwire.optim.Muon.of(
            model, lr=s.rate, weight_decay=s.weight_decay, betas=BETAS
        ),
        "gradwire.optim.SGD": lambda: gradwire.optim.SGD(parameters, s.rate, **of_sgd),
        "momentum twice": lambda: Twice(parameters, s.rate, **of_sgd),
    }
    return makers[case.optimizer]()


def run(case: Case, rank: int, ranks: int) -> Apart:
    """Trains a case and returns how far apart the weights' paths were."""
    task = TASKS[case.task]
    model = task.fresh(case.seed)
    optimizer = _optimizer(case, model)
    handle = gradwire.attach(model, case.plan, guard=True)
    for step in range(WINDOW + 3):
        for group in optimizer.param_groups:
            group["lr"] = task.rate(step, task.full.steps) * case.rate
        optimizer.zero_grad()
        task.loss(model, task.batches(case.seed, step, ranks)[rank]).backward()
        steps = "+muon" in case.plan
        if task.settings.clip is not None and case.optimizer in _CLIPPED and not steps:
            clip_grad_norm_(model.parameters(), task.settings.clip)
        optimizer.step()
    found = handle.guard.apart[0]
    handle.detach()
    return found


def _work(rank: int, ranks: int, port: int, path: str, seed: int, as_llama: bool) -> None:
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=f"{port}")
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    dist.init_process_group("gloo", rank=rank, world_size=ranks)
    found = []
    for harms, cases in zip((False, True), _cases()):
        for case in cases:
            own = case._replace(seed=case.seed + seed)
            if as_llama:
                own = own._replace(task=own.task.replace("gpt", "llama"))
            found.append((*own, harms, *run(own, rank, ranks)))
    if rank == 0:
        Path(path).write_text(json.dumps(found))
    dist.destroy_process_group()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0, help="of the first of two")
    parser.add_argument("--llama", action="store_true", help="in gpt's place")
    parser.add_argument("--json", type=Path, default=Path("build/guard.json"))
    arguments = parser.parse_args()
    arguments.json.parent.mkdir(parents=True, exist_ok=True)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    ranks, seed, as_llama = arguments.ranks, arguments.seed, arguments.llama
    spawn(_work, (ranks, port, str(arguments.json), seed, as_llama), nprocs=ranks)
    wrong, cells = 0, []
    for task, plan, optimizer, _, seed, harms, *numbers in json.loads(arguments.json.read_text()):
        apart = Apart(*numbers)
        wrong += bool(apart.too_far) != harms
        said = "alarm" if apart.too_far else ""
        shown = ["" if own is None else f"{own:.3f}" for own in apart]
        cells.append((task, f"`{plan}`", optimizer, f"{seed}", *shown, said,
                      "harm" if harms else "sound"))  # fmt: skip
    headers = ("task", "plan", "optimizer", "seed", "elements apart", "a matrix apart", "said",
               "by long runs")  # fmt: skip
    print(Table(headers, cells).as_markdown())
    return int(wrong > 0)


if __name__ == "__main__":
    raise SystemExit(main())

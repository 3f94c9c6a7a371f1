"""Milliseconds of a step of a 26 M llama, by several ways of averaging, in turn. One rank.

    gradwire lab run --hosts 4 --rate 100mbit -- python benchmarks/time_to_loss/step.py

Each way trains a model of its own; they take turns, so that all run under the same load. Rank 0
prints a line of JSON.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

sys.path.insert(0, str(Path(__file__).parent.parent / "convergence"))
from tasks import llama

import gradwire

WIDTH, LAYERS, WORDS = 256, 12, 32000


class Way(NamedTuple):
    """A way of averaging. plan: "" for none at all, "ddp" for DDP as it is. steps: of a round.
    local: ranks take them alone, and exchange at its end. turns: of Muon's orthogonal steps.
    lanes: in which buckets of local steps' progress travel."""

    name: str
    plan: str
    muon: bool = False
    steps: int = 1
    local: bool = False
    turns: int = 1
    lanes: int = 1


HALF_A_BIT = 'lloyd(2)+muon(turns=4, rest="lloyd(1, turns=2) | alltoall") | alltoall'
FOUR_BITS = 'lloyd(2)+muon(turns=4, rest="qsgd(4) | alltoall") | alltoall'
WAYS = (
    Way("alone, AdamW", ""),
    Way("alone, Muon", "", muon=True),
    Way("alone, Muon, turns=4", "", muon=True, steps=4, turns=4),
    Way("DDP, fp32", "ddp"),
    Way("DDP, fp32, Muon", "ddp", muon=True),
    Way("bf16 | allreduce", "bf16 | allreduce"),
    Way("bf16 | allreduce, Muon", "bf16 | allreduce", muon=True),
    Way("qsgd(4) | alltoall", "qsgd(4) | alltoall"),
    Way("lloyd(2)+adam | allgather", "lloyd(2)+adam | allgather"),
    Way("lloyd(2)+muon | alltoall", "lloyd(2)+muon | alltoall", muon=True),
    Way("lloyd(2)+muon(turns=4) | alltoall", "lloyd(2)+muon(turns=4) | alltoall", True, 4),
    Way("muon(turns=4), rest by half a bit", HALF_A_BIT, True, 4),
    Way("muon(turns=4), rest by four bits", FOUR_BITS, True, 4),
    Way("every 4th step, lloyd(1)+ef | alltoall", "lloyd(1)+ef | alltoall", True, 4, local=True),
    Way("every 8th step, none | allreduce", "none | allreduce", True, 8, local=True),
    Way("every 8th step, lloyd(1)+ef | alltoall", "lloyd(1)+ef | alltoall", True, 8, local=True),
    Way("every 8th step, one bit, turns=4", "lloyd(1)+ef | alltoall", True, 8, True, turns=4),
    Way("the same in 4 lanes", "lloyd(1)+ef | alltoall", True, 8, True, turns=4, lanes=4),
)


def model() -> nn.Module:
    """Returns the task's model, wider and deeper, with a vocabulary of words."""
    torch.manual_seed(0)
    return llama.Llama(WIDTH, LAYERS, WORDS)


def trainer(way: Way, tokens: int) -> Callable[[], None]:
    """Returns a function that trains one round."""
    own = model()
    whole: Any = own
    optimizer: torch.optim.Optimizer
    if way.muon:
        optimizer = gradwire.optim.Muon.of(own, lr=1e-3, turns=way.turns)
    else:
        optimizer = gradwire.optim.AdamW(own.parameters(), 1e-3)
    if way.plan == "ddp":
        whole = DistributedDataParallel(own)
    elif way.local:
        gradwire.LocalSteps(own, optimizer, way.steps, way.plan, lanes=way.lanes)
    elif way.plan:
        gradwire.attach(own, way.plan, optimizer=optimizer)
    drawn = torch.randint(WORDS, (tokens // 64, 65))

    def loss() -> Tensor:
        return cross_entropy(whole(drawn[:, :-1]).flatten(0, 1), drawn[:, 1:].flatten())

    def round_() -> None:
        for _ in range(way.steps):
            optimizer.zero_grad()
            loss().backward()
            optimizer.step()

    return round_


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--tokens", type=int, default=128, help="of a rank's batch")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--ways", nargs="+", default=[way.name for way in WAYS])
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    ways = [way for way in WAYS if way.name in arguments.ways]
    rounds = [trainer(way, arguments.tokens) for way in ways]
    seconds: list[list[float]] = [[] for _ in ways]
    for turn in range(arguments.rounds + 1):
        for i, (way, round_) in enumerate(zip(ways, rounds)):
            dist.barrier()
            began = time.perf_counter()
            round_()
            dist.barrier()
            if turn:  # the first creates states and buffers
                seconds[i].append((time.perf_counter() - began) / way.steps)
    if dist.get_rank() == 0:
        print(json.dumps({w.name: round(1e3 * median(s), 1) for w, s in zip(ways, seconds)}))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

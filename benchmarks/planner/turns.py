"""Runs plans in turn on one attached model, and measures the parts of each step.

A turn is some steps of one plan, of which the first do not count; all plans have one turn in every
round, in another order each time. So other load on the machine affects all plans alike; turns in
which others' niced work took more than a little of it are measured and then left out.
"""

from __future__ import annotations

import math
import os
import random
from collections.abc import Callable, Sequence
from statistics import mean, median
from time import perf_counter, sleep
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from models import Training
from torch.optim import Optimizer

from gradwire.plan import Plan
from gradwire.training.attach import Handle

UNCOUNTED, COUNTED = 2, 4  # steps of a turn
DISTURBED = 0.03  # of one processor's time, by others


class Step(NamedTuple):
    """The seconds of one step on one rank. exposed: from the end of backward on."""

    whole: float
    backward: float
    exposed: float
    encode: float
    wire: float
    decode: float
    disturbed: float = 0.0  # the share of a processor that others had in the step's turn


class Trainer:
    """Trains, and clocks its steps. optimizer: by default the training's own."""

    def __init__(
        self, training: Training, handle: Handle | None = None, optimizer: Optimizer | None = None
    ) -> None:
        self.training, self.handle = training, handle
        self.optimizer = optimizer or training.make_optimizer(training.model.parameters())

    def step(self) -> Step:
        """Trains one step."""
        session = self.handle._session if self.handle else None
        began = perf_counter()
        self.optimizer.zero_grad()
        loss = self.training.loss()
        backward = perf_counter()
        loss.backward()  # type: ignore[no-untyped-call]
        ended = perf_counter()
        self.optimizer.step()
        whole = perf_counter() - began
        if session is None:
            return Step(whole, ended - backward, 0.0, 0.0, 0.0, 0.0)
        over = session.stats.backward_ended
        trace = session.conductor.trace
        parts = [trace.seconds(kind) for kind in ("encode", "wire", "decode")]
        return Step(whole, over - backward, ended - over, *parts)


def measure(
    trainer: Trainer, plans: Sequence[Plan], rounds: int, patience_seconds: float = 300.0
) -> list[list[Step]]:
    """Returns steps of every plan, in the order of plans: `rounds` calm turns of each, if patience
    allows, and at least `rounds` turns. Collective."""
    if trainer.handle is not None and trainer.handle.guard is not None:
        trainer.handle.guard.look_from(math.inf)  # 40 steps in 1,000 that it watches take longer
    found: list[list[Step]] = [[] for _ in plans]
    began, number = perf_counter(), 0
    while number < rounds or not _are_enough(found, rounds, began + patience_seconds):
        wait_for_quiet(8.0, 0.4)
        order = random.Random(number).sample(range(len(plans)), len(plans))
        for i in order:
            found[i] += turn(trainer, plans[i])
        number += 1
    return found


def turn(trainer: Trainer, plan: Plan) -> list[Step]:
    """Takes a turn and returns the steps that count. Collective."""
    assert trainer.handle is not None
    trainer.handle.adopt(plan)
    before = perf_counter(), niced_seconds()
    steps = [trainer.step() for _ in range(UNCOUNTED + COUNTED)]
    others = (niced_seconds() - before[1]) / (perf_counter() - before[0])
    return [step._replace(disturbed=others) for step in steps[UNCOUNTED:]]


def _are_enough(found: Sequence[Sequence[Step]], rounds: int, until: float) -> bool:
    """Whether time is over on some rank, or all ranks have enough calm turns."""
    calm = min(sum(step.disturbed <= DISTURBED for step in own) for own in found)
    facts = torch.tensor([calm, -float(perf_counter() > until)])
    dist.all_reduce(facts, op=dist.ReduceOp.MIN)
    return float(facts[0]) >= rounds * COUNTED or float(facts[1]) < 0


def niced_seconds() -> float:
    """Returns the CPU time, since the machine started, of all niced work, which is other people's,
    and of what other machines on the same processors stole."""
    with open("/proc/stat", encoding="ascii") as file:
        fields = file.readline().split()
    return (float(fields[2]) + float(fields[8])) / os.sysconf("SC_CLK_TCK")


def wait_for_quiet(patience_seconds: float = 60.0, quiet_seconds: float = 1.0) -> bool:
    """Waits until others leave the machine alone; returns False if they do not. Collective: when
    patience is over on one rank it is over on all, because clocks differ."""
    began, is_over = perf_counter(), False
    while not is_over:
        before = niced_seconds()
        sleep(quiet_seconds)
        mine = [niced_seconds() - before, float(perf_counter() - began > patience_seconds)]
        facts = torch.tensor(mine)
        dist.all_reduce(facts, op=dist.ReduceOp.MAX)
        if float(facts[0]) <= DISTURBED * quiet_seconds:
            return True
        is_over = bool(facts[1])
    return False


def seconds_of(steps: Sequence[Sequence[Step]]) -> list[list[float]]:
    """Returns every plan's seconds, step by step, as means over ranks: a rank that ends one step
    late begins the next one late, so means add up to what training takes. Takes the turns that
    others left alone, or, if these are too few, the calmer half. Collective."""
    took = torch.tensor([[step.whole for step in own] for own in steps], dtype=torch.float64)
    others = torch.tensor([[step.disturbed for step in own] for own in steps], dtype=torch.float64)
    dist.all_reduce(took)
    dist.all_reduce(others, op=dist.ReduceOp.MAX)
    facts = torch.stack([took / dist.get_world_size(), others], dim=-1)
    return [undisturbed(own) for own in facts.tolist()]


def undisturbed(own: Sequence[Sequence[float]]) -> list[float]:
    """Returns the seconds that count, from pairs (seconds, share of others)."""
    calm = [seconds for seconds, others in own if others <= DISTURBED]
    half = sorted(own, key=lambda pair: pair[1])[: max(2 * COUNTED, len(own) // 2)]
    return calm if len(calm) >= 2 * COUNTED else [seconds for seconds, _ in half]


def parts(steps: Sequence[Step]) -> dict[str, float]:
    """Returns the means of parts, which add up, without the slowest tenth of the steps."""
    usual = sorted(steps, key=lambda step: step.whole)[: max(1, len(steps) * 9 // 10)]
    return {name: mean(getattr(s, name) for s in usual) for name in Step._fields}


def turns_of(steps: Sequence[float]) -> list[Sequence[float]]:
    """Groups steps by turns: they were measured together, and so disturbed together."""
    return [steps[i : i + COUNTED] for i in range(0, len(steps), COUNTED)]


def against(own: Sequence[float], rivals: Sequence[Sequence[float]]) -> tuple[float, float, float]:
    """Returns the seconds of a plan over those of its best rival, with the 95 % interval.

    One half of the turns decides which rival is the best and the other measures it, both ways,
    because the luckiest of twenty need not be the best. Turns are resampled whole.
    """
    mine, theirs = turns_of(own), [turns_of(rival) for rival in rivals]
    dice = random.Random(0)
    ratios = sorted(
        _ratio([_resampled(half, dice) for half in _halves(mine)],
               [[_resampled(half, dice) for half in _halves(rival)] for rival in theirs])
        for _ in range(400)
    )  # fmt: skip
    middles = [[_middle(half) for half in _halves(rival)] for rival in (mine, *theirs)]
    return _ratio(middles[0], middles[1:]), ratios[10], ratios[389]


def _halves(turns: Sequence[Sequence[float]]) -> list[Sequence[Sequence[float]]]:
    return [turns[::2], turns[1::2] or turns[::2]]


def _resampled(turns: Sequence[Sequence[float]], dice: random.Random) -> float:
    return _middle(dice.choices(turns, k=len(turns)))


def _middle(turns: Sequence[Sequence[float]]) -> float:
    return median(seconds for turn in turns for seconds in turn)


def _ratio(own: Sequence[float], rivals: Sequence[Sequence[float]]) -> float:
    """Returns the mean ratio to the best rival; each argument has the medians of two halves."""
    found = [own[b] / min(rivals, key=lambda r: r[a])[b] for a, b in ((0, 1), (1, 0))]
    return sum(found) / 2


def kendall(
    a: Sequence[float], b: Sequence[float],
    counts: Callable[[int, int], bool] = lambda i, j: True,
) -> float:  # fmt: skip
    """Kendall's τ: of all pairs that count, those in the same order minus those in the other, over
    all of them."""
    pairs = [(i, j) for i in range(len(a)) for j in range(i) if counts(i, j)]
    signs: list[Any] = [(a[i] - a[j]) * (b[i] - b[j]) for i, j in pairs]
    return sum((s > 0) - (s < 0) for s in signs) / len(pairs) if pairs else 1.0

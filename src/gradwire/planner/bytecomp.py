"""ByteComp (Espresso), the planner as published: a baseline to compare with.

    options = greedy(tensors, evaluate)                  Algorithm 1: the options, all on the GPU
    plan = offload(tensors, options, evaluate)           Algorithm 2: which of them on the CPU

F(S), the time of a step for a strategy S, is any callable from a list of jobs to seconds; by
default `ordered`, the paper's own model. Known failures (measured in our own checks):

- Algorithm 1 tries one tensor at a time: optimal in 80 % of 800 random instances, 0.8 % slower
  than the optimum on average and 32 % at worst.
- Lemma 1, on which Algorithm 2 rests, is wrong: of equal tensors the earliest are not always the
  best to compress on the CPU, because a slow first tensor keeps the link from all tensors queued
  behind it. In 18 % of random instances another choice is better, by up to 36 %
  (tests/unit/planner/test_bytecomp.py has the smallest).
- Algorithm 2 tries the product of all group sizes: hours where groups are large. `most` caps it.

Source: Espresso (EuroSys'23), section 4.4; arXiv 2205.14465. `search` (search.py) is ours.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from math import prod
from typing import NamedTuple

from gradwire.errors import PlanError
from gradwire.planner.ordered import last_bubble, ordered
from gradwire.planner.timeline import Executor, Job, Stage

Evaluate = Callable[[Sequence[Job]], float]
MOST = 200_000


class Option(NamedTuple):
    """A way for a tensor to travel. offloaded: the same with (de)compression on the CPU; None for
    options that do not compress."""

    stages: tuple[Stage, ...]
    offloaded: tuple[Stage, ...] | None = None


class Tensor(NamedTuple):
    """A tensor, in the order of backward. options: the first is without compression."""

    ready_seconds: float
    elements: int
    options: tuple[Option, ...]


class Choice(NamedTuple):
    """One tensor's choice: the index of its option, and where it compresses."""

    option: int
    on_cpu: bool = False


def jobs(tensors: Sequence[Tensor], choices: Sequence[Choice]) -> list[Job]:
    """Returns the tensors as jobs. Raises PlanError if an option on_cpu has no CPU form."""
    return [_job(t, choice) for t, choice in zip(tensors, choices, strict=True)]


def _job(tensor: Tensor, choice: Choice) -> Job:
    option = tensor.options[choice.option]
    stages = option.offloaded if choice.on_cpu else option.stages
    if stages is None:
        raise PlanError(
            f"only an option that compresses can go to the CPU; option {choice.option} does not "
            "compress. Leave on_cpu=False."
        )
    return Job(tensor.ready_seconds, stages)


def greedy(
    tensors: Sequence[Tensor], evaluate: Evaluate | None = None, executor: Executor | None = None
) -> list[Choice]:
    """Runs Algorithm 1: returns one option for each tensor, all on the GPU.

    Tensors before the last bubble stay as they are. The rest is taken by size, largest first, and
    at equal sizes the latest in backward first. Each tries all its options with all other choices
    fixed and keeps the best; then the last bubble is computed again.
    """
    around = executor or Executor()
    time = evaluate or (lambda own: ordered(own, around))
    choices = [Choice(0)] * len(tensors)
    first = last_bubble(jobs(tensors, choices), around)
    order = sorted(range(len(tensors)), key=lambda i: (-tensors[i].elements, -i))
    for i in order:
        if i >= first:
            choices = _best_option(tensors, choices, i, time)
            first = last_bubble(jobs(tensors, choices), around)
    return choices


def _best_option(
    tensors: Sequence[Tensor], choices: list[Choice], which: int, time: Evaluate
) -> list[Choice]:
    """Returns the choices with the best option; of equals the first, so that a tensor stays
    uncompressed unless compressing gains."""
    tried = [
        [*choices[:which], Choice(option), *choices[which + 1 :]]
        for option in range(len(tensors[which].options))
    ]
    return min(tried, key=lambda own: time(jobs(tensors, own)))


def groups(tensors: Sequence[Tensor], choices: Sequence[Choice]) -> list[list[int]]:
    """Groups compressed tensors of the same size and option, each group in backward order."""
    found: dict[tuple[int, int], list[int]] = {}
    for i, (tensor, choice) in enumerate(zip(tensors, choices, strict=True)):
        if tensor.options[choice.option].offloaded is not None:
            found.setdefault((tensor.elements, choice.option), []).append(i)
    return list(found.values())


def offload(
    tensors: Sequence[Tensor], choices: Sequence[Choice], evaluate: Evaluate | None = None,
    executor: Executor | None = None, *, most: int = MOST,
) -> list[Choice]:  # fmt: skip
    """Runs Algorithm 2: the earliest u of each group go to the CPU (Lemma 1); tries all u.

    Raises:
        PlanError: there are more than `most` combinations of these u.
    """
    around = executor or Executor()
    time = evaluate or (lambda own: ordered(own, around))
    own = groups(tensors, choices)
    vectors = prod(len(group) + 1 for group in own)
    if vectors > most:
        raise PlanError(
            f"Algorithm 2 tries every way to offload groups of {[len(g) for g in own]} equal "
            f"tensors: {vectors} ways, more than most={most}. Raise most, or use search()."
        )
    every = (_offloaded(choices, own, u) for u in product(*(range(len(g) + 1) for g in own)))
    return min(every, key=lambda tried: time(jobs(tensors, tried)))


def _offloaded(
    choices: Sequence[Choice], own: Sequence[Sequence[int]], counts: Sequence[int]
) -> list[Choice]:
    moved = {i for group, count in zip(own, counts) for i in group[:count]}
    return [choice._replace(on_cpu=i in moved) for i, choice in enumerate(choices)]

"""The published planner, ByteComp (Espresso), as it was published: a baseline to compare with.

    options = greedy(tensors, evaluate)                  Algorithm 1: which option, all on the GPU

F(S), the time of a step for a strategy S, is any callable from a list of jobs to seconds; by
default `ordered`, the paper's own model. Known failures (measured in our own checks):

- Algorithm 1 tries one tensor at a time: optimal in 80 % of 800 random instances, 0.8 % slower
  than the optimum on average and 32 % at worst.
- Lemma 1, on which Algorithm 2 rests (which of them compress on the CPU), is wrong: of equal
  tensors the earliest are not always the best, because a slow first tensor keeps the link from all
  that queue behind it. In 18 % of random instances another choice is better, by up to 36 %. It
  also tries the product of all group sizes: hours where groups are large. It is not here, as plans
  of whole strategies have no devices to choose.

Source: Espresso (EuroSys'23), section 4.4; arXiv 2205.14465. `search` (search.py) is ours.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from gradwire.planner.ordered import last_bubble, ordered
from gradwire.planner.timeline import Executor, Job, Stage

Evaluate = Callable[[Sequence[Job]], float]


class Option(NamedTuple):
    """A way for a tensor."""

    stages: tuple[Stage, ...]


class Tensor(NamedTuple):
    """A tensor in backward order. options: the first is without compression."""

    ready_seconds: float
    elements: int
    options: tuple[Option, ...]


class Choice(NamedTuple):
    """What one tensor does: the position of its option."""

    option: int


def jobs(tensors: Sequence[Tensor], choices: Sequence[Choice]) -> list[Job]:
    """The tensors as jobs."""
    return [
        Job(tensor.ready_seconds, tensor.options[choice.option].stages)
        for tensor, choice in zip(tensors, choices, strict=True)
    ]


def greedy(
    tensors: Sequence[Tensor], evaluate: Evaluate | None = None, executor: Executor | None = None
) -> list[Choice]:
    """Algorithm 1. One option for each tensor, all on the GPU.

    Tensors before the last bubble stay as they are. The rest goes by size, largest first, and of
    equal sizes latest in backward first; each tries all its options with all other choices fixed
    and keeps the best; then bubbles are looked for anew.
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
    """The first of the best, so that leaving the tensor as it is wins where nothing is gained."""
    tried = [
        [*choices[:which], Choice(option), *choices[which + 1 :]]
        for option in range(len(tensors[which].options))
    ]
    return min(tried, key=lambda own: time(jobs(tensors, own)))

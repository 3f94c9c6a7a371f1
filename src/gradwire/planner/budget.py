"""Groups and options whose error stays within a budget.

    the best of all ──► over the budget? ──► downgrades, first those with the least cost per
                                             error removed ──► sweeps: any change that fits, helps
    the best of options that fit alone ────► sweeps
    each tensor by its most exact option ──► sweeps

The shortest step of these wins. The errors of tensors add up (`exactness`): an allocation after
Markov et al. 2024, "L-GreCo", on predicted seconds instead of bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from gradwire.planner.grouping import WORTH, Grouping, Problem, improve, solve

_SWEEPS = 8
_FEW = 8  # the most groups of which pairs are changed


def solve_within(problem: Problem) -> tuple[Grouping, float]:
    """Returns a grouping that fits, and the seconds of its step. Needs `may_fit`: one must fit."""
    freely, seconds = solve(replace(problem, most_error=float("inf"), _jobs=problem._jobs))
    if problem.fits(freely):
        return freely, seconds
    starts = [_downgraded(problem, freely), problem.exactest]
    if problem.fitting:
        starts.append(_of_few(problem))
    found = [_swept(problem, start) for start in starts if problem.fits(start)]
    best = min(found, key=problem.seconds)
    return best, problem.seconds(best)


def _of_few(problem: Problem) -> Grouping:
    """Returns the best grouping of options that fit even for all tensors."""
    numbers = problem.fitting
    few = replace(
        problem, options=[problem.options[i] for i in numbers],
        errors=[problem.errors[i] for i in numbers], _jobs={},
    )  # fmt: skip
    found, _ = solve(few)
    return Grouping(found.ends, tuple(numbers[o] for o in found.chosen))


def _downgraded(problem: Problem, grouping: Grouping) -> Grouping:
    """Gives one group after another a more exact option, until the grouping fits."""
    while not problem.fits(grouping):
        seconds, error = problem.seconds(grouping), problem.error(grouping)
        better = [other for other in _others(problem, grouping) if problem.error(other) < error]
        if not better:  # these groups are too large for any one option
            break
        grouping = min(
            better,
            key=lambda other: (problem.seconds(other) - seconds) / (error - problem.error(other)),
        )
    return grouping


def _others(problem: Problem, at: Grouping) -> Iterator[Grouping]:
    """Yields groupings with one group by another option."""
    for number, chosen in enumerate(at.chosen):
        for option in range(len(problem.options)):
            if option != chosen:
                choice = (*at.chosen[:number], option, *at.chosen[number + 1 :])
                yield Grouping(at.ends, choice)


def _exchanges(problem: Problem, at: Grouping) -> Iterator[Grouping]:
    """Yields groupings with two groups by other options, as one may make room for the other; none
    if there are more than `_FEW` groups."""
    if len(at.chosen) <= _FEW:
        for one in _others(problem, at):
            yield from _others(problem, one)


def _swept(problem: Problem, grouping: Grouping) -> Grouping:
    """Tries other options and borders while a change that fits makes the step shorter."""
    seconds = problem.seconds(grouping)
    for _ in range(_SWEEPS):
        before = seconds
        for other in (*_others(problem, grouping), *_exchanges(problem, grouping)):
            changed = sum(a != b for a, b in zip(other.chosen, grouping.chosen))
            if changed <= 2 and problem.fits(other) and problem.seconds(other) < seconds:
                grouping, seconds = other, problem.seconds(other)
        grouping = improve(problem, grouping)
        seconds = problem.seconds(grouping)
        if seconds > before * (1 - WORTH):
            break
    return grouping

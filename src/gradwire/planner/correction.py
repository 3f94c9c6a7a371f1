"""Corrects a profile by comparing its predictions with the times of real steps.

The network may be twice as fast, or half as fast, while it is measured as while the job trains:
the correction is the one factor for all moves that explains the steps best. Steps that do not wait
for moves tell nothing about them, and correct nothing. Watched steps also wait for a slow
exchange, after which caches are cold: an error that all plans share is assigned to what they all
have, forward and the optimizer.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from statistics import mean, median

from gradwire.plan import Plan
from gradwire.planner.candidates import timeline_of
from gradwire.planner.profile import Profile
from gradwire.strategy import Strategy

_FACTORS = tuple(2.0 ** (i / 4) for i in range(-12, 13))  # an eighth to eight times
_LEAST = 1.5  # a smaller factor may be noise, or something else than moves
_WORTH = 0.7  # a factor must leave at most this share of the error
_SHARED = 0.5  # the weight of the error that all plans share


def with_around(profile: Profile, measured: Sequence[tuple[Plan, float]]) -> Profile:
    """Returns the profile with the time of forward and the optimizer changed by the median over
    plans of measured less predicted seconds of a step."""
    if not measured:
        return profile
    off = median(
        seconds - timeline_of(profile, plan).iteration_seconds for plan, seconds in measured
    )
    return replace(profile, around_seconds=max(0.0, profile.around_seconds + off))


def moves_factor(profile: Profile, measured: Sequence[tuple[Plan, float]]) -> float:
    """Returns how many times as long as in the profile moves take, from seconds of steps; 1.0 if
    no factor explains these, or the best one is within noise."""
    if not measured:
        return 1.0
    errors = {factor: _error(profile.slowed(factor), measured) for factor in _FACTORS}
    best = min(errors, key=lambda factor: (errors[factor], abs(math.log(factor))))
    is_wrong = not 1 / _LEAST < best < _LEAST
    return best if is_wrong and errors[best] <= _WORTH * errors[1.0] else 1.0


def _error(profile: Profile, measured: Sequence[tuple[Plan, float]]) -> float:
    """Returns the mean distance of measurements from predictions, as logarithms of factors. Every
    strategy counts the same, however many of its plans were measured: half a dozen compressed
    plans that all take longer than predicted must not outvote the baseline, of whose time moves
    are the largest part. The error that all plans share counts by `_SHARED` only: the whole
    machine may have been slower."""
    off = defaultdict[Strategy, list[float]](list)
    for plan, seconds in measured:
        predicted = timeline_of(profile, plan).iteration_seconds
        off[plan.main_strategy].append(math.log(seconds / predicted))
    return min(
        mean(mean(abs(own - shared) for own in factors) for factors in off.values())
        + _SHARED * abs(shared)
        for shared in (0.0, *chain.from_iterable(off.values()))
    )

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
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import mean, median

from gradwire.plan import Plan
from gradwire.planner.candidates import timeline_of
from gradwire.planner.profile import Profile
from gradwire.strategy import Strategy

_FACTORS = tuple(2.0 ** (i / 4) for i in range(-12, 13))  # an eighth to eight times
_LEAST = 1.5  # a smaller factor may be noise, or something else than moves
_WORTH = 0.7  # a factor must leave at most this share of the error
_SHARED_FACTOR, _SHARED_SECONDS = 0.5, 0.1  # the weights of the error that all plans share


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
    no factor explains these, or the best one is within noise.

    A machine that is slower for a while makes all steps longer by a factor, and what every step
    waits for once by seconds. Neither is the network's: a factor for moves must explain more than
    either, and the one nearer to 1 counts.
    """
    if not measured:
        return 1.0
    plans, seconds = zip(*measured)
    strategies = [plan.main_strategy for plan in plans]
    predicted = {f: _predicted(profile.slowed(f), plans) for f in _FACTORS}
    found = [
        _best({f: error(said, seconds, strategies) for f, said in predicted.items()})
        for error in (_beside_a_factor, _beside_seconds)
    ]
    return max(1.0, min(found)) if max(found) > 1.0 else max(found)


def _predicted(profile: Profile, plans: Sequence[Plan]) -> list[float]:
    return [timeline_of(profile, plan).iteration_seconds for plan in plans]


def _best(errors: Mapping[float, float]) -> float:
    best = min(errors, key=lambda factor: (errors[factor], abs(math.log(factor))))
    is_wrong = not 1 / _LEAST < best < _LEAST
    return best if is_wrong and errors[best] <= _WORTH * errors[1.0] else 1.0


def _beside_a_factor(
    predicted: Sequence[float], seconds: Sequence[float], strategies: Sequence[Strategy]
) -> float:
    """Returns the distance of steps from predictions, but for a factor that all plans share."""
    off = [math.log(s / p) for s, p in zip(seconds, predicted)]
    return min(
        _mean([abs(own - shared) for own in off], strategies) + _SHARED_FACTOR * abs(shared)
        for shared in (0.0, *off)
    )


def _beside_seconds(
    predicted: Sequence[float], seconds: Sequence[float], strategies: Sequence[Strategy]
) -> float:
    """Returns the distance of steps from predictions, but for seconds that all plans share."""
    middle, least = median(predicted), -0.9 * min(predicted)
    return min(
        _mean([abs(math.log(s / (p + shared))) for s, p in zip(seconds, predicted)], strategies)
        + _SHARED_SECONDS * abs(math.log1p(shared / middle))
        for shared in (0.0, *(max(least, s - p) for s, p in zip(seconds, predicted)))
    )


def _mean(errors: Sequence[float], strategies: Sequence[Strategy]) -> float:
    """Returns the mean of plans' errors. Every strategy counts the same, however many of its plans
    were measured: half a dozen compressed plans that all take longer than predicted must not
    outvote the baseline, of whose time moves are the largest part."""
    own = defaultdict[Strategy, list[float]](list)
    for strategy, error in zip(strategies, errors):
        own[strategy].append(error)
    return mean(map(mean, own.values()))

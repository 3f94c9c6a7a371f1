"""How wrong a profile is, seen from how long real steps took that it had predicted.

A network may be twice as fast while it is measured as while the job trains, or half: the one
factor for all moves that explains steps best tells. Steps that wait for nothing say nothing about
moves, and correct nothing. And watched steps wait for a slow exchange, after which caches are
cold: what all plans are off by is of what all plans have, forward and the optimizer.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from statistics import mean, median

from gradwire.plan import Plan
from gradwire.planner.candidates import timeline_of
from gradwire.planner.profile import Profile

_FACTORS = tuple(2.0 ** (i / 4) for i in range(-12, 13))  # an eighth to eight times
_LEAST = 1.5  # times wrong: less may be noise, or something else than moves
_WORTH = 0.7  # of the error must be left at most
_SHARED = 0.5  # of what all plans are off by


def with_around(profile: Profile, measured: Sequence[tuple[Plan, float]]) -> Profile:
    """The profile as if forward and the optimizer took as much longer, or shorter, as steps did
    than was predicted: the median of plans."""
    if not measured:
        return profile
    off = median(
        seconds - timeline_of(profile, plan).iteration_seconds for plan, seconds in measured
    )
    return replace(profile, around_seconds=max(0.0, profile.around_seconds + off))


def moves_factor(profile: Profile, measured: Sequence[tuple[Plan, float]]) -> float:
    """The factor by which moves take longer than the profile says, from seconds of steps; 1.0 if
    that does not explain them, or explains noise."""
    if not measured:
        return 1.0
    errors = {factor: _error(profile.slowed(factor), measured) for factor in _FACTORS}
    best = min(errors, key=lambda factor: (errors[factor], abs(math.log(factor))))
    is_wrong = not 1 / _LEAST < best < _LEAST
    return best if is_wrong and errors[best] <= _WORTH * errors[1.0] else 1.0


def _error(profile: Profile, measured: Sequence[tuple[Plan, float]]) -> float:
    """The mean distance of measurements from predictions, as factors. A machine that was slower
    as a whole is half an excuse: what all of them share counts so much less."""
    factors = [
        math.log(seconds / timeline_of(profile, plan).iteration_seconds)
        for plan, seconds in measured
    ]
    return min(
        mean(abs(own - shared) for own in factors) + _SHARED * abs(shared)
        for shared in (0.0, *factors)
    )

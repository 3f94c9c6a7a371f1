"""The error of a step's average against the exact one: for tensors, plans and error budgets.

    error² of a plan = Σ over its tensors: share · (error of the tensor by its strategy)²

share: of all elements. An error is relative to its own tensor, so that a tensor with small
gradients, which must learn as well, counts as much as one with large ones: relative to the norm of
the whole average, an embedding or a head alone would decide, and all others could be dropped.
Squares add up, so that a budget can be spent where it shortens the step most: after Markov et al.
2024, "L-GreCo", which spends it on bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import sqrt

from gradwire.errors import PlanError
from gradwire.plan import Plan
from gradwire.planner.profile import Profile
from gradwire.planner.stages import way
from gradwire.strategy import Strategy


def shares(profile: Profile) -> Mapping[str, float]:
    """Returns, by name, each dense parameter's share of all their elements."""
    dense = [r.parameter for r in profile.ready if not r.parameter.sparse]
    whole = sum(p.elements for p in dense) or 1
    return {p.name: p.elements / whole for p in dense}


def error_in(profile: Profile, strategy: str, name: str) -> float | None:
    """Returns the relative error of a parameter's average by a strategy; if its own was not
    measured, that of all; if neither was, 0 for an exact strategy, else None."""
    text = profile.measured(strategy)
    cost = profile.strategies[text] if text is not None else None
    known = None if cost is None else cost.errors.get(name, cost.error)
    return 0.0 if known is None and _is_exact(strategy) else known


def error_of(profile: Profile, plan: Plan) -> float | None:
    """Returns the relative error of a step's average, the root of the mean square over all
    elements of dense parameters; None if the error of any is not known."""
    total, weights = 0.0, shares(profile)
    for bucket, strategy in zip(plan.buckets, plan.strategies):
        for name in () if bucket.has_rows else bucket.names:
            error = error_in(profile, str(strategy), name)
            if error is None:
                return None
            total += weights[name] * error**2
    return sqrt(total)


def known_errors(profile: Profile, option: str) -> Mapping[str, float]:
    """Returns, by name, share · error² of each dense parameter if matrices use a strategy. Raises
    PlanError if an error was not measured."""
    weights, found = shares(profile), dict[str, float]()
    for r in profile.ready:
        name = r.parameter.name
        if r.parameter.sparse:
            continue
        error = error_in(profile, way(option, r.is_other), name)
        if error is None:
            raise PlanError(
                f"an error budget needs the error of every allowed strategy; that of '{option}' "
                "was not measured. Profile again, or leave it out."
            )
        found[name] = weights[name] * error**2
    return found


def _is_exact(strategy: str) -> bool:
    made = Strategy.parse(strategy)
    return made.compressor.claims(1 << 20).exact and not made.collective.own_feedback

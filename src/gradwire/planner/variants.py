"""Derives the costs of other densities, bits and ranks than those that were measured.

    measured: topk(0.01)+ef | allgather ──► topk(0.001)+ef | allgather, topk(0.1)+ef | allgather, …

Members say which values their parameters may take (`Member.varies`). A variant's cost is the
measured cost, times the ratio of the two prices by `price`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import TypeVar

from gradwire.member import Member
from gradwire.planner.pricing import can_price
from gradwire.planner.profile import Profile, StrategyCost
from gradwire.planner.whatif import Again
from gradwire.strategy import Strategy

_M = TypeVar("_M", bound=Member)


def variants(text: str) -> list[str]:
    """Returns a strategy's variants, without itself."""
    own = Strategy.parse(text)
    pairs = product(_of_member(own.compressor), _of_member(own.collective))
    made = [Strategy(first, last, own.feedback) for first, last in pairs]
    return [str(strategy) for strategy in dict.fromkeys(made) if strategy != own]


def worked_out(profile: Profile) -> dict[str, StrategyCost]:
    """Returns, by text, the costs of variants of a profile's strategies on its own machines: of
    those that were not measured, and can be priced. Raises PlanError as `Again` does."""
    again, found = Again(profile), dict[str, StrategyCost]()
    for like in profile.strategies:
        for text in variants(like) if can_price(like) else ():
            if text not in found and profile.measured(text) is None and can_price(text):
                found[text] = again.instead(like, text)
    return found


def _of_member(member: _M) -> Iterator[_M]:
    yield member
    for values in product(*member.varies.values()):
        yield replace(member, **dict(zip(member.varies, values)))  # type: ignore[type-var]

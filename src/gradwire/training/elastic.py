"""Regroups ranks' states when the number of ranks has changed.

    4 ranks ──► 2:  rank 0 gets (v0 + v2)/2,  rank 1 gets (v1 + v3)/2
    2 ranks ──► 4:  ranks 0 and 2 get v0,     ranks 1 and 3 get v1
    any n ──► m:    rank k's goes to all r with r ≡ k (mod the smaller), weighted

The mean of residuals over the ranks is kept: Σ v/n before is Σ v/m after, so exactly the unsent
part of the gradients still arrives. Tensors that are equal on all ranks stay as they are; a rank
gets the mean of its sources' Adam moments of own gradients. If residuals of two ranks are in the
units of different learning rates, Σ rate·v/n is kept.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from gradwire.errors import PlanError
from gradwire.layout.pieces import Pieces
from gradwire.local import (
    ESTIMATE,
    LATER_RESIDUALS,
    MEAN,
    MOMENTS,
    NOISE,
    OWNERS_RESIDUAL,
    RIGHT_FACTOR,
    STEPS,
    THRESHOLD,
    is_waiting,
)
from gradwire.strategy import Strategy


def sources(rank: int, world: int, before: int) -> list[int]:
    """Returns the ranks, of `before`, whose states go to this rank of `world`."""
    return list(range(rank, before, world)) if before >= world else [rank % before]


def weight(k: int, before: int, world: int) -> float:
    """Returns the factor of rank k's state on all ranks that it goes to."""
    copies = 1 if before >= world else len(range(k, world, before))
    return world / (before * copies)


def regroup(
    entries: Mapping[int, Mapping[str, Any]], plan: Mapping[str, Sequence[str]],
    sizes: Mapping[str, int], before: int, world: int, share: float | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Returns one rank's entry, made of those of its `sources`.

    plan: strategy texts and the names of their parameters. sizes: of parameters, in elements.
    share: the factor of residuals, where not all ranks' entries are there any more. Momentum is
        not lowered then, as the mean over fewer ranks estimates the same; estimates, of which all
        ranks know the mean of all, begin anew. By default each rank's `weight`.
    Raises PlanError if a state belongs to a grouping of ranks that does not exist any more.
    """
    shared = shared_of(plan)
    state: dict[str, dict[str, Tensor]] = {}
    leftovers: dict[str, Tensor] = {}
    rates: dict[str, float] = {}
    for k, entry in entries.items():
        part, own_rates = weight(k, before, world) if share is None else share, rates_of(entry)
        rates = own_rates | rates
        units = {name: rate / rates[name] for name, rate in own_rates.items()}
        for name, x in entry.get("leftovers", {}).items():
            _add(leftovers, name, x, part * units.get(name, 1.0))
        for name, values in entry.get("state", {}).items():
            own, unit = state.setdefault(name, {}), units.get(name, 1.0)
            for key, value in values.items():
                if share is not None and key in (ESTIMATE, MEAN):
                    continue
                if key in LATER_RESIDUALS or (key == OWNERS_RESIDUAL and entry["part"][1] > 1):
                    raise PlanError(
                        f"a state with '{key}' can be loaded only by as many ranks as saved it, "
                        f"{before}; '{name}' has it, and there are {world} ranks now. Resume with "
                        f"{before}, or call handle.flush() before saving."
                    )
                kept = part if share is None else max(share, 1.0)
                factor = part * unit if is_waiting(key) else kept
                if key == OWNERS_RESIDUAL:
                    whole = _at_its_place(value, name, sizes[name], k, before)
                    if "residual" in values:
                        _add(own, "residual", whole.view_as(values["residual"]), factor)
                    else:
                        _add(leftovers, name, whole, factor)
                elif key in shared[name] or key == STEPS:
                    own.setdefault(key, value)
                elif key in MOMENTS:
                    _add(own, key, value, 1.0 / len(entries))
                elif key == NOISE and not value.any():  # it marks moments as the average's
                    own[key] = value
                elif key not in (THRESHOLD, NOISE):  # which are measured anew
                    _add(own, key, value, factor)
    first = next(iter(entries.values()))
    return {**first, "state": state, "leftovers": leftovers, "rates": by_rate(rates)}


def shared_of(plan: Mapping[str, Sequence[str]]) -> dict[str, tuple[str, ...]]:
    """Returns, by parameter name, the keys of tensors that are equal on all ranks."""
    shared = dict[str, tuple[str, ...]]()
    for text, names in plan.items():
        feedback = Strategy.parse(text).feedback
        own = feedback.shared if feedback else ()
        counted = (STEPS,) if set(own) & set(MOMENTS) else ()
        shared |= dict.fromkeys(names, (RIGHT_FACTOR, *own, *counted))
    return shared


def by_rate(units: Mapping[str, float]) -> dict[str, list[str]]:
    """Returns names by the learning rate that is the unit of their residuals, as text that reads
    back exactly."""
    found: dict[str, list[str]] = {}
    for name, rate in units.items():
        found.setdefault(repr(rate), []).append(name)
    return found


def rates_of(entry: Mapping[str, Any]) -> dict[str, float]:
    """Returns each name's learning rate from a rank's entry, the inverse of `by_rate`."""
    by_rate = entry.get("rates", {})
    return {name: float(rate) for rate, names in by_rate.items() for name in names}


def _add(total: dict[str, Tensor], key: str, x: Tensor, factor: float) -> None:
    x = x if factor == 1.0 else x * factor
    total[key] = total[key] + x if key in total else x


def _at_its_place(piece: Tensor, name: str, n: int, rank: int, world: int) -> Tensor:
    """Returns a piece that an owner keeps as a whole parameter, zero elsewhere. It is a residual
    of the mean: as a part of one rank's gradient it is multiplied by `world`."""
    whole = torch.zeros(n, device=piece.device, dtype=torch.float32)
    begin, end = Pieces.of(name, n, world).of_owner(rank)
    whole[begin:end] = piece * world
    return whole

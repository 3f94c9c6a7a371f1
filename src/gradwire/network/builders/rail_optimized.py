"""Machines with several network cards; the cards of one number, a rail, share leaves."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from gradwire.network.builders.leaf_spine import leaf_spine
from gradwire.network.fabric import Fabric, counts


def rail_optimized(
    groups: int, machines: int, rails: int, spines: int, *, host_gbps: float = 100.0,
    fabric_gbps: float | None = None, oversubscription: float | None = None,
) -> Fabric:  # fmt: skip
    """Builds groups of `machines` machines each, whose cards 0 are below one leaf, cards 1 below
    the next, up to `rails`; every leaf has a link to each of `spines` spines.

    A host is a card: card r of machine m, counted over all groups, is host m * rails + r, and its
    leaf is group * rails + r. Rates are as in `leaf_spine`. Raises NetworkError for values out of
    range.
    """
    counts(groups=groups, machines=machines, rails=rails)
    made = leaf_spine(
        groups * rails, machines, spines, host_gbps=host_gbps, fabric_gbps=fabric_gbps,
        oversubscription=oversubscription,
    )  # fmt: skip
    host = np.arange(made.hosts)
    group = host // (machines * rails)
    return replace(made, leaf_of=group * rails + host % rails)

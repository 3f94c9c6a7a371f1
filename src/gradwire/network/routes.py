"""Which way every byte goes, and what that puts on every link."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gradwire.network.fabric import Fabric, Link
from gradwire.network.flows import Flows
from gradwire.network.loads import Loads, loads

Numbers = NDArray[np.int64]
Amount = int | Fraction
BELOW, EVERY = -1, -2
"""Instead of a path: it stays below the leaf, or it is spread over all usable paths."""


class Piece(NamedTuple):
    """A part of a flow. path: its number (see `fabric`); BELOW: it needs no link between
    switches; EVERY: its packets are spread over all paths, as fast as each is."""

    flow: int
    path: int
    bytes: Amount


@dataclass(frozen=True, eq=False)
class Routes:
    """Flows in pieces, and the path of each.

    flow, path, amount: columns, a row for each piece; amounts are in 1/unit bytes, so that loads
    are exact. A flow's pieces are its bytes.
    """

    fabric: Fabric
    flows: Flows
    flow: Numbers
    path: Numbers
    amount: Numbers
    unit: int = 1

    # -- counts ----------------------------------------------------------------------------

    @property
    def assignments(self) -> list[Piece]:
        """Every piece."""
        rows = zip(self.flow.tolist(), self.path.tolist(), self.amount.tolist())
        return [Piece(flow, path, amount(n, self.unit)) for flow, path, n in rows]

    @property
    def pieces(self) -> int:
        """How many travel between leaves. A flow that is spread is as many as it has paths."""
        return int(self._paths_of_pieces.sum())

    @property
    def splits(self) -> int:
        """Flows of more than one piece."""
        per_flow = np.bincount(self.flow, self._paths_of_pieces, len(self.flows))
        return int((per_flow > 1).sum())

    # -- loads -----------------------------------------------------------------------------

    def link_bytes(self) -> dict[Link, Amount]:
        """Of every directed link between switches, in the order of `fabric.links`: exact."""
        loaded = (amount(int(n), self.loads.unit) for n in self.loads.amount)
        return dict(zip(self.fabric.links, loaded))

    @property
    def max_load(self) -> Amount:
        """Bytes on the fullest link between switches."""
        return amount(int(self.loads.amount.max(initial=0)), self.loads.unit)

    @property
    def fabric_seconds(self) -> float:
        """Until the last link between switches is done, if all are busy from the start."""
        busy = self.loads.amount > 0
        times = self.loads.amount[busy] / self.fabric.rates[busy]
        return float(times.max(initial=0.0)) * 8 / self.loads.unit

    @cached_property
    def loads(self) -> Loads:
        """Of every link, as columns."""
        between = self.path != BELOW
        source, target = self._leaves
        return loads(
            self.fabric, source[between], target[between], self.path[between],
            self.amount[between], self.unit, self.path[between] == EVERY,
        )  # fmt: skip

    # -- inside ----------------------------------------------------------------------------

    @property
    def _leaves(self) -> tuple[Numbers, Numbers]:
        """Of each piece."""
        leaf_of = self.fabric.leaf_of
        return leaf_of[self.flows.src[self.flow]], leaf_of[self.flows.dst[self.flow]]

    @cached_property
    def _paths_of_pieces(self) -> Numbers:
        """0, 1, or all that can be used."""
        found: Numbers = (self.path != BELOW).astype(np.int64)
        spread = np.flatnonzero(self.path == EVERY)
        source, target = (leaf[spread] for leaf in self._leaves)
        found[spread] = self.fabric.usable_paths(source, target)
        return found


def amount(numerator: int, unit: int) -> Amount:
    """Whole if it is."""
    whole, rest = divmod(numerator, unit)
    return Fraction(numerator, unit) if rest else whole

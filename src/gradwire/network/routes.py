"""The path of every byte, and the load that results on every link."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gradwire.errors import NetworkError
from gradwire.network.amounts import as_bytes, shrunk
from gradwire.network.checked import Ints, Reals, same_length, whole
from gradwire.network.fabric import BELOW, EVERY, Fabric, Link, count
from gradwire.network.flows import Flows
from gradwire.network.loads import Loads, loads, ports

Amount = int | Fraction


class Piece(NamedTuple):
    """A part of a flow. path: its number (see `fabric`); BELOW: it needs no link between
    switches; EVERY: its packets are spread over all paths, in proportion to their rates."""

    flow: int
    path: int
    bytes: Amount


@dataclass(frozen=True, eq=False)
class Routes:
    """Flows in pieces, and the path of each.

    flow, path, amount: columns, a row for each piece; amounts are in 1/unit bytes, so that loads
    are exact. A flow's pieces add up to its bytes.
    """

    fabric: Fabric
    flows: Flows
    flow: Ints
    path: Ints
    amount: Ints
    unit: int = 1

    def checked(self) -> Routes:
        """Returns the same routes, as the extension reads them. Raises NetworkError for columns
        that do not fit together, unknown hosts, and `off_paths`."""
        flow = whole("flows of pieces", self.flow, len(self.flows))
        path = whole("paths of pieces", self.path, least=EVERY)
        amount = np.asarray(self.amount)
        whole("amounts of pieces", shrunk(amount, count("unit", self.unit))[0])
        same_length(flow=flow, path=path, amount=amount)
        self.flows.refuse_beyond(self.fabric.hosts)
        own = replace(self, flow=flow, path=path, amount=amount)
        wrong = own.off_paths
        if wrong.any():
            piece = int(wrong.argmax())
            raise NetworkError(
                "pieces must take paths of this topology between their leaves, and below one leaf "
                f"none, {BELOW}; piece {piece} takes {path[piece]}. Route the flows over this one."
            )
        return own

    # -- counts ----------------------------------------------------------------------------

    @property
    def off_paths(self) -> NDArray[np.bool_]:
        """Which pieces take a path that does not exist between their leaves, or one where they
        need none, or none where they need one. Paths are EVERY or more."""
        source, target = self._leaves
        is_below = self.path == BELOW
        missing = self.path >= self.fabric.paths(source, target)
        found: NDArray[np.bool_] = missing | (is_below != (source == target))
        return found

    @property
    def assignments(self) -> list[Piece]:
        """Every piece."""
        rows = zip(self.flow.tolist(), self.path.tolist(), self.amount.tolist())
        return [Piece(flow, path, amount(n, self.unit)) for flow, path, n in rows]

    @property
    def pieces(self) -> int:
        """The number of pieces between leaves. A flow that is spread counts once for each path."""
        return int(self._paths_of_pieces.sum())

    @property
    def splits(self) -> int:
        """The number of flows of more than one piece."""
        per_flow = np.bincount(self.flow, self._paths_of_pieces, len(self.flows))
        return int((per_flow > 1).sum())

    # -- loads -----------------------------------------------------------------------------

    def link_bytes(self) -> dict[Link, Amount]:
        """Returns the exact bytes on every directed link between switches, in the order of
        `fabric.links`."""
        loaded = (amount(int(n), self.loads.unit) for n in self.loads.amount)
        return dict(zip(self.fabric.links, loaded))

    @property
    def max_load(self) -> Amount:
        """The bytes on the fullest link between switches."""
        return amount(int(self.loads.amount.max(initial=0)), self.loads.unit)

    @property
    def fabric_seconds(self) -> float:
        """The seconds that links between switches need: in each step until the last one is done,
        if all are busy from the start, added up over the steps."""
        return sum(between for between, _ in self._step_seconds)

    @property
    def seconds(self) -> float:
        """The seconds that all links need: as `fabric_seconds`, but until the last link of hosts
        and switches is done in each step."""
        return sum(map(max, self._step_seconds))

    @property
    def host_seconds(self) -> float:
        """The seconds that links of hosts need: as `fabric_seconds`, but until the last one of
        these is done in each step."""
        return sum(of_hosts for _, of_hosts in self._step_seconds)

    @cached_property
    def _step_seconds(self) -> list[tuple[float, float]]:
        """For each step the seconds of links between switches, and of those of hosts. Steps that
        repeat another, as those of a ring, are looked at once."""
        known: dict[object, tuple[float, float]] = {}
        found = []
        for own in self._steps:
            ends = (column[own.flow].tobytes() for column in (self.flows.src, self.flows.dst))
            what = (*ends, own.path.tobytes(), tuple(own.amount.tolist()))
            if what not in known:
                known[what] = own._switch_seconds, own._longest_port
            found.append(known[what])
        return found

    @cached_property
    def loads(self) -> Loads:
        """The loads of every link, as columns."""
        between = self.path != BELOW
        source, target = self._leaves
        return loads(
            self.fabric, source[between], target[between], self.path[between],
            self.amount[between], self.unit, self.path[between] == EVERY,
        )  # fmt: skip

    # -- inside ----------------------------------------------------------------------------

    @property
    def _steps(self) -> Iterator[Routes]:
        """The routes of each step."""
        steps = self.flows.step[self.flow]
        numbers = np.unique(steps)
        if len(numbers) < 2:
            yield self
            return
        order = np.argsort(steps, kind="stable")
        for own in np.split(order, np.searchsorted(steps[order], numbers[1:])):
            columns = self.flow[own], self.path[own], self.amount[own]
            yield Routes(self.fabric, self.flows, *columns, self.unit)

    @property
    def _switch_seconds(self) -> float:
        """The seconds until the last link between switches is done, of one step."""
        return _longest(as_bytes(*self.loads), self.fabric.rates)

    @property
    def _longest_port(self) -> float:
        """The seconds until the last link of hosts is done, of one step."""
        bytes, fabric = as_bytes(self.amount, self.unit), self.fabric
        sent, received = ports(fabric, self.flows, self.flow, self.path, bytes)
        return max(_longest(sent, fabric.host_up), _longest(received, fabric.host_down))

    @property
    def _leaves(self) -> tuple[Ints, Ints]:
        """The two leaves of each piece."""
        leaf_of = self.fabric.leaf_of
        return leaf_of[self.flows.src[self.flow]], leaf_of[self.flows.dst[self.flow]]

    @cached_property
    def _paths_of_pieces(self) -> Ints:
        """The number of paths of each piece: 0, 1, or all usable ones."""
        found: Ints = (self.path != BELOW).astype(np.int64)
        spread = np.flatnonzero(self.path == EVERY)
        source, target = (leaf[spread] for leaf in self._leaves)
        found[spread] = self.fabric.usable_paths(source, target)
        return found


def _longest(bytes: Reals, rates: Ints) -> float:
    """Returns the seconds until the last bytes are sent, at rates in bits per second."""
    busy = bytes > 0
    return float((bytes[busy] / rates[busy]).max(initial=0.0)) * 8


def amount(numerator: int, unit: int) -> Amount:
    """Returns numerator / unit exactly, as an int if it is whole."""
    whole, rest = divmod(numerator, unit)
    return Fraction(numerator, unit) if rest else whole

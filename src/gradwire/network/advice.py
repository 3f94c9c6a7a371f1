"""Advice about paths: compares schemes, and decides whether any is worth a change."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gradwire.errors import NetworkError
from gradwire.families import ROUTING
from gradwire.network.bounds import Bounds, bounds
from gradwire.network.fabric import Fabric
from gradwire.network.flows import Flows
from gradwire.network.routing import Scheme
from gradwire.network.routing.route import route, scheme_of
from gradwire.network.samples import samples
from gradwire.progress import Progress, each, silent

HASHES = "ecmp"
"""The scheme that switches use by default."""
_ENOUGH = 1.05  # times the bound: what is left is not worth a change


@dataclass(frozen=True)
class Row:
    """One scheme's results. seconds: until the last link of hosts and switches is done, the median
    over seeds if the scheme is random, and p95 their 95th percentile; cut: the number of flows
    that are cut; pieces: those between leaves; most_pieces: the most that one host sends."""

    scheme: str
    seconds: float
    p95: float
    cut: int
    pieces: int
    most_pieces: int


@dataclass(frozen=True)
class Advice:
    """Advice for one demand on one topology. recommended: a scheme, or None if paths are best left
    to hashes. refused: schemes that cannot route these flows, and why. test: how to see on the
    cluster whether the verdict is right."""

    bounds: Bounds
    rows: tuple[Row, ...]
    recommended: str | None
    verdict: str
    test: str
    refused: tuple[tuple[str, str], ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Returns the advice as plain values."""
        return {
            "verdict": self.verdict, "test": self.test, "recommended": self.recommended,
            "bounds": {**vars(self.bounds), "binding": self.bounds.binding},
            "rows": [vars(row) for row in self.rows],
            "refused": [{"scheme": name, "why": why} for name, why in self.refused],
        }  # fmt: skip


def compared() -> tuple[str, ...]:
    """Returns the schemes that are compared by default, hashes first."""
    members = [member for member in ROUTING.values() if member.is_compared]
    texts = [text for member in members for text in _as_written(member)]
    return tuple(sorted(texts, key=lambda text: text != HASHES))


def _as_written(member: type[Scheme]) -> tuple[str, ...]:
    return member.examples or (member.name,)


def advise(
    flows: Flows, topology: Fabric, schemes: Sequence[str] | None = None, seed: int = 0,
    progress: Progress = silent,
) -> Advice:  # fmt: skip
    """Compares all schemes that can route these flows, and gives a verdict. schemes: None for
    those of `compared`.

    The least change comes first: leave paths to hashes if they are within 5 % of the bound in 19
    of 20 cases; else pin whole flows, if that is; else cut the fewest. Raises NetworkError as
    `route` does.
    """
    tried = _Tried(flows, topology, seed)
    texts = [HASHES, *(text for text in schemes or compared() if text != HASHES)]
    hashed, *others = [
        tried.attempt(text) if text != HASHES else tried.row(text)
        for text in each(progress, "schemes", texts)
    ]
    assert hashed is not None
    rows = [hashed, *filter(None, others)]
    progress("what to do")
    chosen = _chosen(tried, hashed)
    if chosen is not None and chosen not in rows:
        rows.append(chosen)
    name = chosen.scheme if chosen else None
    return Advice(
        tried.least, tuple(rows), name, _verdict(tried.least, hashed, chosen),
        _test(hashed, chosen), tuple(tried.refused.items()),
    )  # fmt: skip


class _Tried:
    """Routes one demand by schemes, by each once."""

    def __init__(self, flows: Flows, topology: Fabric, seed: int) -> None:
        self.flows, self.topology, self.seed = flows, topology, seed
        self.least = bounds(flows, topology)
        self.refused: dict[str, str] = {}
        self._rows: dict[str, Row] = {}

    def row(self, scheme: str) -> Row:
        if scheme in self._rows:
            return self._rows[scheme]
        flows = self.flows
        routes = route(flows, self.topology, scheme, self.seed)
        seconds, seeds = np.array([routes.seconds]), scheme_of(scheme).seeds
        if seeds > 1:
            seconds = samples(flows, self.topology, scheme, seeds, self.seed, hosts=True)
        between = routes.path >= 0
        per_host = np.bincount(flows.src[routes.flow[between]], minlength=1)
        self._rows[scheme] = Row(
            scheme, float(np.median(seconds)), float(np.quantile(seconds, 0.95)), routes.splits,
            routes.pieces, int(per_host.max()),
        )  # fmt: skip
        return self._rows[scheme]

    def attempt(self, scheme: str) -> Row | None:
        """Returns the scheme's row, or None if it cannot route these flows."""
        try:
            return self.row(scheme)
        except NetworkError as error:
            scheme_of(scheme)  # a text that is no scheme is an error
            self.refused[scheme] = str(error)
            return None


def _chosen(tried: _Tried, hashed: Row) -> Row | None:
    """Returns the first scheme that is good enough, or the fastest; None if hashes are as good."""
    enough = _ENOUGH * tried.least.seconds
    if hashed.p95 <= enough:
        return None
    planned = list[Row]()
    for name in (_as_written(own)[0] for own in ROUTING.values() if own.is_planned):
        row = tried.attempt(name)
        if row is not None:
            planned.append(row)
            if row.seconds <= enough:
                break
    best = min(planned, key=lambda row: row.seconds)
    return best if best.seconds * _ENOUGH < hashed.seconds else None


def _verdict(least: Bounds, hashed: Row, chosen: Row | None) -> str:
    if not hashed.pieces:
        return "Nothing leaves its leaf: paths change nothing."
    binds = {"host": "hosts' own links", "fabric": "links between switches"}[least.binding]
    if chosen is None:
        return (
            f"Leave paths to hashes: they take {hashed.seconds / least.seconds:.2f} times what "
            f"{binds} need at least ({hashed.p95 / least.seconds:.2f} in the worst 20th)."
        )
    cut = f"{chosen.cut} flows are cut" if chosen.cut else "no flow is cut"
    off = chosen.seconds / least.seconds
    left = "which is what" if off < 1.0005 else f"{off:.2f} times what"
    gain, worst = hashed.seconds / chosen.seconds, hashed.p95 / chosen.seconds
    return (
        f"Pin paths by '{chosen.scheme}': {gain:.2f} times as fast as hashes in the median "
        f"({worst:.2f} in the worst 20th), {left} {binds} need at least; {cut}, a host sends "
        f"{chosen.most_pieces} pieces at most."
    )


def _test(hashed: Row, chosen: Row | None) -> str:
    """Describes test jobs, and the time that they should take."""
    if not hashed.pieces:
        return "nothing: there is no path to choose."
    often = (
        "run this collective ten times over hashed paths, each time on new connections, as other "
        f"ports take other paths: the median is near {hashed.seconds:.3g} s, the worst near "
        f"{hashed.p95:.3g}"
    )
    if chosen is None:
        return f"{often}. If times differ by more, links are not what the topology says."
    return (
        f"{often}; then pinned (gradwire network export): {chosen.seconds:.3g} s every time. If "
        "hashed runs are as fast, something else binds: other links, the hosts, or switches that "
        "spread packets already."
    )

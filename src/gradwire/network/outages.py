"""Links that die while traffic runs, and where it goes once routing has converged.

dies                 converged
 │  what is sent into  │  the scheme's paths, on what is left
 ├─────────────────────┼──────────────────────────────────────► seconds
 │  the link is lost   │
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from gradwire.errors import NetworkError
from gradwire.network.amounts import as_bytes
from gradwire.network.checked import Ints
from gradwire.network.fabric import EVERY, Fabric, Link, count, fabric_of
from gradwire.network.flows import Flows
from gradwire.network.jobs import Jobs, routed
from gradwire.network.routes import Routes
from gradwire.network.routing.scheme import Scheme

CONVERGENCE_SECONDS = 0.1
"""The time that switches take by default, as in Addanki et al. 2025."""
_LONGEST_SECONDS = 1000.0  # a packet that is lost is sent again every 100 µs until then


@dataclass(frozen=True, eq=False)
class Outages:
    """Links that die, and routes around them. fails: the second at which each link dies, for good.
    converged: seconds, in order, each with the routes of all jobs whose paths pieces take from
    then on. Raises NetworkError for times that are negative, infinite or not in order."""

    fails: Mapping[Link, float] = field(default_factory=dict)
    converged: Sequence[tuple[float, Jobs]] = ()

    def __post_init__(self) -> None:
        for link, when in self.fails.items():
            _refuse_time(f"a link must fail at second 0 or later; got {link}", when)
        last = 0.0
        for when, _ in self.converged:
            _refuse_time(f"routing must converge at second {last:g} or later; got one", when, last)
            last = when


def _refuse_time(rule: str, when: float, least: float = 0.0) -> None:
    if not least <= when < float("inf"):
        raise NetworkError(f"{rule} at {when}. Correct it.")


NONE = Outages()


def outages(
    jobs: Sequence[Flows], topology: Fabric, scheme: str | Scheme,
    fails: Mapping[Link, float] | Mapping[str, float],
    convergence_seconds: float = CONVERGENCE_SECONDS, seed: int = 0,
) -> Outages:  # fmt: skip
    """Routes each job anew by the scheme after each failure, from `convergence_seconds` later on;
    failures at the same second are one.

    jobs: the flows of each job, as for `routed`. fails: by link, the second at which it dies, one
    direction of a cable; or by name: a cable's are both directions, a switch's all of its links.
    Raises NetworkError as `route` does, also if hosts have no path any more, and for invalid
    times.
    """
    count("seed", seed, 0)
    if not 0 <= convergence_seconds <= _LONGEST_SECONDS:
        raise NetworkError(
            f"routing must converge 0 to {_LONGEST_SECONDS:,.0f} seconds after a failure; got "
            f"{convergence_seconds}. Correct it."
        )
    died = dict[Link, float]()
    for one, when in fails.items():
        _refuse_time("a link must fail at second 0 or later; got one", when)
        for link in fabric_of(topology).named(one):
            died[link] = min(when, died.get(link, when))
    found = list[tuple[float, Jobs]]()
    for when in sorted(set(died.values())):
        dead = [link for link, second in died.items() if second <= when]
        after = routed(jobs, topology.without(*dead), scheme, seed)
        found.append((when + convergence_seconds, after))
    return Outages(died, tuple(found)) if fails else NONE


def paths_after(before: Routes, after: Routes) -> Ints:
    """Returns the new path of each piece of `before`: that of its middle byte in `after`. Raises
    NetworkError unless both are of the same flows, on topologies that differ only in what has
    failed, and pin the same ones."""
    if not after.fabric.is_like(before.fabric, but=("rates",)):
        raise NetworkError(
            "routes before and after a failure must be on one topology, whose links may have "
            f"other rates; got one of {before.fabric.hosts} hosts and one of {after.fabric.hosts},"
            " or with other switches. Route the flows on what Fabric.without leaves."
        )
    for name in ("src", "dst", "bytes"):
        if not np.array_equal(getattr(before.flows, name), getattr(after.flows, name)):
            raise NetworkError(
                "routes before and after a failure must be of the same flows; these are of "
                f"{before.flows} and {after.flows}. Route the same flows on what is left."
            )
    begins = np.cumsum(before.flows.bytes) - before.flows.bytes
    old, new = np.argsort(before.flow, kind="stable"), np.argsort(after.flow, kind="stable")
    size, later = (
        as_bytes(own.amount[order], own.unit) for own, order in ((before, old), (after, new))
    )
    at = np.cumsum(later) - later  # where each piece begins, flow after flow
    own = before.flow[old]
    first = np.searchsorted(own, own)  # the first of the flow's pieces
    ends = np.cumsum(size)
    middle = begins[own] + (ends - (ends - size)[first]) - size / 2
    number = np.searchsorted(at, middle, side="right") - 1
    flow = after.flow[new]
    low, high = np.searchsorted(flow, own), np.searchsorted(flow, own, side="right") - 1
    found = np.empty(len(old), np.int64)
    found[old] = after.path[new][np.clip(number, low, high)]
    if (found[before.path >= 0] == EVERY).any():
        raise NetworkError(
            "messages on pinned paths must have pinned paths after a failure, too; got some that "
            "are sprayed then. Route by the same scheme before and after."
        )
    return found

"""Plans for other clusters than the profiled one: prices a profile for other ranks and links.

    profile ─┬─ priced on its own cluster ──► α, inefficiencies     (links.py)
             └─ priced on the other one ────► seconds against elements ──► Profile ──► choose

- Moves: start-ups and bytes by `price`, seconds by `Links`. What the profile measured beyond that
  model (a strategy's own start-ups, its own factor for large messages, floors and knees) stays.
- Local work: the measured seconds, times how many more numbers the ranks read and write.
- Backward, forward, the optimizer, and how lanes and backward slow each other stay as they are,
  unless the cluster says how many processors a rank has; but slower moves take fewer processors.

Priced again for its own cluster, as fitted, a profile is unchanged. So it is for a `measured_on`
whose latency is no more than the start-ups took.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property

from gradwire.errors import PlanError
from gradwire.planner.curves import rising
from gradwire.planner.fit import Fit
from gradwire.planner.links import (
    DOUBT,
    Links,
    believed,
    fitted,
    priced,
    sizes_of,
)
from gradwire.planner.priced import Priced, Work
from gradwire.planner.pricing import can_price
from gradwire.planner.profile import Contention, Profile, StrategyCost
from gradwire.planner.sized import measured_only
from gradwire.strategy import Strategy
from gradwire.topology import NODE_BYTES_PER_SECOND, NODE_LATENCY_SECONDS, Cluster

MOST_WORKERS = 16_384
_LEAST_OWN = 0.5  # times what the links say: bytes take time, even if none was measured


def own_cluster(profile: Profile) -> Cluster:
    """Returns the cluster of a profile, as fitted to its wire times."""
    return fitted(profile)[1]


def on(profile: Profile, cluster: Cluster, measured_on: Cluster | None = None) -> Profile:
    """Returns the profile of the same job on another cluster.

    measured_on: the profile's cluster, if it is known better than by fitting. Strategies that
    cannot be priced are left out, and those of machines that do not divide the cluster. Raises
    PlanError if none can be priced.
    """
    return Again(profile, measured_on).on(cluster)


def wanted(
    profile: Profile, like: Cluster | None = None, *, workers: int | None = None,
    per_host: int | None = None, bits_per_second: float | None = None,
    latency_seconds: float | None = None,
) -> Cluster:  # fmt: skip
    """Returns a cluster that differs from another in the given values.

    like: the other cluster; None: the profile's own. Ranks that share its only host are then put
    on hosts of their own, unless per_host is given. latency_seconds: across hosts, in
    addition to what the profile's start-ups took.

    Raises:
        PlanError: workers that do not fill hosts; links of which nothing is known.
    """
    own = like or own_cluster(profile)
    alone = own.hosts == 1 and like is None
    local = per_host or (1 if alone else own.ranks_per_host)
    known_node = like is not None or (own.ranks_per_host > 1 and (alone or local > 1))
    made = replace(
        own, ranks_per_host=local,
        cross_bits_per_second=bits_per_second or own.cross_bits_per_second,
        cross_latency_seconds=own.cross_latency_seconds if latency_seconds is None
        else latency_seconds,
        node_bytes_per_second=own.node_bytes_per_second if known_node else NODE_BYTES_PER_SECOND,
        node_latency_seconds=own.node_latency_seconds if known_node else NODE_LATENCY_SECONDS,
    ).with_workers(workers or own.world)  # fmt: skip
    if alone and bits_per_second is None and made.hosts > 1:
        raise PlanError(
            f"the profile is of one host, so the links between {made.hosts} hosts are unknown. "
            "Pass their bandwidth, such as --bandwidth 1gbit."
        )
    return made


class Again:
    """Prices a profile for several clusters; computes only once what they share."""

    def __init__(self, profile: Profile, measured_on: Cluster | None = None) -> None:
        self.profile = profile
        self.links, self.cluster = fitted(profile, measured_on)
        self._sizes = 0, *sizes_of(profile)
        self._known: dict[tuple[str, int, int], list[Priced]] = {}

    @cached_property
    def left_out(self) -> list[str]:
        """Strategies that cannot be priced, only measured."""
        return [text for text in self.profile.strategies if not can_price(text)]

    def usable(
        self, strategies: Sequence[str] | None, cluster: Cluster | None = None
    ) -> list[str]:
        """Returns the given strategies; None: all of the profile that can be priced, on a cluster
        if one is given. Raises PlanError if a given one cannot be priced, or was not measured, and
        UsageError if its machines do not divide the cluster."""
        if strategies is None:
            return [text for text in self.profile.strategies if self._can(text, cluster)]
        for text in strategies:
            self.profile.cost(text)
            if text in self.left_out:
                measured_only(Strategy.parse(text))
            if cluster is not None and not self._can(text, cluster):
                self._priced(text, cluster)
        return list(strategies)

    def _can(self, text: str, cluster: Cluster | None) -> bool:
        """Whether a strategy can be priced, and the ranks to a machine that it names, if it does,
        divide the cluster."""
        per_node = Strategy.parse(text).collective.per_node
        divides = not per_node or cluster is None or cluster.world % per_node == 0
        return divides and text not in self.left_out

    def on(self, cluster: Cluster) -> Profile:
        """Returns the profile of the same job on this cluster; see `on`."""
        if cluster.world > MOST_WORKERS:
            raise PlanError(
                f"a plan can have at most {MOST_WORKERS} workers; got {cluster.world}. Choose "
                "fewer."
            )
        costs = {
            text: self._cost(cost, self._priced(text, self.cluster), text, cluster)
            for text, cost in self.profile.strategies.items()
            if self._can(text, cluster)
        }
        return replace(
            self.profile, hosts=cluster.host_names, strategies=costs, moves={}, tables=(),
            contention=self._contention(cluster),
        )  # fmt: skip

    def _contention(self, cluster: Cluster) -> Contention:
        """Returns the contention on this cluster. With two processors or more per rank, a thread
        that wakes need not wait for one."""
        shared, cores = self.profile.contention, cluster.processors_per_rank
        demand = shared.wire_demand * min(1.0, _rate(cluster) / _rate(self.cluster))
        if cores is not None and cores >= 2.0:
            return Contention(cores, demand, start_sharing=shared.start_sharing)
        return replace(shared, cores=cores or shared.cores, wire_demand=demand)

    def instead(self, measured: str, text: str) -> StrategyCost:
        """Returns the cost of a strategy that can be priced on the profile's own cluster, derived
        from a similar one that was measured."""
        cost = self.profile.cost(measured)
        made = self._cost(cost, self._priced(measured, self.cluster), text, self.cluster)
        return replace(made, error=None, errors={}, like=measured)

    def _cost(
        self, cost: StrategyCost, before: Sequence[Priced], text: str, cluster: Cluster
    ) -> StrategyCost:
        sizes, after = self._sizes, self._priced(text, cluster)
        wire = _Wire(self.links, cost, sizes, before, self.cluster)
        seconds = [wire.seconds(i, own, cluster) for i, own in enumerate(after)]
        more = [_touched(b.decode, a.decode) for b, a in zip(before, after)]
        encodes = [_touched(b.encode, a.encode) for b, a in zip(before, after)]
        calls = after[-1].calls / max(1, before[-1].calls)
        return StrategyCost(
            encode=_scaled(cost.encode, sizes, encodes), wire=_fit(cost.wire, sizes, seconds),
            decode=_scaled(cost.decode, sizes, more),
            bytes=_fit(cost.bytes, sizes, [own.bytes_sent for own in after]),
            latency_seconds=min(wire.latency(after[0], cluster), seconds[0]),
            per_parameter_seconds=cost.per_parameter_seconds * calls, error=cost.error,
            errors=cost.errors, like=cost.like,
        )  # fmt: skip

    def _priced(self, text: str, cluster: Cluster) -> list[Priced]:
        key = text, cluster.world, cluster.ranks_per_host
        if key not in self._known:
            self._known[key] = priced(
                self.profile, text, self._sizes, cluster.world, cluster.ranks_per_host
            )
        return self._known[key]


class _Wire:
    """A strategy's wire time, and what of it is beyond the model and stays on other clusters."""

    def __init__(
        self, links: Links, cost: StrategyCost, sizes: Sequence[int], before: Sequence[Priced],
        cluster: Cluster,
    ) -> None:  # fmt: skip
        self._links = links
        start = min(cost.latency_seconds, cost.wire(sizes[0]))
        network, software = links.latency(before[0], cluster), links.software(before[0])
        self._own_starts = max(0.0, start - network) / software if software else 0.0
        bytes_ = [links.transfer(own, cluster) for own in before]
        measured = [cost.wire(n) - start for n in sizes]
        self._own_bytes = max(
            _LEAST_OWN, believed(measured[-1], bytes_[-1], DOUBT * start, usual=1.0)
        )
        self._left = [y - self._own_bytes * x for y, x in zip(measured, bytes_)]

    def latency(self, priced: Priced, cluster: Cluster) -> float:
        """Returns the seconds of its start-ups."""
        own = self._own_starts * self._links.software(priced)
        return own + self._links.latency(priced, cluster)

    def seconds(self, number: int, priced: Priced, cluster: Cluster) -> float:
        """Returns the seconds of all moves, at the size with this number."""
        start = self.latency(priced, cluster)
        moved = self._own_bytes * self._links.transfer(priced, cluster)
        return max(start, start + moved + self._left[number])


def _rate(cluster: Cluster) -> float:
    """Returns bytes per second of one rank if all ranks of its host use the link."""
    if cluster.hosts == 1:
        return cluster.node_bytes_per_second
    return cluster.cross_bits_per_second / 8 / cluster.ranks_per_host


def _touched(before: Sequence[Work], after: Sequence[Work]) -> float:
    own = sum(work.touched for work in before)
    return sum(work.touched for work in after) / own if own else 1.0


def _fit(like: Fit, sizes: Sequence[int], values: Sequence[float]) -> Fit:
    """Returns a fit through these points that falls nowhere."""
    return Fit(rising(sizes, values), like.error, like.spread)


def _scaled(like: Fit, sizes: Sequence[int], factors: Sequence[float]) -> Fit:
    """Scales a fit; returns the same object if all factors are 1."""
    if all(factor == 1.0 for factor in factors):
        return like
    return _fit(like, sizes, [like(size) * factor for size, factor in zip(sizes, factors)])

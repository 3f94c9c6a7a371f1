"""The time of moves on a cluster: an α–β model, with a fitted inefficiency for each kind.

    seconds of a move = start-ups · (α + the link's latency) + inefficiency · bytes / bandwidth

α is the software's time for a start-up, one for all moves. Each kind of move has an inefficiency:
1.0 for the best of a profile, 2.3 for Gloo's reduce-scatter. bytes: those on the busiest link,
which the ranks of a host share. Start-ups, by the algorithms that backends use:

    all_reduce 2(n-1), on NCCL 2·log2 n        all_gather, reduce_scatter, all_to_all n-1
    gather n-1      reduce, broadcast log2 n       exchange 1

Source: Thakur, Rabenseifner and Gropp 2005, "Optimization of Collective Communication Operations
in MPICH", for the forms; the inefficiencies are measured.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil, log2
from statistics import median

from gradwire.errors import PlanError
from gradwire.planner.priced import Priced, PricedMove
from gradwire.planner.pricing import can_price, price
from gradwire.planner.profile import Profile, StrategyCost, shape_of, whole_rows
from gradwire.strategy import Strategy
from gradwire.topology import Cluster

EFFICIENCY = 1 / 1.1
"""The share of a link's rate that the best move gets: measured with Gloo from 200 Mbit/s to
1 Gbit/s (ideal time of an all-reduce over the time that it takes)."""
USUAL = 1.1
"""The inefficiency of a move with too few measured bytes."""
DOUBT = 5.0
"""Times a strategy's start-ups: the seconds of moving bytes that weigh as much as `USUAL`."""
_RINGS = ("all_reduce", "all_gather", "reduce_scatter", "reduce", "broadcast")
_MOST = 1 << 30  # elements; a single parameter, as which models are priced, has a limit
_LARGE = 3  # the number of the largest sizes, where bytes count


def starts(name: str, ranks: int, backend: str) -> float:
    """Returns how often a move waits for another rank, one wait after the other."""
    if ranks < 2:
        return 0.0
    rounds = ceil(log2(ranks))
    if name == "all_reduce":
        return 2.0 * rounds if backend == "nccl" else 2.0 * (ranks - 1)
    if name in ("reduce", "broadcast"):
        return float(rounds)
    return 1.0 if name == "exchange" else float(ranks - 1)


def loaded(move: PricedMove, cluster: Cluster) -> float:
    """Returns bytes on the busiest link over those of the busiest rank.

    A ring passes a host's link once, however many ranks the host has; a rank that sends to all
    others, or receives from them, passes it for each one on another host. In a gather one rank
    does so, else all ranks of the host; all groups across hosts use it at once.
    """
    local, n = cluster.ranks_per_host, cluster.world
    if is_inside(move, cluster) or local == 1:
        return 1.0
    if move.group == "cross":
        return float(local)
    if move.name in _RINGS:
        return 1.0
    return (1 if move.name == "gather" else local) * (n - local) / (n - 1)


def is_inside(move: PricedMove, cluster: Cluster) -> bool:
    """Whether the move stays inside a host."""
    return move.group == "node" or cluster.hosts == 1


@dataclass(frozen=True)
class Links:
    """The fitted model. start_seconds: α; inefficiency: by a move's name; backend: the one whose
    numbers of start-ups count."""

    start_seconds: float = 0.0
    inefficiency: Mapping[str, float] = field(default_factory=dict)
    backend: str = "gloo"

    def software(self, priced: Priced) -> float:
        """Returns the seconds of start-ups in software, without the links' latency."""
        return self.start_seconds * _starts(priced, self.backend)

    def latency(self, priced: Priced, cluster: Cluster) -> float:
        """Returns the seconds of the links' latency."""
        node, cross = cluster.node_latency_seconds, cluster.cross_latency_seconds
        return sum(
            starts(move.name, move.ranks, self.backend)
            * (node if is_inside(move, cluster) else cross)
            for move in priced.moves
        )

    def transfer(self, priced: Priced, cluster: Cluster) -> float:
        """Returns the seconds of moving the bytes."""
        usual = median(self.inefficiency.values()) if self.inefficiency else 1.0
        return sum(
            self.inefficiency.get(move.name, usual) * _ideal(move, cluster)
            for move in priced.moves
        )


def _starts(priced: Priced, backend: str) -> float:
    return sum(starts(move.name, move.ranks, backend) for move in priced.moves)


def _ideal(move: PricedMove, cluster: Cluster) -> float:
    """Returns the seconds of the move's bytes, at the rate of the best move."""
    inside = is_inside(move, cluster)
    rate = cluster.node_bytes_per_second if inside else cluster.cross_bits_per_second / 8
    return loaded(move, cluster) * move.busiest / (EFFICIENCY * rate)


def priced(
    profile: Profile, text: str, sizes: Sequence[int], world: int, per_host: int
) -> list[Priced]:
    """Prices a strategy for each size of one parameter with gradients like the profile's. The
    parameter is a matrix if it fills rows, as when it was measured."""
    made, density, dtype = Strategy.parse(text), usual_density(profile), profile.dtype
    shapes = [shape_of(n, profile.width) for n in sizes]
    return [
        price(made, [shape], world, per_node=per_host, density=density, dtype=dtype)
        for shape in shapes
    ]


def per_host(profile: Profile) -> int:
    """Returns the profile's ranks per host. Raises PlanError unless hosts have equally many."""
    ranks = Counter(profile.hosts)
    if len(set(ranks.values())) > 1:
        (many, most), *_, (few, least) = ranks.most_common()
        raise PlanError(
            "planning for another cluster needs hosts with equally many ranks; of the profile's "
            f"hosts, '{many}' has {most} and '{few}' has {least}. Profile on equal hosts."
        )
    return max(ranks.values())


def sizes_of(profile: Profile) -> tuple[int, ...]:
    """Returns the sizes in elements at which strategies are priced: powers of 4 from 256 on, and
    the whole model, or `_MOST`: beyond it costs grow as they did before."""
    every = sum(r.parameter.elements for r in profile.ready if not r.parameter.sparse)
    most = whole_rows(min(every, _MOST), profile.width)
    below = [4**i for i in range(4, 16) if 4**i < most]
    return (*below, most)


def fitted(profile: Profile, measured_on: Cluster | None = None) -> tuple[Links, Cluster]:
    """Fits the links to a profile's wire times; returns them, and the profile's cluster.

    measured_on: the cluster, if it is known. If not, the cluster returned has the rate at which
    the best of all moves reaches `EFFICIENCY`, and its latency is part of α.
    """
    assumed = measured_on or _shape(profile)
    wires = [
        _Wire(profile, cost, text, assumed)
        for text, cost in profile.strategies.items()
        if can_price(text)
    ]
    if not wires:
        raise PlanError(
            "planning for another cluster needs a strategy that can be priced; the profile has "
            f"{', '.join(map(repr, profile.strategies)) or 'none'}. Profile again with 'none | "
            "allreduce'."
        )
    backend = profile.backend
    seconds = _by_name(wires)
    if not seconds and measured_on is None:
        alone = profile.world == 1
        ranks = "1 rank" if alone else f"{profile.world} ranks"
        other = "again, with two ranks or more" if alone else "a larger model"
        raise PlanError(
            "planning for another cluster needs moves that take longer for more bytes; those of "
            f"the profile's {ranks} do not, up to the model's {sizes_of(profile)[-1]:,} elements. "
            f"Profile {other}."
        )
    most = {name: max(wire.ideal(-1).get(name, 0.0) for wire in wires) for name in seconds}
    large = [name for name in seconds if 4 * most[name] >= max(most.values())]
    best = 1.0 if measured_on else min(seconds[name] for name in large)
    own = measured_on or _shape(profile, 1.0 / best)
    doubt = DOUBT * median(wire.latency for wire in wires)
    inefficiency = {
        name: believed(of_name * most[name], best * most[name], doubt, USUAL)
        for name, of_name in seconds.items()
    }
    return Links(_alpha(wires, backend, own), inefficiency, backend), own


def believed(measured: float, ideal: float, doubt: float, usual: float) -> float:
    """Returns measured / ideal (both seconds), drawn towards `usual` by the weight of the doubt.

    With few bytes, the time beyond a start-up is noise and software, which other links would not
    change.
    """
    return (measured + usual * doubt) / (ideal + doubt) if ideal + doubt > 0 else usual


def _alpha(wires: Sequence[_Wire], backend: str, cluster: Cluster) -> float:
    """Returns seconds of a start-up without the links' own latency: α."""
    counts = [_starts(wire.priced[-1], backend) for wire in wires]
    known = [wire.latency / count for wire, count in zip(wires, counts) if count]
    inside = cluster.hosts == 1
    network = cluster.node_latency_seconds if inside else cluster.cross_latency_seconds
    return max(0.0, median(known) - network) if known else 0.0


def _shape(profile: Profile, bytes_per_second: float = 1.0) -> Cluster:
    """Returns the profile's hosts, with links on which the best move reaches this rate."""
    local, rate = per_host(profile), bytes_per_second / EFFICIENCY
    return Cluster(
        hosts=profile.world // local, ranks_per_host=local, cross_bits_per_second=8 * rate,
        node_bytes_per_second=rate, node_latency_seconds=0.0,
    )  # fmt: skip


class _Wire:
    """A strategy's moves, and the time that they took."""

    def __init__(self, profile: Profile, cost: StrategyCost, text: str, cluster: Cluster) -> None:
        sizes = sizes_of(profile)[-_LARGE:]
        self.priced = priced(profile, text, sizes, profile.world, cluster.ranks_per_host)
        self.latency = min(cost.latency_seconds, cost.wire(sizes[0]))
        self.seconds = [max(cost.wire(n) - self.latency, 0.0) for n in sizes]
        self.cluster = cluster

    def ideal(self, size: int) -> dict[str, float]:
        """Returns the least possible seconds, by a move's name."""
        found: dict[str, float] = {}
        for move in self.priced[size].moves:
            found[move.name] = found.get(move.name, 0.0) + _ideal(move, self.cluster)
        return found

    @property
    def names(self) -> set[str]:
        """The names of moves with more than a hundredth of the ideal seconds."""
        own = self.ideal(-1)
        return {name for name, ideal in own.items() if ideal > 0.01 * sum(own.values())}


def _by_name(wires: Sequence[_Wire]) -> dict[str, float]:
    """Returns measured over ideal seconds for each kind of move. Strategies with one kind give it
    directly; others share the time that is left among their kinds without a value so far."""
    found: dict[str, float] = {}
    for wire in sorted(wires, key=lambda own: len(own.names)):
        unknown = wire.names - set(found)
        if not unknown:
            continue
        same = [other for other in wires if other.names == wire.names]
        ratios = [ratio for other in same for ratio in _ratios(other, unknown, found)]
        if ratios:
            found |= dict.fromkeys(unknown, median(ratios))
    return found


def _ratios(wire: _Wire, unknown: set[str], known: Mapping[str, float]) -> list[float]:
    ratios = []
    for i, seconds in enumerate(wire.seconds):
        ideal = wire.ideal(i)
        explained = sum(known[name] * ideal[name] for name in ideal if name in known)
        left = sum(ideal[name] for name in unknown)
        if seconds > 0 and left > 0:  # at least half of its share: curves may be off
            share = seconds * left / sum(ideal.values())
            ratios.append(max(seconds - explained, 0.5 * share) / left)
    return ratios


def usual_density(profile: Profile) -> float:
    """Returns the mean density of the profiled gradients over all elements."""
    dense = [r for r in profile.ready if not r.parameter.sparse]
    total = sum(r.parameter.elements for r in dense)
    return sum(r.density * r.parameter.elements for r in dense) / total if total else 1.0

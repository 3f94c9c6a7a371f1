"""Makes a fabric of two or three tiers from hosts, switches and cables.

Switches with hosts are leaves, those above are spines; or, if there are more above them, switches
of pods, and cores. Cables that are missing somewhere are links of rate 0. In which order cables
are listed makes no difference: hosts' ports are in the plane of their leaf, which is that of all
leaves with a way to it by spines.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from itertools import count, islice
from typing import NamedTuple, NoReturn

import numpy as np

from gradwire.errors import NetworkError
from gradwire.network.fabric import LEAF, Fabric, rate


class Cable(NamedTuple):
    """A cable between two nodes, of gbps each way; works: whether it has not failed."""

    one: str
    other: str
    gbps: float
    works: bool = True


def fabric_of(hosts: Sequence[str], cables: Iterable[Cable]) -> Fabric:
    """Makes a fabric. Hosts keep their order; leaves are numbered in the order of their hosts, or
    as their own names number them (leaf0, leaf1, …), switches above as they first come, and cables
    between the same two from the fastest on. Raises NetworkError for cables that do not make two
    or three tiers: hosts to hosts, leaves to leaves, hosts of one leaf whose other leaves differ,
    pods whose switches have different cores."""
    graph = _Graph(hosts, list(cables))
    if not graph.cores:
        return graph.two_tiers()
    return graph.three_tiers()


class _Graph:
    def __init__(self, hosts: Sequence[str], cables: list[Cable]) -> None:
        self.hosts, known = list(hosts), set(hosts)
        self.rates: dict[tuple[str, str], list[int]] = defaultdict(list)
        self.above: dict[str, list[str]] = defaultdict(list)
        order: dict[str, None] = {}
        for one, other, gbps, works in cables:
            bits = rate(f"the rate of the cable {one}-{other}", gbps) if works else 0
            for a, b in ((one, other), (other, one)):
                self.rates[a, b].append(bits)
                self.above[a].append(b)
                if a not in known:
                    order[a] = None
        for parallel in self.rates.values():  # a path has cables of one number up and down
            parallel.sort(reverse=True)
        self.ports = [self._leaves_of(host, known) for host in self.hosts]
        if not self.hosts:
            _fail("there are no hosts")
        for host, times in Counter(self.hosts).items():
            if times > 1:
                _fail(f"the host {host} is listed {times} times")
        leaves = dict.fromkeys(leaf for own in self.ports for leaf in own)
        named = {frozenset(own): own for own in reversed(self.ports)}  # as its first host
        self.racks = _numbered(list(dict.fromkeys(named[frozenset(own)] for own in self.ports)))
        shared = Counter(leaf for rack in self.racks for leaf in rack)
        for leaf, racks in shared.items():
            if racks > 1:
                _fail(f"the hosts of {leaf} are on different second leaves")
        middle = {n: None for leaf in leaves for n in self.above[leaf] if n not in known}
        for leaf in leaves:
            if leaf in middle:
                _fail(f"the leaf {leaf} has a cable to another leaf")
        self.middle = [switch for switch in order if switch in middle]
        cores = {n for switch in self.middle for n in self.above[switch]} - set(leaves)
        for switch in self.middle:
            if switch in cores:
                _fail(
                    f"{switch} is above leaves, and also above another switch that is above leaves"
                )
        self.cores = [switch for switch in order if switch in cores]

    def _leaves_of(self, host: str, hosts: set[str]) -> tuple[str, ...]:
        """Returns the leaves of a host, one for each port."""
        own = tuple(dict.fromkeys(self.above[host]))
        if not own:
            _fail(f"the host {host} has no cable")
        if not hosts.isdisjoint(own):
            _fail(f"the host {host} has a cable to another host")
        return own

    def two_tiers(self) -> Fabric:
        racks = self._in_planes()
        ways, uplinks, plane_of = list[tuple[str, int]](), list[tuple[str, int]](), list[int]()
        cables = Counter[str]()  # of each spine: those of several planes are numbered on
        for plane in range(len(racks[0])):
            for spine in self.middle:
                most = max(len(self.rates.get((rack[plane], spine), ())) for rack in racks)
                ways += [(spine, number) for number in range(most)]
                uplinks += [(_above(spine), cables[spine] + number) for number in range(most)]
                plane_of += [plane] * most
                cables[spine] += most
        low = [
            self._rate(rack[plane], spine, number)
            for rack in racks
            for (spine, number), plane in zip(ways, plane_of)
        ]
        return self._fabric(racks, [0] * len(racks), uplinks, plane_of, 0, low, [])

    def _in_planes(self) -> list[tuple[str, ...]]:
        """Returns the leaf of each rack in every plane, or "". Leaves that spines join are in one
        plane; where they are in one rack, in as many planes as the rack has of them."""
        part = self._joined()
        parts = [Counter(part[leaf] for leaf in rack) for rack in self.racks]
        most, beside = Counter[str](), defaultdict[str, set[str]](set)
        for own in parts:
            most |= own
            for one in own:
                beside[one] |= own.keys()
        planes = dict[str, list[int]]()
        for own in sorted(parts, key=lambda own: -own.total()):
            for one in own:
                taken = {plane for other in beside[one] for plane in planes.get(other, ())}
                free = (plane for plane in count() if plane not in taken)
                planes.setdefault(one, list(islice(free, most[one])))
        number = range(1 + max(map(max, planes.values())))
        found = []
        for rack, own in zip(self.racks, parts):
            left = {one: iter(planes[one]) for one in own}
            place = {next(left[part[leaf]]): leaf for leaf in rack}
            found.append(tuple(place.get(plane, "") for plane in number))
        return found

    def _joined(self) -> dict[str, str]:
        """Returns for each leaf one that stands for all with a way to it by spines."""
        by_spine = {spine: list[str]() for spine in self.middle}
        leaves = [leaf for rack in self.racks for leaf in rack]
        for leaf in leaves:
            for spine in by_spine.keys() & set(self.above[leaf]):
                by_spine[spine].append(leaf)
        found = dict[str, str]()
        for first in leaves:
            reached = [] if first in found else [first]
            while reached:
                leaf = reached.pop()
                if leaf not in found:
                    found[leaf] = first
                    for spine in self.above[leaf]:
                        reached += by_spine.pop(spine, ())
        return found

    def three_tiers(self) -> Fabric:
        leaves = [rack[0] for rack in self.racks]
        if any(len(rack) > 1 for rack in self.racks):
            _fail("with cores, a host can have only one leaf")
        for leaf in leaves:
            if set(self.middle).isdisjoint(self.above[leaf]):
                _fail(f"the leaf {leaf} has no cable to a switch of a pod")
        pods = self._pods(leaves)
        shape = [tuple(self._cores_of(switch)) for switch in pods[0]]
        for pod in pods:
            if [tuple(self._cores_of(switch)) for switch in pod] != shape:
                _fail(f"switches of the pod with {pod[0]} have other cores than {pods[0]}")
        pod_of = [next(p for p, pod in enumerate(pods) if set(pod) & set(self.above[leaf]))
                  for leaf in leaves]  # fmt: skip
        low = [
            self._rate(leaf, switch) for leaf, pod in zip(leaves, pod_of) for switch in pods[pod]
        ]
        cores = max(map(len, shape))
        high = [
            self._rate(switch, own[c]) if c < len(own) else 0
            for pod in pods
            for switch, own in zip(pod, shape)
            for c in range(cores)
        ]
        parallel = [pair for pair, rates in self.rates.items() if len(rates) > 1]
        if parallel:
            _fail(
                f"with cores, there can be only one cable between {parallel[0][0]} and "
                f"{parallel[0][1]}"
            )
        uplinks = [(f"switch{j}", 0) for j in range(len(shape))]
        return self._fabric(self.racks, pod_of, uplinks, [0] * len(uplinks), cores, low, high)

    def _pods(self, leaves: Sequence[str]) -> list[list[str]]:
        """Returns the switches that share leaves, pod by pod, in the order of their cores."""
        pods = list[set[str]]()
        for leaf in leaves:
            own = {switch for switch in self.above[leaf] if switch in set(self.middle)}
            joined = [pod for pod in pods if not pod.isdisjoint(own)]
            pods = [pod for pod in pods if pod not in joined] + [own.union(*joined)]
        place = {switch: i for i, switch in enumerate(self.middle)}
        number = {core: i for i, core in enumerate(self.cores)}
        return [
            sorted(pod, key=lambda s: ([number[c] for c in self._cores_of(s)], place[s]))
            for pod in sorted(pods, key=lambda pod: min(place[s] for s in pod))
        ]

    def _cores_of(self, switch: str) -> list[str]:
        own = set(self.above[switch])
        return [core for core in self.cores if core in own]

    def _rate(self, one: str, other: str, number: int = 0) -> int:
        found = self.rates.get((one, other), [])
        return found[number] if number < len(found) else 0

    def _fabric(
        self, racks: Sequence[tuple[str, ...]], pod_of: list[int], uplinks: list[tuple[str, int]],
        plane_of: list[int], cores: int, low: list[int], high: list[int],
    ) -> Fabric:  # fmt: skip
        rack_of = {leaf: i for i, rack in enumerate(racks) for leaf in rack if leaf}
        leaf_of = [rack_of[own[0]] for own in self.ports]
        ports = [
            [sum(self.rates.get((host, leaf), ())) for leaf in racks[rack]]
            for host, rack in zip(self.hosts, leaf_of)
        ]
        at_hosts = np.array(ports, np.int64)
        return Fabric(
            np.array(leaf_of, np.int64), np.array(pod_of, np.int64), tuple(uplinks),
            np.array(plane_of, np.int64), cores, at_hosts, at_hosts,
            np.array([*low, *low, *high, *high], np.int64),
        )  # fmt: skip


def _numbered(racks: list[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """Returns racks in the order of their leaves' numbers, if all leaves are called leaf0, leaf1,
    …, as those of a fabric are: then both mean the same."""
    names = [f"leaf{i}" for i in range(len(racks))]
    alone = {rack[0]: rack for rack in racks if len(rack) == 1}
    return [alone[name] for name in names] if alone.keys() == set(names) else racks


def _above(name: str) -> str:
    """Returns the name of a spine in a fabric, where 'leaf0' and the like are those of leaves."""
    return f"spine.{name}" if re.fullmatch(LEAF, name) else name


def _fail(found: str) -> NoReturn:
    raise NetworkError(
        "hosts must be below leaves, and leaves below spines, or below switches of pods, and "
        f"these below cores; {found}. Correct the cables, or leave out what is not part of the "
        "fabric."
    )

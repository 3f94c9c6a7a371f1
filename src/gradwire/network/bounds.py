"""Bounds that no routing can beat: bytes leave their host, leaf and pod, and enter others."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from gradwire.network.checked import Ints, Reals
from gradwire.network.fabric import Fabric, fabric_of
from gradwire.network.flows import Flow, Flows


@dataclass(frozen=True)
class Bounds:
    """The seconds that flows take at least, steps one after the other.

    fabric_seconds: the bound by the links of one leaf, or of one pod, to the switches above;
    host_seconds: by those of one host. seconds: the longer of both in each step, added up.
    """

    fabric_seconds: float
    host_seconds: float
    seconds: float

    @property
    def binding(self) -> Literal["fabric", "host", "nothing"]:
        """The larger of the two bounds. If hosts bind, no way to choose paths helps."""
        if not self.seconds:
            return "nothing"
        return "fabric" if self.fabric_seconds > self.host_seconds else "host"


def bounds(
    flows: Flows | Iterable[Flow | tuple[int, ...]], topology: Fabric, *, starts: bool = False
) -> Bounds:
    """Returns bounds on the time of all flows. Spraying reaches them if links are equal and none
    failed. starts: whether flows wait for their start_ns, as in engines that simulate time. Raises
    NetworkError for what is no flow, and unknown hosts."""
    flows = Flows.of(flows)
    flows.refuse_beyond(fabric_of(topology).hosts)
    host, leaf = np.arange(topology.hosts), topology.leaf_of
    longest = _latest if starts and flows.start_ns.any() else _longest
    hosts = longest(flows, host, topology.host_up.sum(1), topology.host_down.sum(1))
    leaves = longest(flows, leaf, topology.up.sum(1), topology.down.sum(1))
    up, down = topology.core_up.sum((1, 2)), topology.core_down.sum((1, 2))
    fabric = np.maximum(leaves, longest(flows, topology.pod_of[leaf], up, down))
    total = np.maximum(hosts, fabric).sum()
    return Bounds(float(fabric.sum()), float(hosts.sum()), float(total))


def _longest(flows: Flows, place_of: Ints, up: Ints, down: Ints) -> Reals:
    """Returns, for each step, the seconds of the place that takes longest to send all that goes to
    others, or to receive: infinite if it has bytes and no rate. place_of: each host's place."""
    steps, step = np.unique(flows.step, return_inverse=True)
    source, target = place_of[flows.src], place_of[flows.dst]
    far, found = source != target, np.zeros(len(steps))
    for place, rates in ((source, up), (target, down)):
        sums = np.zeros((len(steps), len(rates)))
        np.add.at(sums, (step[far], place[far]), flows.bytes[far])
        with np.errstate(divide="ignore", invalid="ignore"):
            seconds = np.where(sums > 0, 8.0 * sums / rates, 0.0)
        found = np.maximum(found, seconds.max(1, initial=0.0))
    return found


def _latest(flows: Flows, place_of: Ints, up: Ints, down: Ints) -> Reals:
    """Returns the same, counted from the step's begin: of all that starts at some time or later, a
    place sends or receives the last byte after as long as all of it takes, at the earliest."""
    steps, step = np.unique(flows.step, return_inverse=True)
    ends = place_of[flows.src], place_of[flows.dst]
    far, found = np.flatnonzero(ends[0] != ends[1]), np.zeros(len(steps))
    for place, rates in zip(ends, (up, down)):
        own = far[np.lexsort((-flows.start_ns[far], place[far], step[far]))]
        which = np.stack([step[own], place[own]])
        first = np.flatnonzero(np.append(True, (np.diff(which) != 0).any(0)))[: len(own)]
        sums = np.cumsum(flows.bytes[own], dtype=float)
        before = np.append(0.0, sums)[first].repeat(np.diff(np.append(first, len(own))))
        with np.errstate(divide="ignore"):
            seconds = flows.start_ns[own] * 1e-9 + 8.0 * (sums - before) / rates[place[own]]
        np.maximum.at(found, step[own], seconds)
    return found

"""What no routing can beat: bytes leave their host, leaf and pod, and enter others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from gradwire.network.arrays import Ints, Reals
from gradwire.network.fabric import Fabric
from gradwire.network.flows import Flows


@dataclass(frozen=True)
class Bounds:
    """Seconds that flows take at least, steps one after the other.

    fabric_seconds: by the links of one leaf, or of one pod, to the switches above; host_seconds:
    by those of one host. seconds: of each step what is longer.
    """

    fabric_seconds: float
    host_seconds: float
    seconds: float

    @property
    def binding(self) -> Literal["fabric", "host", "nothing"]:
        """What is waited for longer. Where hosts bind, no way to choose paths helps."""
        if not self.seconds:
            return "nothing"
        return "fabric" if self.fabric_seconds > self.host_seconds else "host"


def bounds(flows: Flows, topology: Fabric) -> Bounds:
    """Bounds on the time of all flows. Spraying reaches it where links are equal and none
    failed."""
    flows.refuse_beyond(topology.hosts)
    steps, step = np.unique(flows.step, return_inverse=True)
    hosts = _longest(len(steps), [
        _seconds(step, flows.src, flows.bytes, topology.host_up.sum(1)),
        _seconds(step, flows.dst, flows.bytes, topology.host_down.sum(1)),
    ])  # fmt: skip
    leaf, pod = topology.leaf_of, topology.pod_of[topology.leaf_of]
    fabric = _longest(len(steps), [
        *_crossing(flows, step, leaf, topology.up.sum(1), topology.down.sum(1)),
        *_crossing(flows, step, pod, topology.core_up.sum((1, 2)),
                   topology.core_down.sum((1, 2))),
    ])  # fmt: skip
    total = np.maximum(hosts, fabric).sum()
    return Bounds(float(fabric.sum()), float(hosts.sum()), float(total))


def _crossing(flows: Flows, step: Ints, part_of: Ints, up: Ints, down: Ints) -> list[Reals]:
    """Amounts of flows between parts: out of one, and into the other."""
    far = part_of[flows.src] != part_of[flows.dst]
    size, when = flows.bytes[far], step[far]
    return [
        _seconds(when, part_of[flows.src][far], size, up),
        _seconds(when, part_of[flows.dst][far], size, down),
    ]


def _seconds(step: Ints, place: Ints, bytes: Ints, rates: Ints) -> Reals:
    """[steps, places]: of all that one place sends, or receives, at its rate. Infinite where
    bytes must pass and nothing does."""
    steps = int(step.max(initial=-1)) + 1
    sums = np.zeros((steps, len(rates)))
    np.add.at(sums, (step, place), bytes)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(sums > 0, 8.0 * sums / rates, 0.0)


def _longest(steps: int, parts: list[Reals]) -> Reals:
    """The longest time of each step, over all places of all parts."""
    found = np.zeros(steps)
    for own in parts:
        if own.size:
            found[: len(own)] = np.maximum(found[: len(own)], own.max(1))
    return found

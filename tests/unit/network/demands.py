"""Fabrics and flows that tests of the network share."""

from __future__ import annotations

import numpy as np

from gradwire.network import Fabric, Flows, fat_tree, leaf_spine

FABRICS = (
    leaf_spine(4, 4, 4), leaf_spine(3, 5, 6), leaf_spine(2, 4, 2, parallel=2),
    fat_tree(3, 2, 3, 2, 2), fat_tree(2, 3, 4, 3, 2),
)  # fmt: skip
SIZE = 720_720
"""Bytes; many numbers divide it."""


def permutation(fabric: Fabric, seed: int, bytes: int = SIZE) -> Flows:
    """A random permutation: one flow from each host, unless it would send to itself."""
    dice = np.random.default_rng(seed)
    target = dice.permutation(fabric.hosts)
    hosts = np.arange(fabric.hosts)
    own = target != hosts
    return Flows(hosts[own], target[own], bytes)


def groups(fabric: Fabric, size: int, seed: int, bytes: int = SIZE) -> Flows:
    """Random groups of hosts, each of which sends all to all."""
    order = np.random.default_rng(seed).permutation(fabric.hosts)
    own = order[: len(order) // size * size].reshape(-1, size)
    pairs = [(a, b) for group in own.tolist() for a in group for b in group if a != b]
    return Flows(*zip(*pairs), bytes)


def unequal(flows: Flows, seed: int) -> Flows:
    """The same pairs with random sizes."""
    sizes = np.random.default_rng(seed).lognormal(10, 1.5, len(flows))
    return Flows(flows.src, flows.dst, sizes.astype(np.int64) + 1, flows.step)


def demands(fabric: Fabric) -> list[Flows]:
    return [permutation(fabric, 1), groups(fabric, 4, 2), groups(fabric, 3, 3)]


def same(one: Fabric, other: Fabric) -> bool:
    """Whether two fabrics are equal, apart from the names of switches."""
    columns = ("leaf_of", "pod_of", "plane_of", "host_up", "host_down", "rates")
    return one.cores == other.cores and all(
        np.array_equal(getattr(one, c), getattr(other, c)) for c in columns
    )

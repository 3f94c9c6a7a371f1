"""pair_of_leaves: two switches with hosts, and cables between them through spines."""

from __future__ import annotations

from gradwire.network.builders import leaf_spine
from gradwire.network.fabric import Fabric


def pair_of_leaves(hosts: int, *, cables: int = 2, host_gbps: float = 25.0) -> Fabric:
    """Returns the fabric. hosts: the number below each of the two leaves."""
    return leaf_spine(2, hosts, cables, host_gbps=host_gbps)

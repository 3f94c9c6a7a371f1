"""Three tiers: pods of leaves and switches, and cores between pods."""

from __future__ import annotations

from gradwire.network.fabric import Fabric, counts, evenly, rate


def fat_tree(
    pods: int, leaves: int, hosts: int, switches: int, cores: int, *, host_gbps: float = 100.0,
    fabric_gbps: float | None = None, core_gbps: float | None = None,
) -> Fabric:  # fmt: skip
    """Builds three tiers. leaves, switches: those of each pod, every leaf with a link to every
    switch; hosts: those below each leaf; cores: those above each switch, shared with the same
    switch of all pods.

    The textbook's fat tree of k-port switches is fat_tree(k, k//2, k//2, k//2, k//2). host_gbps:
    the rate of a host's link, in Gbit/s each way; fabric_gbps: of links between leaves and
    switches; core_gbps: of links above; None: as the tier below. Raises NetworkError for values
    out of range.
    """
    counts(pods=pods, leaves=leaves, hosts=hosts, switches=switches, cores=cores)
    middle = host_gbps if fabric_gbps is None else fabric_gbps
    top = middle if core_gbps is None else core_gbps
    return evenly(
        pods, leaves, hosts, switches, lambda i: (f"switch{i}", 0), rate("host_gbps", host_gbps),
        rate("fabric_gbps", middle), cores=cores, core_rate=rate("core_gbps", top),
    )  # fmt: skip

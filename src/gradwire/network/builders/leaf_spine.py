"""Two tiers: every leaf has a link to every spine."""

from __future__ import annotations

from gradwire.errors import NetworkError
from gradwire.network.fabric import Fabric, above_zero, counts, evenly, rate


def leaf_spine(
    leaves: int, hosts: int, spines: int, *, host_gbps: float = 100.0,
    fabric_gbps: float | None = None, parallel: int = 1, oversubscription: float | None = None,
) -> Fabric:  # fmt: skip
    """Builds two tiers. hosts: those below each leaf, numbered leaf by leaf; parallel: the cables
    from a leaf to each spine. host_gbps: the rate of a host's link, in Gbit/s each way.

    fabric_gbps: the rate of each such cable; None: the hosts' rate, or what follows from the
    oversubscription: how many times as fast a leaf's hosts are together as its uplinks. Raises
    NetworkError for values out of range, and if both are given.
    """
    counts(leaves=leaves, hosts=hosts, spines=spines, parallel=parallel)
    cables = spines * parallel
    if oversubscription is not None:
        if fabric_gbps is not None:
            raise NetworkError(
                "a leaf-spine takes fabric_gbps or oversubscription, which decides it, and not "
                f"both; got {fabric_gbps} and {oversubscription}. Leave one out."
            )
        above_zero("oversubscription", oversubscription)
        above_zero("host_gbps", host_gbps)
        fabric_gbps = hosts * host_gbps / (oversubscription * cables)
    return evenly(
        1, leaves, hosts, cables, lambda i: (f"spine{i // parallel}", i % parallel),
        rate("host_gbps", host_gbps),
        rate("fabric_gbps", host_gbps if fabric_gbps is None else fabric_gbps),
    )  # fmt: skip

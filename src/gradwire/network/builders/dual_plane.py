"""Hosts with a port on each of two networks, or more, that have no link between them."""

from __future__ import annotations

from gradwire.network.fabric import Fabric, above_zero, counts, evenly, rate


def dual_plane(
    leaves: int, hosts: int, spines: int, *, planes: int = 2, host_gbps: float = 100.0,
    fabric_gbps: float | None = None,
) -> Fabric:  # fmt: skip
    """Builds a fabric with several planes. leaves: racks, each with a switch in every plane;
    hosts: those of each rack; spines: those of each plane, with a link to each of its leaves.
    host_gbps: the rate of all ports of a host together, shared evenly, in Gbit/s each way;
    fabric_gbps: that of a link between switches; None: as a port.

    In the fabric, the switches of a rack are one leaf, whose uplinks belong to planes: a path is
    also a choice of the ports at both ends. Raises NetworkError for values out of range.
    """
    counts(leaves=leaves, hosts=hosts, spines=spines, planes=planes)
    port = above_zero("host_gbps", host_gbps) / planes
    return evenly(
        1, leaves, hosts, planes * spines, lambda i: (f"plane{i // spines}.spine{i % spines}", 0),
        rate("host_gbps", port), rate("fabric_gbps", port if fabric_gbps is None else fabric_gbps),
        planes=planes,
    )  # fmt: skip

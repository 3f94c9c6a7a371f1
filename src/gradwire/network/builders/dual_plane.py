"""Hosts with a port on each of two networks that never meet."""

from __future__ import annotations

from gradwire.network.fabric import Fabric, above_zero, count, evenly, rate


def dual_plane(
    leaves: int, hosts: int, spines: int, *, planes: int = 2, host_gbps: float = 100.0,
    fabric_gbps: float | None = None,
) -> Fabric:  # fmt: skip
    """leaves: places of a rack, each a switch in every plane; spines: of each plane, with a link
    to each of its leaves. host_gbps: of a host's ports together, shared evenly; fabric_gbps: of a
    link; None: a port's rate.

    In the fabric, the switches of a rack are one leaf, whose uplinks belong to planes: a path is
    also a choice of the ports at both ends. NetworkError for what cannot be.
    """
    shape = {"leaves": leaves, "hosts": hosts, "spines": spines, "planes": planes}
    for name, number in shape.items():
        count(name, number)
    port = above_zero("host_gbps", host_gbps) / planes
    return evenly(
        [leaves], hosts,
        [(f"plane{p}.spine{j}", 0) for p in range(planes) for j in range(spines)], 0,
        rate("host_gbps", port), rate("fabric_gbps", port if fabric_gbps is None else fabric_gbps),
        plane_of=[p for p in range(planes) for _ in range(spines)],
    )  # fmt: skip

"""Writes topologies and traffic for htsim: `.topo` and `.cm` files.

Source: uet-htsim, htsim/sim/datacenter (fat_tree_topology, connection_matrix).
"""

from __future__ import annotations

import numpy as np

from gradwire.errors import NetworkError
from gradwire.network.fabric import Fabric
from gradwire.network.flows import Flows

_LARGEST = 1 << 31  # an int of C++


def connections(flows: Flows, hosts: int) -> str:
    """Writes a `.cm` file: between steps is a barrier, which the last acknowledgement of the step
    before opens. Raises NetworkError for sizes and starts that htsim cannot read."""
    if flows.bytes.max(initial=0) >= _LARGEST:
        raise NetworkError(
            f"htsim reads only sizes below {_LARGEST:,} bytes; got a flow of "
            f"{flows.bytes.max():,}. Send fewer bytes, or cut the flow."
        )
    _, step, many = np.unique(flows.step, return_inverse=True, return_counts=True)
    late = flows.start_ns[(flows.start_ns % 1000 > 0) | ((step > 0) & (flows.start_ns > 0))]
    if len(late):
        raise NetworkError(
            "in htsim, flows of the first step must start at whole microseconds, and others with "
            f"their step; got a start of {late[0]} ns. Round it, or leave it out."
        )
    order, barriers = np.argsort(step, kind="stable"), len(many) - 1
    lines = [f"Nodes {hosts}", f"Connections {len(flows)}"]
    lines += [f"Triggers {barriers}"] * (barriers > 0)
    own = zip(*(getattr(flows[order], n).tolist() for n in ("src", "dst", "bytes", "start_ns")))
    for i, ((src, dst, size, start), place) in enumerate(zip(own, step[order].tolist()), 1):
        begins = f"trigger {place}" if place else f"start {start // 1000}"
        pulls = f" send_done_trigger {place + 1}" if place < barriers else ""
        lines.append(f"{src}->{dst} id {i} {begins} size {size}{pulls}")
    lines += [f"trigger id {i + 1} count {many[i]} barrier" for i in range(barriers)]
    return "\n".join(lines) + "\n"


def topology(fabric: Fabric, latency_ns: float = 500.0) -> str:
    """Writes a `.topo` file. Raises NetworkError for what htsim cannot describe: hosts with
    several ports, leaves that differ, links of a tier that differ, an oversubscription that is no
    whole number, and a latency that is none, or 0."""
    is_number = isinstance(latency_ns, int | float) and 1 <= latency_ns < _LARGEST
    if not is_number or latency_ns != int(latency_ns):
        raise NetworkError(
            f"htsim reads only whole latencies, from 1 ns to {_LARGEST - 1:,} ns; got "
            f"{latency_ns!r}. Write for example 500."
        )
    a_leaf, leaves = fabric.hosts // fabric.leaves, fabric.leaves // fabric.pods
    up, cables = len(fabric.uplinks), max((i for _, i in fabric.uplinks), default=0) + 1
    tiers = [(fabric.host_up, fabric.host_down), (fabric.up, fabric.down)]
    radix = [(a_leaf, up), (leaves * cables, fabric.cores), (fabric.pods, 0)]
    if fabric.pods > 1:
        tiers.append((fabric.core_up, fabric.core_down))
    rates = [np.unique(np.append(*own)) for own in tiers]
    gbps = [int(own.min(initial=own.max(initial=0))) // 10**9 for own in rates]  # 0: no links
    over = [down * gbps[i] / max(1, above * gbps[i + 1])
            for i, (down, above) in enumerate(radix[: len(tiers) - 1])]  # fmt: skip
    in_order = [
        np.array_equal(fabric.leaf_of, np.arange(fabric.hosts) // max(1, a_leaf)),
        np.array_equal(fabric.pod_of, np.arange(fabric.leaves) // max(1, leaves)),
        [i for _, i in fabric.uplinks] == list(range(cables)) * (up // cables),
        fabric.planes == 1, fabric.pods == 1 or cables == 1, over[0] == a_leaf // max(1, up),
        *(own.tolist() == [g * 10**9] and g > 0 for own, g in zip(rates, gbps)),
        *(times >= 1 and times == int(times) for times in over),
    ]  # fmt: skip
    if not all(in_order):
        raise NetworkError(
            "htsim needs hosts of one port in the order of equal leaves, the same whole Gbit/s on "
            "all links of a tier, and an oversubscription that is a whole number; this topology "
            "is different. Use a leaf_spine or fat_tree that has these."
        )
    lines = [f"Nodes {fabric.hosts}", f"Tiers {len(tiers)}", f"Podsize {leaves * a_leaf}"]
    for tier, own in enumerate(gbps):
        lines += [f"Tier {tier}", f"Downlink_speed_Gbps {own}", f"Radix_Down {radix[tier][0]}"]
        if tier < len(over):
            lines += [f"Radix_Up {radix[tier][1]}", f"Oversubscribed {int(over[tier])}"]
        lines += [f"Bundle {cables}"] * (tier == 1) + [f"Downlink_Latency_ns {int(latency_ns)}"]
    return "\n".join(lines) + "\n"

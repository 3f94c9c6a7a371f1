"""MultiQpSrcPort.cfg of HCCL: source ports for every pair of addresses, a queue pair for each.

    192.168.100.2,192.168.100.3=61100,61101

HCCL reads it from the folder that HCCL_RDMA_QP_PORT_CONFIG_PATH names: 131,072 lines at most, 32
ports a pair, equal parts. Source: HCCL's documentation of that variable.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Sequence

import numpy as np

from gradwire.errors import NetworkError
from gradwire.network.amounts import numbers
from gradwire.network.exports.ports import Ports, taken
from gradwire.network.fabric import Fabric
from gradwire.network.flows import Flows
from gradwire.network.routes import Routes

MOST_LINES, MOST_PORTS = 131_072, 32


def write(routes: Routes, addresses: Sequence[str], ports: Ports) -> str:
    """addresses: of hosts. A pair's bytes are shared by as many ports as there are parts of their
    common measure, a path of three parts having three. NetworkError for paths that too few ports
    are known of, and beyond HCCL's limits: 32 ports, which small common measures soon need."""
    wanted = _shares(routes)
    lines = []
    for (src, dst), shares in sorted(wanted.items()):
        if sum(shares.values()) > MOST_PORTS:
            raise NetworkError(
                f"HCCL has at most {MOST_PORTS} ports for a pair; {src} to {dst} needs "
                f"{sum(shares.values())}. Use 'coloured', which cuts no flow."
            )
        chosen = list[int]()
        for path, many in sorted(shares.items()):
            chosen += taken(ports, (src, dst), path, many)
        lines.append(f"{addresses[src]},{addresses[dst]}={','.join(map(str, chosen))}")
    if len(lines) > MOST_LINES:
        raise NetworkError(
            f"HCCL reads at most {MOST_LINES:,} pairs; got {len(lines):,}. Write a file for each "
            "job."
        )
    return "\n".join([*lines, ""]) if lines else ""


def read(
    text: str, fabric: Fabric, flows: Flows, addresses: Sequence[str], ports: Ports
) -> Routes:
    """Every flow in equal parts over the ports of its pair, as HCCL sends it; NetworkError with
    the line for addresses and ports that are not known, and flows without a line."""
    number = {address: host for host, address in enumerate(addresses)}
    paths: dict[tuple[int, int], list[int]] = {}
    for count, line in enumerate(text.splitlines(), 1):
        pair, _, given = line.partition("=")
        try:
            src, dst = (number[address] for address in pair.split(","))
            path_of = {port: path for path, own in ports[src, dst].items() for port in own}
            paths[src, dst] = [path_of[int(port)] for port in given.split(",")]
        except (KeyError, ValueError):
            raise NetworkError(
                "a line is 'address,address=port,…' of hosts and ports that are known; line "
                f"{count} is {line!r}. Correct it."
            ) from None
    rows = list[tuple[int, int, int, int]]()
    stays = fabric.leaf_of[flows.src] == fabric.leaf_of[flows.dst]
    for i, flow in enumerate(flows):
        own = [-1] if stays[i] else paths.get((flow.src, flow.dst), [])
        if not own:
            raise NetworkError(
                f"every pair that sends has a line; {flow.src} to {flow.dst} has none. Add it."
            )
        rows += [(i, path, flow.bytes * many, len(own)) for path, many in Counter(own).items()]
    unit = math.lcm(1, *(parts for *_, parts in rows))
    return Routes(
        fabric, flows, np.array([r[0] for r in rows], np.int64),
        np.array([r[1] for r in rows], np.int64),
        numbers([r[2] * (unit // r[3]) for r in rows]), unit,
    )  # fmt: skip


def _shares(routes: Routes) -> dict[tuple[int, int], dict[int, int]]:
    """Of pairs of hosts, how many equal parts take each path."""
    amounts: dict[tuple[int, int], dict[int, int]] = defaultdict(lambda: defaultdict(int))
    src, dst = routes.flows.src.tolist(), routes.flows.dst.tolist()
    rows = zip(routes.flow.tolist(), routes.path.tolist(), routes.amount.tolist())
    for flow, path, amount in rows:
        if path >= 0:
            amounts[src[flow], dst[flow]][path] += amount
    found = {}
    for pair, by_path in amounts.items():
        part = int(np.gcd.reduce(list(by_path.values())))
        found[pair] = {path: amount // part for path, amount in by_path.items()}
    return found

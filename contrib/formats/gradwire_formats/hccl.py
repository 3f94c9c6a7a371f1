"""MultiQpSrcPort.cfg of HCCL: source ports for every pair of addresses, a queue pair for each.

    192.168.100.2,192.168.100.3=61100,61101

HCCL reads it from the folder that HCCL_RDMA_QP_PORT_CONFIG_PATH names: 131,072 lines at most, 32
ports a pair, equal parts. Source: HCCL's documentation of that variable.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from gradwire.errors import NetworkError
from gradwire.network.importers import read
from gradwire.network.routes import Routes
from gradwire_formats.ports import Ports, load, taken

MOST_LINES, MOST_PORTS = 131_072, 32


def hccl(routes: Routes, addresses: str, ports: str) -> str:
    """Returns the configuration file's text. addresses: a file with the address of every host, one
    per line. ports: a file as for `ports.load`. Raises NetworkError as `write` does, and for hosts
    without an address."""
    found = read(addresses).split()
    if len(found) < routes.fabric.hosts:
        raise NetworkError(
            f"every host has an address; got {len(found)} for {routes.fabric.hosts} hosts. Add "
            f"the others to {addresses}."
        )
    return write(routes, found, load(ports))


def write(routes: Routes, addresses: Sequence[str], ports: Ports) -> str:
    """Returns the configuration file's text. addresses: of all hosts. A pair's bytes are divided
    into equal parts of the greatest common divisor of its paths' bytes, and each part has a port:
    a path of three parts has three. Raises NetworkError if too few ports are known for a path, and
    beyond HCCL's limits: 32 ports for a pair, which small parts soon exceed."""
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


def _shares(routes: Routes) -> dict[tuple[int, int], dict[int, int]]:
    """Returns, for each pair of hosts, how many equal parts take each path."""
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

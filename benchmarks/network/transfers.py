"""Real transfers between hosts of a cluster, all at once: how long, and over which links.

with Cluster(topology=topology, rate="200mbit") as cluster:
    done = transfer(cluster, pinned(routes))
    done.seconds, done.link_bytes
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, NamedTuple

from gradwire.errors import LabError
from gradwire.lab.cluster import Cluster, Connection
from gradwire.lab.guarded import with_package_on_path

if TYPE_CHECKING:
    from gradwire.network.fabric import Link
    from gradwire.network.flows import Flows
    from gradwire.network.routes import Routes

FIRST_PORT = 20_000
_LAST_PORT = 60_999  # of random source ports
_WORKER = Path(__file__).with_name("transfer_worker.py")
_TIMEOUT_SECONDS = 300.0
_LEAD_SECONDS = 0.05  # time for the last worker to read when to begin


class Transfer(NamedTuple):
    """Bytes over one connection. plane: the plane of its addresses; None: the hosts' own."""

    connection: Connection
    bytes: int
    plane: int | None = None


@dataclass(frozen=True)
class Transferred:
    """The result of transfers. seconds: from the common start to the last byte's arrival, with
    connections open before. link_bytes: carried meanwhile, headers and acknowledgements included.
    segments_resent: by all hosts, of 1,448 bytes; what a queue drops, the links before it carry
    twice."""

    seconds: float
    link_bytes: dict[Link, int]
    segments_resent: int


def pinned(routes: Routes) -> list[Transfer]:
    """Returns a connection for every piece, with the addresses of its path's plane.

    Pieces are whole bytes here: the last of a flow is shorter. Raises LabError for sprayed
    packets.
    """
    made = list[Transfer]()
    left = routes.flows.bytes.tolist()
    of_flow = list(zip(routes.flows.src.tolist(), routes.flows.dst.tolist()))
    rows = zip(routes.flow.tolist(), routes.path.tolist(), routes.amount)
    for i, (flow, path, amount) in enumerate(rows):
        if path < -1:
            raise LabError(
                "a connection has one path; these packets are spread over all. Choose a scheme "
                "that gives each piece a path, such as coloured."
            )
        size = min(-(-int(amount) // routes.unit), left[flow])
        left[flow] -= size
        port = FIRST_PORT + i
        if size:
            plane = path if path >= 0 else None
            source, target = of_flow[flow]
            made.append(Transfer(Connection(source, target, port, port), size, plane))
    return made


def hashed(flows: Flows, seed: int, pieces: int = 1) -> list[Transfer]:
    """Returns a connection for every piece of a flow, with the hosts' own addresses and random
    ports, as a kernel would choose them."""
    import numpy as np

    draw = np.random.default_rng(seed)
    made = list[Transfer]()
    for flow in flows:
        for piece in range(pieces):
            port, size = FIRST_PORT + len(made), (flow.bytes + piece) // pieces
            own = int(draw.integers(FIRST_PORT, _LAST_PORT))
            made.append(Transfer(Connection(flow.src, flow.dst, own, port), size))
    return [one for one in made if one.bytes]


def by_ports(cluster: Cluster, routes: Routes, seed: int = 0) -> list[Transfer]:
    """Returns the same pieces as `pinned`, with the hosts' own addresses: each connection's
    source port is one that is hashed to its path. Raises LabError if none of 64 × paths random
    ones is."""
    import numpy as np

    draw = np.random.default_rng(seed)
    made = pinned(routes)
    across = [one for one in made if one.plane is not None]
    many = 64 * max((1 + (one.plane or 0) for one in across), default=0)
    ports = draw.integers(FIRST_PORT, _LAST_PORT, (len(across), many)).tolist()
    tried = [
        [one.connection._replace(source_port=port) for port in own]
        for one, own in zip(across, ports)
    ]
    paths = iter(cluster.paths([connection for own in tried for connection in own]))
    chosen = {}
    for one, own in zip(across, tried):
        fits = [c for c, path in zip(own, list(islice(paths, many))) if path == one.plane]
        if not fits:
            raise LabError(
                f"a path is taken by the ports that hash to it; none of {many} tried from host "
                f"{one.connection.source} to {one.connection.target} takes path {one.plane}; is "
                "its cable there?"
            )
        chosen[one] = Transfer(fits[0], one.bytes)
    return [chosen.get(one, one) for one in made]


def transfer(cluster: Cluster, transfers: Sequence[Transfer]) -> Transferred:
    """Performs transfers on an entered cluster with one process per host. Raises LabError for
    another cluster, and if a host's program fails (its output is on standard error)."""
    if cluster.procs_per_host != 1:
        raise LabError(
            f"transfers are between hosts of 1 process each; got {cluster.procs_per_host}; make a "
            "cluster with procs_per_host=1"
        )
    before = cluster.link_bytes()
    ends, resent = list[float](), list[int]()
    with tempfile.TemporaryDirectory(prefix="gradwire-") as folder:
        start = _Start(Path(folder, "start"), cluster.hosts)
        Path(folder, "tasks").write_text(json.dumps(_tasks(cluster, transfers)))

        def hear(rank: int, stream: str, line: str) -> None:
            if stream == "stderr":
                print(f"[{rank}] {line}", file=sys.stderr)
            elif line == "ready":
                start.count()
            elif line.startswith("arrived"):
                ends.append(float(line.split()[1]))
            else:
                resent.append(int(line.split()[1]))

        code = cluster.run(
            [sys.executable, "-P", str(_WORKER), folder],
            env={"PYTHONPATH": with_package_on_path(os.environ)["PYTHONPATH"]},
            on_line=hear, timeout_seconds=_TIMEOUT_SECONDS,
        )  # fmt: skip
    if code != 0 or len(ends) != len(transfers):
        raise LabError(
            f"all {len(transfers)} transfers must arrive; {len(ends)} did, and a host's program "
            f"ended with {code}; its own words stand above: are all planes' links there?"
        )
    after = cluster.link_bytes()
    carried = {link: after[link] - before[link] for link in after}
    return Transferred(max(ends, default=start.at) - start.at, carried, sum(resent))


class _Start:
    """Counts hosts that have opened their connections; after the last, a file tells them when to
    begin."""

    def __init__(self, file: Path, hosts: int) -> None:
        self.at, self._file, self._missing = 0.0, file, hosts

    def count(self) -> None:
        self._missing -= 1
        if self._missing == 0:
            self.at = monotonic() + _LEAD_SECONDS
            part = self._file.with_suffix(".part")
            part.write_text(repr(self.at))
            part.rename(self._file)  # atomic: readers see the whole file


def _tasks(cluster: Cluster, transfers: Sequence[Transfer]) -> list[dict[str, list[object]]]:
    """Returns each rank's tasks: [address, port, peer's address, peer's port, bytes] to send, and
    [address, port, bytes] to receive."""
    rank = {host: rank for rank, host in enumerate(cluster.order)}
    tasks: list[dict[str, list[object]]] = [{"send": [], "receive": []} for _ in rank]
    for (source, target, own_port, port), size, plane in transfers:
        own, peer = cluster.address(source, plane), cluster.address(target, plane)
        tasks[rank[source]]["send"].append([own, own_port, peer, port, size])
        tasks[rank[target]]["receive"].append([peer, port, size])
    return tasks

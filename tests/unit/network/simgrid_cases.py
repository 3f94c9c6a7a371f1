"""Max-min rates as SimGrid computes them: written once to simgrid_cases.json, which tests read.

    pip install boost_headers "pybind11==2.13.6" cmake numpy
    cmake SIMGRID -Denable_python=ON -Dminimal-bindings=ON -Denable_model-checking=OFF
    make python-bindings                  # with boost_headers/include in CPLUS_INCLUDE_PATH
    PYTHONPATH=src:lib python tests/unit/network/simgrid_cases.py

SimGrid 4.1 has no wheel; it is compiled, from its sources on PyPI. Its network model without
latencies, start-up and cross traffic, so that flows share links as fairly as can be.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

FILE = Path(__file__).with_suffix(".json")
CASES = 10
TOPOLOGIES = (
    "leaf_spine(3, 3, 2, host_gbps=8)", "leaf_spine(4, 2, 3, host_gbps=8, fabric_gbps=4)",
    "fat_tree(2, 2, 2, 2, 2, host_gbps=8)",
)  # fmt: skip


def made(case: int) -> tuple[Any, Any]:
    """Flows of unequal size on hashed paths, at most one for a pair of hosts, sorted by pair."""
    import numpy as np

    from gradwire.network import Flows, route
    from gradwire.network.topologies import topology_of

    fabric, dice = topology_of(TOPOLOGIES[case % len(TOPOLOGIES)]), np.random.default_rng(case)
    pairs = [(a, b) for a in range(fabric.hosts) for b in range(fabric.hosts) if a != b]
    chosen = sorted(dice.choice(len(pairs), 16, replace=False).tolist())
    flows = Flows([pairs[i][0] for i in chosen], [pairs[i][1] for i in chosen],
                  dice.integers(10**6, 10**7, 16))  # fmt: skip
    return fabric, route(flows, fabric, "ecmp", case)


def simulated(case: int) -> list[float]:
    """The seconds at which each flow ends, as SimGrid computes them."""
    from simgrid import Comm, Engine, LinkInRoute

    from gradwire.network.engines.flow import transfers_of

    fabric, routes = made(case)
    transfers = transfers_of(routes)
    engine = Engine([
        "simgrid", "--cfg=network/model:CM02", "--cfg=network/TCP-gamma:0",
        "--cfg=network/crosstraffic:0", "--cfg=network/bandwidth-factor:1",
        "--cfg=network/latency-factor:0", "--cfg=network/weight-S:0", "--log=root.thresh:critical",
    ])  # fmt: skip
    zone = engine.netzone_root.add_netzone_full("zone")
    hosts = [zone.add_host(f"h{i}", 1e9) for i in range(fabric.hosts)]
    links = [zone.add_link(f"l{i}", float(rate) or 1.0) for i, rate in enumerate(transfers.rate)]
    for i, flow in enumerate(routes.flows):
        used = [LinkInRoute(links[j]) for j in transfers.uses.of_row(i).tolist()]
        zone.add_route(hosts[flow.src], hosts[flow.dst], used, False)
    zone.seal()
    ends = [0.0] * len(routes.flows)

    def send(i: int, flow: Any) -> None:
        Comm.sendto(hosts[flow.src], hosts[flow.dst], flow.bytes)
        ends[i] = Engine.clock

    for i, flow in enumerate(routes.flows):
        hosts[flow.src].add_actor(f"a{i}", send, i, flow)
    engine.run()
    return ends


def main() -> None:
    if len(sys.argv) > 1:
        print(json.dumps(simulated(int(sys.argv[1]))))
        return
    found = []
    for case in range(CASES):  # one engine to a process
        done = subprocess.run(
            [sys.executable, __file__, str(case)], capture_output=True, text=True, check=True
        )
        found.append(json.loads(done.stdout.splitlines()[-1]))
    FILE.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()

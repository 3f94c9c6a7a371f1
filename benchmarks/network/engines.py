"""The speed of the engines, and what packets show about the schemes.

OMP_NUM_THREADS=1 python benchmarks/network/engines.py [--only packets flows hashes]
"""

from __future__ import annotations

from time import process_time
from typing import Any

import numpy as np
from cases import groups, permutation, ring, tell
from distribution import fullest_by_hash

from gradwire.network import Fabric, Flows, leaf_spine, rail_optimized, route, samples
from gradwire.network.engines.flow import transfers_of
from gradwire.network.engines.maxmin import run
from gradwire.network.engines.packet import send
from gradwire.network.engines.transport import Transport
from gradwire.network.failures import sweep
from gradwire.network.parallelism import Parallelism, workload_of
from gradwire.network.placement import Placement


def main() -> int:
    return tell(__doc__, {
        "schemes": schemes, "packets": packets, "flows": flows, "steps": steps,
        "hashes": hashes, "failures": failures,
    })  # fmt: skip


def schemes() -> list[dict[str, Any]]:
    """Compares schemes: 256 hosts, a ring on random hosts, 4,000 packets of 4 KiB each, 400
    Gbit/s."""
    fabric = leaf_spine(16, 16, 16, host_gbps=400)
    traffic = ring(fabric, 3, 4000 * 4096)
    how = Transport(queue_bytes=1 << 40, mark_bytes=1 << 40)
    ideal = 4000 * 4096 * 8 / 400e9
    rows = []
    for scheme, spraying in (
        ("ecmp", "random"), ("ecmp_k(2)", "random"), ("ecmp_k(8)", "random"),
        ("ethereal", "random"), ("spray", "random"), ("spray", "rotating"),
        ("spray", "recycled"), ("spray", "adaptive"), ("spray", "round_robin"),
        ("adaptive", "random"), ("coloured", "random"), ("min_split", "random"),
    ):  # fmt: skip
        own = Transport(**{**vars(how), "spraying": spraying})
        sent = [send(route(traffic, fabric, scheme, seed), own, seed=seed) for seed in range(5)]
        took = np.array([s.seconds.max() for s in sent])
        on_fabric = [s.longest_wait[: len(fabric.rates)].max() for s in sent]
        rows.append({
            "scheme": scheme if scheme != "spray" else f"{scheme}, {spraying}",
            "µs, median of 5": float(np.median(took) * 1e6),
            "least": float(took.min() * 1e6), "most": float(took.max() * 1e6),
            "× ideal": float(np.median(took) / ideal),
            "longest queue, packets": float(np.median(on_fabric) * 400e9 / 8 / 4096),
        })  # fmt: skip
    return rows


def packets() -> list[dict[str, Any]]:
    """Measures events per second."""
    rows = []
    for leaves, hosts in ((16, 16), (32, 32), (64, 64)):
        fabric = leaf_spine(leaves, hosts, hosts, host_gbps=400)
        for scheme in ("coloured", "ecmp", "spray"):
            bytes = 4096 * max(1, 2_000_000 // (fabric.hosts * 5))
            routes = route(permutation(fabric, 1, bytes), fabric, scheme)
            began = process_time()
            sent = send(routes, Transport(queue_bytes=1 << 40, mark_bytes=1 << 40))
            took = process_time() - began
            rows.append({
                "hosts": fabric.hosts, "scheme": scheme, "events": sent.events,
                "seconds": took, "M events/s": sent.events / took / 1e6,
            })  # fmt: skip
    return rows


def flows() -> list[dict[str, Any]]:
    """Measures completions by fair shares."""
    cases: list[tuple[str, Fabric, Flows]] = [
        (name, fabric, groups(fabric, size, 1))
        for name, fabric, size in (
            ("65,280: all to all of 256", leaf_spine(16, 16, 16), 256),
            ("1,032,192: groups of 64", leaf_spine(256, 64, 64), 64),
        )
    ]
    rows = []
    for name, fabric, traffic in cases:
        transfers = transfers_of(route(traffic, fabric, "ecmp", 1))
        for tolerance in (0.0, 0.01, 0.05) if len(traffic) < 10**6 else (0.01, 0.05):
            began = process_time()
            times = run(transfers, tolerance)
            rows.append({
                "flows": name, "tolerance": tolerance, "rounds": times.rounds,
                "seconds": process_time() - began, "completion, ms": float(times.end.max() * 1e3),
            })  # fmt: skip
    return rows


def steps() -> list[dict[str, Any]]:
    """Predicts a training step of 1,024 ranks: TP 8, PP 4, DP 32; 7 billion parameters in 16
    bits."""
    job = Parallelism(
        dp=32, pp=4, tp=8, gradient_bytes=7_000_000_000 * 2 // 32, activation_bytes=8 << 20,
        microbatches=16, forward_seconds=0.012, backward_seconds=0.024, buckets=4,
    )  # fmt: skip
    topology = rail_optimized(8, 16, 8, 16, host_gbps=100)
    where, rows = Placement.shuffled(job.ranks, 1, job.tp), []
    for scheme in ("spray", "ecmp", "ecmp_k(4)", "ethereal", "coloured"):
        began = process_time()
        took = workload_of(job).seconds(topology, where, scheme, seed=1)
        rows.append({
            "scheme": scheme, "step, ms": took * 1e3, "told in, seconds": process_time() - began
        })  # fmt: skip
    return rows


def failures() -> list[dict[str, Any]]:
    """Sweeps every cable of 512 leaves and 64 spines, one at a time."""
    fabric, rows = leaf_spine(512, 64, 64), []
    for name, traffic in (
        ("permutation", permutation(fabric, 1)), ("groups of 64", groups(fabric, 64, 1)),
    ):  # fmt: skip
        routes = route(traffic, fabric, "coloured")
        began = process_time()
        found = sweep(routes)
        rows.append({
            "traffic": name, "failures": len(found.what), "seconds": process_time() - began,
            "before, ms": found.before * 1e3, "median, ms": float(np.median(found.seconds) * 1e3),
            "worst, ms": float(found.seconds.max() * 1e3),
        })  # fmt: skip
    return rows


def hashes() -> list[dict[str, Any]]:
    fabric = leaf_spine(512, 64, 64)
    traffic, rows = permutation(fabric, 1), []
    began = process_time()
    drawn = samples(traffic, fabric, "ecmp", 1000)
    took = process_time() - began
    unit = 100e9 / 8 / (1 << 20)
    rows.append({"what": "1,000 samples of 32 k flows", "seconds": took,
                 "p50": float(np.quantile(drawn, 0.5) * unit),
                 "p95": float(np.quantile(drawn, 0.95) * unit)})  # fmt: skip
    began = process_time()
    exact = fullest_by_hash(traffic, fabric)
    rows.append({"what": "the exact distribution", "seconds": process_time() - began,
                 "p50": exact.quantile(0.5), "p95": exact.quantile(0.95)})  # fmt: skip
    return rows


if __name__ == "__main__":
    raise SystemExit(main())

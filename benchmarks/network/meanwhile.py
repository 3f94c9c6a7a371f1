"""What happens during a step: links that die, another job, queues that are full.

OMP_NUM_THREADS=1 python benchmarks/network/meanwhile.py [--only KIND …] [--json FILE]

The network of Addanki et al. 2025 (`paper.py`): 256 hosts below 16 leaves, 16 spines, 400 Gbit/s,
packets of 9,000 bytes, windows of 64 that shrink by marks.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from statistics import median
from typing import Any

import numpy as np
from cases import tell
from paper import CHANCE, HOW, SCHEMES, SEEDS, TOPOLOGIES, without_some

from gradwire.network import Fabric, Flows, Link, bounds, outages, route, routed, simulate_jobs
from gradwire.network.demand import in_groups
from gradwire.network.engines.packet import send
from gradwire.network.engines.transport import Transport
from gradwire.network.patterns import all_to_all, direct, halving_doubling
from gradwire.network.placement import Placement
from gradwire.network.routing.route import scheme_of

FABRIC = TOPOLOGIES["leaf-spine"]
MB = 1 << 20
CONVERGENCE_SECONDS = 0.1
"""The switches' convergence time; a host avoids a path on which a timer ran out for as long, as in
the paper."""


def main() -> int:
    return tell(__doc__, {"failures": failures, "jobs": jobs, "queues": queues})


def failures() -> Iterator[dict[str, Any]]:
    """Lets one cable in fifty die after a fifth of the least time that the step takes."""
    dead = [link for link, rate in zip(FABRIC.links, without_some(FABRIC).rates) if rate == 0]
    for name, flows in (
        ("half step, 8 MB", _step(halving_doubling(256, 8 * MB), 0)),
        ("half step, 64 MB", _step(halving_doubling(256, 64 * MB), 0)),
        ("direct, 8 MB", _step(direct(256, 8 * MB), 0)),
    ):
        least = bounds(flows, FABRIC).seconds
        fails = dict.fromkeys(dead, 0.2 * least)
        for label in SCHEMES:
            row: dict[str, Any] = {"traffic": name, "scheme": label}
            row["nothing fails"] = _times(flows, label, {}, least)
            row["known before"] = _times(flows, label, {}, least, FABRIC.without(*dead))
            row["dies meanwhile"] = _times(flows, label, fails, least)
            row["seconds"] = row["dies meanwhile"] * least
            yield row


def _step(flows: Flows, number: int) -> Flows:
    """Returns one step alone."""
    own = flows[flows.step == number]
    return Flows(own.src, own.dst, own.bytes)


def _times(
    flows: Flows, label: str, fails: dict[Link, float], least: float, fabric: Fabric = FABRIC
) -> float:
    """Returns the time relative to the bound, the median over seeds for random schemes."""
    scheme, spraying = SCHEMES[label]
    how = replace(HOW, spraying=spraying, exclude_us=CONVERGENCE_SECONDS * 1e6 if fails else 0.0)
    if fails:
        how = replace(how, repath=not scheme_of(scheme).is_hashed)
    took = []
    for seed in range(SEEDS if scheme.startswith(CHANCE) else 1):
        dying = outages([flows], fabric, scheme, fails, CONVERGENCE_SECONDS, seed)
        sent = send(route(flows, fabric, scheme, seed), how, dying, seed)
        took.append(float(sent.seconds.max()) / least)
    return median(took)


def jobs() -> Iterator[dict[str, Any]]:
    """Runs two jobs of 128 ranks each on random hosts: experts in groups of 16, and the first step
    of halving-doubling, each planned alone."""
    order = Placement.shuffled(256, 1).host
    experts = Placement(order[:128]).placed(in_groups(all_to_all, 128, 16, 32 * MB))
    other = Placement(order[128:]).placed(_step(halving_doubling(128, 32 * MB), 0))
    for label, (scheme, spraying) in SCHEMES.items():
        how = replace(HOW, spraying=spraying)
        both = np.median(_ends([experts, other], scheme, how), 0)
        alone = [float(np.median(_ends([own], scheme, how))) for own in (experts, other)]
        least = [bounds(own, FABRIC).seconds for own in (experts, other)]
        yield {
            "scheme": label,
            "experts alone": alone[0] / least[0], "with": float(both[0]) / least[0],
            "half step alone": alone[1] / least[1], "with ": float(both[1]) / least[1],
        }  # fmt: skip


def _ends(flows: list[Flows], scheme: str, how: Transport) -> list[Any]:
    """Returns, for each seed, when each job ends."""
    return [
        simulate_jobs(routed(flows, FABRIC, scheme, seed), "packet", transport=how, seed=seed)
        for seed in range(SEEDS if scheme.startswith(CHANCE) else 1)
    ]


def queues() -> Iterator[dict[str, Any]]:
    """Measures a half step, direct exchange and eight to one with queues of 64 packets; windows do
    not shrink."""
    alone = replace(HOW, queue_bytes=64 * 9000, mark_bytes=1 << 40, slow_down=False)
    eight = Flows(np.arange(16, 24), 0, 4 * MB)
    for name, flows in (
        ("half step, 8 MB", _step(halving_doubling(256, 8 * MB), 0)),
        ("direct, 8 MB", _step(direct(256, 8 * MB), 0)), ("eight to one, 4 MB", eight),
    ):  # fmt: skip
        least = bounds(flows, FABRIC).seconds
        for label in ("ecmp", "coloured", "ethereal", "spray, random", "spray, rotating"):
            scheme, spraying = SCHEMES[label]
            row: dict[str, Any] = {"traffic": name, "scheme": label}
            for how, own in (
                ("timers", alone),
                ("selective", replace(alone, selective=True)),
                ("trimmed", replace(alone, trim=True)),
            ):
                sent = [
                    send(route(flows, FABRIC, scheme, seed), replace(own, spraying=spraying),
                         seed=seed)
                    for seed in range(SEEDS if scheme.startswith(CHANCE) else 1)
                ]  # fmt: skip
                row[how] = median(float(one.seconds.max()) / least for one in sent)
            yield row


if __name__ == "__main__":
    raise SystemExit(main())

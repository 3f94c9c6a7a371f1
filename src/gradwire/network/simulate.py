"""Computes how long routes take, by one of the engines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

import numpy as np

from gradwire.errors import NetworkError
from gradwire.network.checked import Reals
from gradwire.network.engines.flow import ends_of
from gradwire.network.engines.packet import send
from gradwire.network.engines.transport import Transport
from gradwire.network.jobs import together
from gradwire.network.outages import NONE, Outages
from gradwire.network.routes import Routes

Engine = Literal["static", "flow", "packet"]


def simulate(
    routes: Routes, engine: Engine = "static", *, tolerance: float = 0.0,
    transport: Transport | None = None, seed: int = 0, outages: Outages = NONE,
) -> float:  # fmt: skip
    """Returns the seconds until the last flow has arrived; steps run one after the other.

    static: in each step, the time of the link that is done last, if all flows start together,
    whatever their start_ns, and it is never idle: right if the fullest link is busy to the end,
    and the fastest engine.
    flow: the flows under way share links fairly (`engines.maxmin`); sprayed ones use all paths at
    once. tolerance: a part of a flow's duration; ends that are no further apart are found
    together, which is faster, and makes times too long by about that part, never too short.
    packet: every packet in every queue (`engines.packet`), as the transport says
    (`engines.transport.Transport`; None: its defaults), by random numbers of the seed.
    outages: links that die meanwhile, and routes around them; not for the engine static.

    Raises NetworkError for an unknown engine, and if something never arrives.
    """
    ends = simulate_jobs(
        [routes], engine, tolerance=tolerance, transport=transport, seed=seed, outages=outages
    )
    return float(ends[0])


def simulate_jobs(
    jobs: Sequence[Routes], engine: Engine = "flow", *, tolerance: float = 0.0,
    transport: Transport | None = None, seed: int = 0, outages: Outages = NONE,
) -> Reals:  # fmt: skip
    """Returns the second at which each job has its last byte, [jobs], all on the same links at
    once (`jobs.routed`). Arguments and errors are those of `simulate`. Raises NetworkError also
    for several jobs by the engine static, which has no time, and for jobs on different
    topologies."""
    for own in jobs:
        if not isinstance(own, Routes):
            raise NetworkError(
                f"what is simulated must be Routes; got {own!r:.80}. Route the flows first: "
                "gradwire.network.route(flows, topology)."
            )
    if not isinstance(transport, Transport | None):
        raise NetworkError(
            f"a transport must be a Transport; got {transport!r:.80}. Make one, of "
            "gradwire.network.engines.transport, or leave it out."
        )
    if engine not in get_args(Engine):
        known = ", ".join(f"'{name}'" for name in get_args(Engine))
        raise NetworkError(f"the engine must be one of {known}; got {engine!r}. Use 'static'.")
    if engine == "static" and len(jobs) == 1 and outages is NONE:
        return np.array([jobs[0].seconds])
    if engine == "static":
        raise NetworkError(
            "several jobs at once, and links that fail meanwhile, need an engine that simulates "
            "time; got 'static'. Use 'flow' or 'packet'."
        )
    if engine == "flow":
        return ends_of(jobs, tolerance, outages)
    sent, offset = send(jobs, transport, outages, seed), together(jobs).offset
    ends = np.zeros(len(offset) - 1)
    np.maximum.at(ends, np.searchsorted(offset, sent.pieces, side="right") - 1, sent.seconds)
    lost = int(np.isinf(sent.seconds).sum())
    if lost:
        raise NetworkError(
            f"every message must arrive; {lost} never do, as they were lost again and again. Use "
            "a longer queue, or routes around what failed."
        )
    return ends

"""How long routes take, by one of the engines."""

from __future__ import annotations

from typing import Literal, get_args

from gradwire.errors import NetworkError
from gradwire.network.engines.flow import transfers_of
from gradwire.network.engines.maxmin import run
from gradwire.network.engines.packet import send
from gradwire.network.engines.transport import Transport
from gradwire.network.routes import Routes

Engine = Literal["static", "flow", "packet"]


def simulate(
    routes: Routes, engine: Engine = "static", *, tolerance: float = 0.0,
    transport: Transport | None = None, seed: int = 0,
) -> float:  # fmt: skip
    """Seconds until the last flow has arrived; steps one after the other.

    static: of each step, the link that is done last, if all flows start together, whatever their
    start_ns, and it is never idle: right where the fullest link is busy to the end, and the
    fastest to tell.
    flow: links are shared fairly by the flows under way (`engines.maxmin`), who sprays uses all
    paths at once. tolerance: ends are found together that are so much of a flow's duration apart,
    as a part of it, which is that much off at most, and faster.
    packet: every packet in every queue (`engines.packet`), as the transport says, by random
    numbers of the seed.

    NetworkError for an engine that is not known, and if something never arrives.
    """
    if engine not in get_args(Engine):
        known = ", ".join(f"'{name}'" for name in get_args(Engine))
        raise NetworkError(f"an engine is one of {known}; got {engine!r}. Use 'static'.")
    if engine == "flow":
        return float(run(transfers_of(routes), tolerance).end.max()) if len(routes.flow) else 0.0
    if engine == "packet":
        sent = send(routes, transport, seed=seed)
        last = float(sent.seconds.max(initial=0.0))
        if last == float("inf"):
            raise NetworkError(
                f"every message arrives; {int((sent.seconds == last).sum())} never do: they were "
                "lost time and again. Use a longer queue, or routes around what failed."
            )
        return last
    return routes.seconds

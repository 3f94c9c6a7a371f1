"""What travels by way of owners: every rank sums a part, and tells all."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import replace
from typing import Any

from gradwire.local import Domains, Form, Stream, Streams
from gradwire.moves import AllGather, Exchange, Move
from gradwire.strategy import Context


def through_owners(ctx: Context) -> Generator[Move, Any, None]:
    """Pieces to their owners, summed and compressed again there, gathered by all. Two moves."""
    arrived = yield ctx.scatter()
    messages = yield AllGather(ctx.reduce(arrived))
    ctx.collect(messages)


def push_and_pull(
    ctx: Context, work: Streams, mine: Stream, domains: Domains, finite: bool = True,
    forms: tuple[Form, Form] = ("smallest", "smallest"),
) -> Generator[Move, Any, list[Stream] | None]:  # fmt: skip
    """Entries to their owners, merged and averaged there, the averages to all.

        counts ──► all      entries ══► owners      counts ──► all      averages ══► all

    Four moves, two of them a few bytes. An owner that received damage says so in the third.
    forms: of what goes to owners, and of what comes from them.
    Returns the averages by place in the flat vector, owner by owner; None if the step is spoiled.
    """
    mean = yield from push(ctx, work, mine, domains, finite, forms[0])
    if mean is None:
        return None
    return (yield from pull(ctx, work, mean, domains, forms[1]))


def push(
    ctx: Context, work: Streams, mine: Stream, domains: Domains, finite: bool = True,
    form: Form = "smallest",
) -> Generator[Move, Any, Stream | None]:  # fmt: skip
    """Two moves. The average of what this rank owns, by place in its domain; None if spoiled."""
    parts = domains.split(mine)
    counts = work.heard((yield work.announce(*(part.count for part in parts), finite=finite)))
    if counts is None:
        return None
    me, sizes = ctx.rank, domains.sizes
    others = [r for r in range(ctx.world) if r != me]
    arrived = yield Exchange(
        {r: work.coded(sizes[r], parts[r], form) for r in others},
        {r: work.coded_bytes(sizes[me], counts[r][me], mine, form) for r in others},
    )
    pieces = {r: (counts[r][me], arrived[r]) for r in others}
    return work.average(sizes[me], parts[me], pieces, form)


def pull(
    ctx: Context, work: Streams, mean: Stream, domains: Domains, form: Form = "smallest"
) -> Generator[Move, Any, list[Stream] | None]:
    """Two moves. What every rank owns, by place in the flat vector."""
    owned = work.heard((yield work.announce(mean.count)))
    if owned is None:
        return None
    return (yield from to_all(ctx, work, mean, [count for (count,) in owned], domains, form))


def to_all(
    ctx: Context, work: Streams, mean: Stream, owned: Sequence[int], domains: Domains,
    form: Form = "smallest",
) -> Generator[Move, Any, list[Stream]]:  # fmt: skip
    """One move. The same, once all know how many entries each rank has."""
    me, sizes = ctx.rank, domains.sizes
    others = [r for r in range(ctx.world) if r != me]
    arrived = yield Exchange(
        dict.fromkeys(others, work.coded(sizes[me], mean, form)),
        {r: work.coded_bytes(sizes[r], owned[r], mean, form) for r in others},
    )
    means = {r: work.read(sizes[r], owned[r], mean, arrived[r], form) for r in others}
    means[me] = mean
    return [replace(means[r], places=domains.flat(r, means[r].places)) for r in range(ctx.world)]

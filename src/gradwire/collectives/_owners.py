"""What travels by way of owners: every rank sums a part, and tells all."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor

from gradwire.moves import AllGather, Exchange, Move
from gradwire.strategy import Compressor, Context
from gradwire.streams import Domains, Form, Stream, Streams


def through_owners(ctx: Context, means: Compressor | None = None) -> Generator[Move, Any, None]:
    """Pieces to their owners, summed and compressed again there, by `means` if it is given,
    gathered by all. Two moves."""
    arrived = yield ctx.scatter(means)
    messages = yield AllGather(ctx.reduce(arrived))
    ctx.collect(messages)


def push_and_pull(
    ctx: Context, work: Streams, mine: Stream, domains: Domains, finite: bool = True,
    forms: tuple[Form, Form] = ("smallest", "smallest"),
) -> Generator[Move, Any, list[Stream] | None]:  # fmt: skip
    """Entries to their owners, merged and averaged there, the averages to all.

        sizes ──► all      entries ══► owners      sizes ──► all      averages ══► all

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
    me, sizes = ctx.rank, domains.sizes
    others = [r for r in range(ctx.world) if r != me]
    parts = domains.split(mine)
    messages = {r: work.packed(sizes[r], parts[r], form) for r in others}
    sent = (messages[r].numel() if r != me else 0 for r in range(ctx.world))
    told = work.heard((yield work.announce(*sent, finite=finite)), most_bytes(work, mine, domains))
    if told is None:
        return None
    arrived = yield Exchange(messages, {r: told[r][me] for r in others})
    return work.average(sizes[me], parts[me], arrived, form)


def most_bytes(work: Streams, like: Stream, domains: Domains) -> int:
    """Bytes that no message to or from an owner exceeds."""
    return work.most_packed_bytes(max(domains.sizes), like)


def pull(
    ctx: Context, work: Streams, mean: Stream, domains: Domains, form: Form = "smallest"
) -> Generator[Move, Any, list[Stream] | None]:
    """Two moves. What every rank owns, by place in the flat vector."""
    message = work.packed(domains.sizes[ctx.rank], mean, form)
    told = work.heard((yield work.announce(message.numel())), most_bytes(work, mean, domains))
    if told is None:
        return None
    return (yield from to_all(ctx, work, mean, message, [row[0] for row in told], domains, form))


def to_all(
    ctx: Context, work: Streams, mean: Stream, message: Tensor, told: Sequence[int],
    domains: Domains, form: Form = "smallest",
) -> Generator[Move, Any, list[Stream]]:  # fmt: skip
    """One move. The same, once all know how many bytes each rank's message has."""
    others = [r for r in range(ctx.world) if r != ctx.rank]
    arrived = yield Exchange(dict.fromkeys(others, message), {r: told[r] for r in others})
    means = {r: work.unpacked(domains.sizes[r], mean, arrived[r], form) for r in others}
    means[ctx.rank] = mean
    return [replace(means[r], places=domains.flat(r, means[r].places)) for r in range(ctx.world)]

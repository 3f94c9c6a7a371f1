"""Entries, or rows, summed by owners: every rank sums a part, and sends the averages to all.

         push                    pull
entries ──────► owners: averages ─────► all
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from gradwire.errors import PayloadError
from gradwire.moves import Exchange
from gradwire.strategy import Context, Rounds
from gradwire.streams.stream import Domains, Form, Stream
from gradwire.streams.told import from_rank


def gather_streams(ctx: Context, mine: Stream) -> Rounds[Stream | None]:
    """Two moves. Sends all streams to all ranks, which average them in rank order. None if
    spoiled."""
    message, others = mine.packed(), [r for r in range(ctx.world) if r != ctx.rank]
    told = yield from ctx.streams.tell(message.numel(), most=mine.most_packed_bytes())
    if told is None:
        return None
    arrived = yield Exchange.to_all(message, {r: told[r][0] for r in others})
    given = {ctx.rank: mine} | {r: from_rank(r, mine.unpacked, arrived[r]) for r in others}
    first, *rest = (given[r] for r in range(ctx.world))
    return first.mean_with(rest, ctx.streams.mean_dtype)


def push_and_pull(
    ctx: Context, mine: Stream, domains: Domains, finite: bool = True,
    forms: tuple[Form, Form] = ("smallest", "smallest"),
) -> Rounds[list[Stream] | None]:  # fmt: skip
    """Sends entries to their owners, which merge and average them and send the averages to all.

        sizes ──► all      entries ══► owners      sizes ──► all      averages ══► all

    Four moves, two of them a few bytes. An owner that received damage says so in the third.
    forms: how places are packed on the way to owners, and on the way back.
    Returns the averages by place in the whole, owner by owner; None if the step is spoiled.
    """
    mean = yield from push(ctx, mine, domains, finite, forms[0])
    if mean is None:
        return None
    return (yield from pull(ctx, mean, domains, forms[1]))


def push(
    ctx: Context, mine: Stream, domains: Domains, finite: bool = True, form: Form = "smallest"
) -> Rounds[Stream | None]:
    """Two moves. Returns the average of what this rank owns, by place in its domain; None if the
    step is spoiled."""
    me, parts = ctx.rank, mine.split(domains)
    own = parts.pop(me)
    others = [r for r in range(ctx.world) if r != me]
    messages = {r: part.packed(form) for r, part in zip(others, parts)}
    sent = (messages[r].numel() if r != me else 0 for r in range(ctx.world))
    most = mine.most_packed_bytes(domains)
    told = yield from ctx.streams.tell(*sent, most=most, finite=finite)
    if told is None:
        return None
    arrived = yield Exchange(messages, {r: told[r][me] for r in others})
    try:
        given = {me: own} | {r: from_rank(r, own.unpacked, arrived[r], form) for r in others}
    except PayloadError as error:
        ctx.streams.damage = error
        return own[:0]
    in_order = [given[r] for r in range(ctx.world)]
    return in_order[0].mean_with(in_order[1:], ctx.streams.mean_dtype)


def pull(
    ctx: Context, mean: Stream, domains: Domains, form: Form = "smallest", finite: bool = True
) -> Rounds[list[Stream] | None]:
    """Two moves. Returns the averages of every owner, by place in the whole; None if the step is
    spoiled."""
    message, most = mean.packed(form), mean.most_packed_bytes(domains)
    told = yield from ctx.streams.tell(message.numel(), most=most, finite=finite)
    if told is None:
        return None
    return (yield from to_all(ctx, mean, message, [row[0] for row in told], domains, form))


def to_all(
    ctx: Context, mean: Stream, message: Tensor, told: Sequence[int], domains: Domains,
    form: Form = "smallest",
) -> Rounds[list[Stream]]:  # fmt: skip
    """One move. Does what `pull` does once all ranks know the bytes of each rank's message."""
    others = [r for r in range(ctx.world) if r != ctx.rank]
    arrived = yield Exchange.to_all(message, {r: told[r] for r in others})
    means = {r: from_rank(r, mean.over(domains, r).unpacked, arrived[r], form) for r in others}
    means[ctx.rank] = mean
    return [means[r].flat(domains, r) for r in range(ctx.world)]

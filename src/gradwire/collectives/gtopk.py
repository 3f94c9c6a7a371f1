"""gtopk: sums residuals at a few places, the same for all ranks. 7k words, for any n."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, TypeAlias

import torch
from torch import Tensor

from gradwire import kernels
from gradwire.collectives._butterfly import Butterfly
from gradwire.errors import PayloadError, StrategyError
from gradwire.moves import AllGather, AllReduce, Exchange
from gradwire.strategy import Collective, Context, Evidence, Member, Rounds
from gradwire.streams import Stream, from_rank, sealed, unsealed, whole

_VARIANTS = ("shares", "butterfly", "tree")


@dataclass(frozen=True)
class GTopK(Collective):
    """Sends the same few places on all ranks, chosen among each rank's k largest.

    "shares": each rank names its breadth·k/n largest. At all named places, at most breadth·k, the
    whole residuals of all ranks are summed: entries that were selected, and values that were not.
    Entries at other places go back to the residual. So an element stays unsent as long as with an
    `allgather` of k entries each, whatever the number of ranks, and no merge cuts entries. Sends
    places once, and 2(n-1)/n fp32 values for each. Sums in the backend's order.
    "butterfly": two lists of k become one, shared places added, the k largest kept, ties to the
    lower place. Ranks pair up log2(n) times, both merge alike, so all end with the same k entries
    and nothing is broadcast. Each rank follows its own entries: one that a merge cut on its way
    goes back to that rank's residual, so that no gradient is lost; residuals of other ranks at
    the k places are not sent, and get n times as old. 2k·log2(n) words.
    "tree": as published: up a binomial tree to rank 0 and down again, 4k·log2(n) words. Entries
    that are not in the result go back to the residual; those that were cut at a place which other
    ranks brought into the result are lost.
    Any number of ranks. Places are chosen for each parameter by itself, so grouping changes
    nothing.
    Source: Shi et al. 2019, "A Distributed Synchronous SGD Algorithm with Global Top-k
    Sparsification for Low Bandwidth Networks", algorithms 2 to 4; that all ranks send the same
    places: Chen et al. 2020, "ScaleCom", where one rank in turn names all of them.
    """

    variant: Literal["shares", "butterfly", "tree"] = "shares"
    breadth: float = 3.0
    name: ClassVar[str] = "gtopk"
    sizes: ClassVar = "expected"
    needs: ClassVar[tuple[str, ...]] = ("entries", "fixed")
    selects: ClassVar[bool] = True
    evidence: ClassVar[tuple[Evidence, ...]] = (
        Evidence(
            "topk(0.01)+ef | gtopk", "sgd", True, "language-small", "gtopk", warmup=0.025,
            densities=(0.25, 0.0625, 0.015625, 0.004),
        ),
        Evidence(
            "topk(0.01)+ef | gtopk", "sgdm", True, "digits", "gtopk", warmup=0.05,
            densities=(0.25, 0.0625, 0.015625, 0.004),
        ),
        Evidence(
            'topk(0.01)+ef | gtopk(variant="butterfly")', "sgd", False, "language-small",
            "gtopk-butterfly",
        ),
    )  # fmt: skip

    def __post_init__(self) -> None:
        if self.variant not in _VARIANTS:
            raise StrategyError(
                f"gtopk's variant must be one of {', '.join(_VARIANTS)}; got {self.variant!r}. "
                'Use gtopk, or gtopk(variant="tree").'
            )
        if not isinstance(self.breadth, int | float) or not 1 <= self.breadth < math.inf:
            raise StrategyError(
                "gtopk's breadth must be the number of indices in the result for each one that a "
                f"rank selects, at least 1; got {self.breadth!r}. Use gtopk, or for example "
                "gtopk(breadth=4)."
            )

    def is_as_fine_as(self, other: Member) -> bool:
        return (
            isinstance(other, GTopK)
            and self.variant == other.variant
            and self.breadth >= other.breadth
        )

    def rounds(self, ctx: Context) -> Rounds[None]:
        work = ctx.streams
        entries = work.entries()
        if (yield from work.tell(entries.count)) is None:
            return
        if self.variant == "shares":
            yield from _shares(ctx, entries, self.breadth)
            return
        mine = replace(entries, values=entries.values.float())
        merge = _tree if self.variant == "tree" else _butterfly
        result, kept = yield from merge(ctx, mine)
        work.give_back(mine[~kept])
        means = kernels.quotient(result.values.float(), float(ctx.world))
        work.write([replace(result, values=means.to(work.mean_dtype))])


def _shares(ctx: Context, mine: Stream, breadth: float) -> Rounds[None]:
    work = ctx.streams
    places = (yield from _named(ctx, mine, breadth)).places
    sent = mine.among(replace(mine, places=places))
    left = replace(mine, places=places, values=mine.values.new_zeros(places.numel()))
    left = replace(left, values=work.waiting(left))
    total = whole((yield AllReduce(left.values + mine[sent].at(places))), places.numel())
    work.give_back(mine[~sent])
    work.give_back(replace(left, values=-left.values))  # it was sent
    means = kernels.quotient(total, float(ctx.world))
    work.write([replace(left, values=means.to(work.mean_dtype))])


def _named(ctx: Context, mine: Stream, breadth: float) -> Rounds[Stream]:
    """Returns the places that any rank named, alike on all ranks, for the next move's size."""
    counts = [min(k, math.ceil(breadth * k / ctx.world)) for k in ctx.streams.counts]
    own = mine.largest(ctx.streams.parameters, counts)
    bare = replace(own, values=own.values.new_empty(own.count, 0))
    messages = yield AllGather(sealed(bare.coded()))
    lists = [
        from_rank(r, bare.read, message)
        for r, message in enumerate(unsealed(messages, bare.coded_bytes(), range(ctx.world)))
    ]
    one = torch.ones(own.count, dtype=torch.float32, device="cpu")
    first, *others = (replace(named, values=one) for named in lists)
    return first.mean_with(others, torch.float32)


Merged: TypeAlias = "Rounds[tuple[Stream, Tensor]]"
"""Rounds that return the result, and a mask of this rank's own entries that are in it."""


def _butterfly(ctx: Context, mine: Stream) -> Merged:
    place = Butterfly(ctx.rank, ctx.world)
    if place.is_folded:
        return (yield from _folded(ctx, mine, place))
    group, mine_kept = mine, torch.ones(mine.count, dtype=torch.bool, device=mine.places.device)
    guest = theirs_kept = None
    if place.guest is not None:
        arrived = yield _from(place.guest, mine)
        guest = from_rank(place.guest, mine.read, arrived[place.guest])
        theirs_kept = torch.ones_like(mine_kept)
        group = _top(ctx, mine, guest)
        mine_kept &= mine.among(group)
        theirs_kept &= guest.among(group)
    else:
        yield Exchange({}, {})
    for partner in place.partners:
        arrived = yield Exchange({partner: group.coded()}, {partner: group.coded_bytes()})
        group = _top(ctx, group, from_rank(partner, group.read, arrived[partner]))
        mine_kept &= mine.among(group)
        if guest is not None and theirs_kept is not None:
            theirs_kept &= guest.among(group)
    if place.guest is None or theirs_kept is None:
        yield Exchange({}, {})
    else:
        news = torch.cat([group.coded(), kernels.pack_bits(theirs_kept)])
        yield Exchange({place.guest: news}, {})
    return group, mine_kept


def _folded(ctx: Context, mine: Stream, place: Butterfly) -> Merged:
    yield Exchange({place.host: mine.coded()}, {})
    for _ in place.partners:
        yield Exchange({}, {})
    size = mine.coded_bytes()
    arrived = yield Exchange({}, {place.host: size + -(-mine.count // 8)})
    news = whole(arrived[place.host], size + -(-mine.count // 8))
    result = from_rank(place.host, mine.read, news[:size])
    result.check_counts(ctx.streams.parameters, ctx.streams.counts)
    kept = kernels.unpack_bits(news[size:], mine.count)
    if not bool(mine.among(result)[kept].all()):
        raise PayloadError(
            "every entry that is reported as kept must be in the result; one of this rank's is "
            "not. The message is damaged: run `gradwire doctor`."
        )
    return result, kept


def _tree(ctx: Context, mine: Stream) -> Merged:
    rank, world, group = ctx.rank, ctx.world, mine
    steps = [1 << j for j in range((world - 1).bit_length())]
    for step in steps:
        if rank % (2 * step) == step:
            yield Exchange({rank - step: group.coded()}, {})
        elif rank % (2 * step) == 0 and rank + step < world:
            arrived = yield _from(rank + step, mine)
            group = _top(ctx, group, from_rank(rank + step, mine.read, arrived[rank + step]))
        else:
            yield Exchange({}, {})
    for step in reversed(steps):
        if rank % (2 * step) == step:
            arrived = yield _from(rank - step, mine)
            group = from_rank(rank - step, mine.read, arrived[rank - step])
            group.check_counts(ctx.streams.parameters, ctx.streams.counts)
        elif rank % (2 * step) == 0 and rank + step < world:
            yield Exchange({rank + step: group.coded()}, {})
        else:
            yield Exchange({}, {})
    return group, mine.among(group)


def _from(rank: int, like: Stream) -> Exchange:
    return Exchange({}, {rank: like.coded_bytes()})


def _top(ctx: Context, one: Stream, other: Stream) -> Stream:
    """Returns the largest of the sum, as many of each parameter as this rank sends."""
    return one.top(other, ctx.streams.parameters, ctx.streams.counts)

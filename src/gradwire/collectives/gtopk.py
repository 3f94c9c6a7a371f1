"""gtopk: the k largest of the sum, merged on the way. 2k·log2(n) words, whatever is sent."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal, TypeAlias

import torch
from torch import Tensor

from gradwire import kernels
from gradwire.collectives._butterfly import Butterfly
from gradwire.errors import PayloadError, StrategyError
from gradwire.moves import Exchange
from gradwire.strategy import Collective, Context, Evidence, Rounds
from gradwire.streams import Stream, whole

_VARIANTS = ("butterfly", "tree")


@dataclass(frozen=True)
class GTopK(Collective):
    """Two lists of k become one: shared places added, the k largest kept, ties to the lower place.

    "butterfly": ranks pair up log2(n) times, both merge alike, so all end with the same k entries
    and nothing is broadcast. Each rank follows its own entries: one that a merge cut on its way
    goes back to that rank's residual, so that no gradient is lost. Any number of ranks: those
    beyond the largest power of two hand over before, and get the result after.
    "tree": as published: up a binomial tree to rank 0 and down again, 4k·log2(n) words; back to
    the residual goes what is not in the result, and what was cut under a place that others brought
    into it is lost.
    Each parameter keeps as many entries as its compressor selects, so grouping changes nothing.
    Source: Shi et al. 2019, "A Distributed Synchronous SGD Algorithm with Global Top-k
    Sparsification for Low Bandwidth Networks", algorithms 2 to 4.
    """

    variant: Literal["butterfly", "tree"] = "butterfly"
    name: ClassVar[str] = "gtopk"
    sizes: ClassVar = "expected"
    needs: ClassVar[tuple[str, ...]] = ("entries", "fixed")
    selects: ClassVar[bool] = True
    evidence: ClassVar[tuple[Evidence, ...]] = (
        Evidence("topk(0.01)+ef | gtopk", "sgd", False, "language-small", "gtopk"),
    )

    def __post_init__(self) -> None:
        if self.variant not in _VARIANTS:
            raise StrategyError(
                f"gtopk's variant is one of {', '.join(_VARIANTS)}; got {self.variant!r}. "
                'Use gtopk, or gtopk(variant="tree").'
            )

    def rounds(self, ctx: Context) -> Rounds[None]:
        work = ctx.streams
        entries = work.entries()
        mine = replace(entries, values=entries.values.float())
        if (yield from work.tell(mine.count)) is None:
            return
        merge = _tree if self.variant == "tree" else _butterfly
        result, kept = yield from merge(ctx, mine)
        work.give_back(mine[~kept])
        means = kernels.quotient(result.values.float(), float(ctx.world))
        work.write([replace(result, values=means.to(work.mean_dtype))])


Merged: TypeAlias = "Rounds[tuple[Stream, Tensor]]"
"""The result, and which of this rank's own entries are in it."""


def _butterfly(ctx: Context, mine: Stream) -> Merged:
    place = Butterfly(ctx.rank, ctx.world)
    if place.is_folded:
        return (yield from _folded(ctx, mine, place))
    group, mine_kept = mine, torch.ones(mine.count, dtype=torch.bool, device=mine.places.device)
    guest = theirs_kept = None
    if place.guest is not None:
        arrived = yield _from(place.guest, mine)
        guest = mine.read(arrived[place.guest])
        theirs_kept = torch.ones_like(mine_kept)
        group = _top(ctx, mine, guest)
        mine_kept &= mine.among(group)
        theirs_kept &= guest.among(group)
    else:
        yield Exchange({}, {})
    for partner in place.partners:
        arrived = yield Exchange({partner: group.coded()}, {partner: group.coded_bytes()})
        group = _top(ctx, group, group.read(arrived[partner]))
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
    result = mine.read(news[:size])
    result.check_counts(ctx.streams.parameters, ctx.streams.counts)
    kept = kernels.unpack_bits(news[size:], mine.count)
    if not bool(mine.among(result)[kept].all()):
        raise PayloadError(
            "what was kept of a rank's entries is in the result; what arrived says otherwise. "
            "The message is damaged: run `gradwire doctor`."
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
            group = _top(ctx, group, mine.read(arrived[rank + step]))
        else:
            yield Exchange({}, {})
    for step in reversed(steps):
        if rank % (2 * step) == step:
            arrived = yield _from(rank - step, mine)
            group = mine.read(arrived[rank - step])
            group.check_counts(ctx.streams.parameters, ctx.streams.counts)
        elif rank % (2 * step) == 0 and rank + step < world:
            yield Exchange({rank + step: group.coded()}, {})
        else:
            yield Exchange({}, {})
    return group, mine.among(group)


def _from(rank: int, like: Stream) -> Exchange:
    return Exchange({}, {rank: like.coded_bytes()})


def _top(ctx: Context, one: Stream, other: Stream) -> Stream:
    """The largest of the sum, of each parameter as many as this rank sends."""
    return one.top(other, ctx.streams.parameters, ctx.streams.counts)

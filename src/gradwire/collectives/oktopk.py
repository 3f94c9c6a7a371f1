"""oktopk: the largest entries of the sum, by owners of balanced regions. At most 6k words."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from gradwire.local import THRESHOLD
from gradwire.moves import Exchange
from gradwire.strategy import Collective, Context, Rounds
from gradwire.streams import Domains, Ranges, Stream, whole
from gradwire.streams.owners import pull, push, to_all

_BALANCED_FOR = 64  # steps
_THRESHOLD_FOR = 32
_FEW, _MANY, _CHANCE = 0.5, 2.0, 4  # the last is a tolerance that only matters for small k

Masks = list[Tensor]


@dataclass(frozen=True)
class OkTopk(Collective):
    """Owners of regions sum entries; sums above a threshold go to all, the rest goes back.

    Regions are contiguous, with ends that balance the work by the average of the ranks' entries;
    they are computed anew every 64 steps. Each parameter has its own threshold, so grouping
    changes nothing: the k-th largest magnitude of the sum, computed every 32 steps and used in
    between, while k/2 to 2k entries reach it (k: what the compressor selects), give or take four
    but at least one; otherwise it is computed anew in the same step. Entries that are sent and are
    not in the result go back to the residual. Sums in rank order. Any number of ranks.
    Sends 2k(n-1)/n words to owners and at most 4k(n-1)/n to all on average over the ranks, with a
    new threshold about k(n-1)/n more; coded places make it less. Four moves; with a new threshold
    eight, with new regions one more. State: one number per parameter.
    Left out: owners with many large entries do not pass some to others before they send them.
    Source: Li and Hoefler 2022, "Near-Optimal Sparse Allreduce for Distributed Deep Learning",
    algorithms 1 and 2; its code adjusts a threshold that has drifted, this one computes it anew.
    """

    name: ClassVar[str] = "oktopk"
    sizes: ClassVar = "measured"
    needs: ClassVar[tuple[str, ...]] = ("entries", "fixed")
    selects: ClassVar[bool] = True

    def rounds(self, ctx: Context) -> Rounds[None]:
        work = ctx.streams
        mine = work.entries()
        regions = yield from _regions(ctx, mine)
        if regions is None:
            return
        mean = yield from push(ctx, mine, regions)
        if mean is None:
            return
        means = yield from _large(ctx, mean, regions)
        if means is None:
            return
        result = replace(
            mine, places=torch.cat([part.places for part in means]),
            values=torch.cat([part.values for part in means]),
        )  # fmt: skip
        work.give_back(mine[~mine.among(result)])
        work.write([result])


def _regions(ctx: Context, mine: Stream) -> Rounds[Domains | None]:
    """Returns the regions. Every 64 steps, one move averages the ends that each rank prefers."""
    work = ctx.streams
    bounds: Sequence[int] | None = ctx.memory.get("regions")
    if bounds is None or ctx.step % _BALANCED_FOR == 0:
        shares = (mine.count * r // ctx.world for r in range(1, ctx.world))
        ends = [int(mine.places[share]) if mine.count else 0 for share in shares]
        told = yield from work.tell(*ends)
        if told is None:
            return None
        bounds = [0, *sorted(sum(row) // ctx.world for row in zip(*told)), work.size]
        ctx.memory["regions"] = bounds
    return Ranges(bounds)


def _large(ctx: Context, mean: Stream, regions: Domains) -> Rounds[list[Stream] | None]:
    """Returns the entries that reach the thresholds, by owner; computes those that are due."""
    work = ctx.streams
    flat = mean.flat(regions, ctx.rank)
    owned = [part.values.float().abs() for part in flat.split(work.parameters)]
    known = work.remembered[THRESHOLD]
    reached = [_reach(own, least) for own, least in zip(owned, known)]
    due = [k > 0 for k in work.counts]
    if ctx.step % _THRESHOLD_FOR != 0:
        found = [int(mask.sum()) for mask in reached]
        asks = [int(d and least == 0) for d, least in zip(due, known)]
        kept = _kept(mean, reached)
        message, most = kept.packed(), kept.most_packed_bytes(regions)
        told = yield from work.tell(message.numel(), *found, *asks, most=most)
        if told is None:
            return None
        due = _drifted([row[1:] for row in told], work.counts)
        if not any(due):
            sizes = [row[0] for row in told]
            return (yield from to_all(ctx, kept, message, sizes, regions))
    if not any(due):  # no parameter has elements
        return (yield from pull(ctx, mean, regions))
    fresh = yield from _thresholds(ctx, {i: owned[i] for i, d in enumerate(due) if d})
    if fresh is None:
        return None
    known = [fresh.get(i, least) for i, least in enumerate(known)]
    reached = [_reach(own, least) for own, least in zip(owned, known)]
    work.remembered[THRESHOLD] = [least if math.isfinite(least) else 0.0 for least in known]
    return (yield from pull(ctx, _kept(mean, reached), regions))


def _reach(magnitudes: Tensor, least: float) -> Tensor:
    """Returns which magnitudes reach a threshold. NaN does, so that it is not overlooked."""
    return ~(magnitudes < least)


def _kept(mean: Stream, reached: Masks) -> Stream:
    return mean[torch.cat(reached)]


def _drifted(told: Sequence[Sequence[int]], counts: Sequence[int]) -> list[bool]:
    """Returns, for each parameter, whether some rank has no threshold, or too few or too many
    entries reach it."""
    total = [sum(row) for row in zip(*told)]
    work = zip(total, total[len(counts) :], counts)
    return [
        asks > 0 or not max(_FEW * k - _CHANCE, min(k, 1)) <= found <= _MANY * k + _CHANCE
        for found, asks, k in work
    ]


def _thresholds(ctx: Context, owned: Mapping[int, Tensor]) -> Rounds[dict[int, float] | None]:
    """Returns the k-th largest magnitude of each parameter; if fewer the smallest, if none 0.

    Each owner sends its k/n-th largest to all. The n owners have at least k entries that reach the
    least of these, so only such entries can be the k-th. Of those, each owner sends its k largest.
    Three moves.
    """
    others = [r for r in range(ctx.world) if r != ctx.rank]
    ks = [ctx.streams.counts[i] for i in owned]
    mine = torch.stack([_at(m, -(-k // ctx.world)) for m, k in zip(owned.values(), ks)])
    arrived = yield _to_all_alike(mine, dict.fromkeys(others, len(ks)))
    theirs = [_read(arrived[r], len(ks)) for r in others]
    least = torch.stack([mine, *theirs]).amin(0).tolist()
    best = [_largest(m[_reach(m, at)], k) for m, k, at in zip(owned.values(), ks, least)]
    told = yield from ctx.streams.tell(*(part.numel() for part in best))
    if told is None:
        return None
    arrived = yield _to_all_alike(torch.cat(best), {r: sum(told[r]) for r in others})
    by_rank = [torch.split(_read(arrived[r], sum(told[r])), told[r]) for r in others]
    together = [torch.cat(parts) for parts in zip(best, *by_rank)]
    return {i: float(_at(m, min(k, m.numel()))) for i, m, k in zip(owned, together, ks)}


def _to_all_alike(numbers: Tensor, counts: Mapping[int, int]) -> Exchange:
    """Returns a move of fp32 numbers to every other rank; counts: the length of theirs."""
    message = numbers.view(torch.uint8)
    return Exchange.to_all(message, {r: 4 * n for r, n in counts.items()})


def _read(message: Tensor, count: int) -> Tensor:
    return whole(message, 4 * count).view(torch.float32)


def _largest(magnitudes: Tensor, k: int) -> Tensor:
    """Returns the k largest, descending; all, if there are fewer."""
    return torch.topk(magnitudes, min(k, magnitudes.numel())).values


def _at(magnitudes: Tensor, k: int) -> Tensor:
    """Returns the k-th largest; 0 if there are fewer, or k is 0."""
    if not 0 < k <= magnitudes.numel():
        return magnitudes.new_zeros(())
    return _largest(magnitudes, k)[-1]

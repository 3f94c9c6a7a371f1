"""What each move costs on its own, by dtype and group: for planning clusters like this one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial

import torch
from torch import Tensor

from gradwire.groups import Group, Machines
from gradwire.moves import (
    AllGather,
    AllReduce,
    AllToAll,
    Broadcast,
    Exchange,
    Gather,
    Move,
    Reduce,
    ReduceScatter,
)
from gradwire.planner.fit import Fit, fit
from gradwire.runtime.torch_dist import Performer
from gradwire.tuning.agree import of_ranks
from gradwire.tuning.clock import now

SIZES = (1 << 10, 1 << 13, 1 << 16, 1 << 18, 1 << 20, 1 << 22, 1 << 24)
"""Bytes of one rank's data, by default."""
_WARM_UP, _RUNS = 2, 7
_PATIENCE_SECONDS = 0.4  # of a run: nothing larger is tried
_DTYPES = ("float32", "bfloat16")  # of what adds up on the wire

Make = Callable[[int, int, int, Group | None], Move]
"""A move of so many bytes, by one of so many ranks, of a group."""


def measure(
    performer: Performer, machines: Machines | None, device: torch.device, largest_bytes: int
) -> Mapping[str, Fit]:
    """Measure, by "all_reduce float32 world", seconds on the slowest rank against bytes of one
    rank's data.

    Collective. Groups "node" and "cross" where the plan that is attached knows machines.
    """
    made = dict[str, Fit]()
    for where, group in _groups(performer, machines).items():
        n = len(group.ranks) if group else performer.world
        rank = group.ranks.index(performer.rank) if group else performer.rank
        for name, make in _moves(device):
            measured = list[tuple[int, list[float]]]()
            for size in (s for s in SIZES if s <= max(largest_bytes, SIZES[0])):
                seconds = _runs(performer, partial(make, size, n, rank, group), device)
                measured.append((size, seconds))
                if min(seconds) > _PATIENCE_SECONDS:
                    break
            made[f"{name} {where}"] = fit(measured)
    return made


def _groups(performer: Performer, machines: Machines | None) -> dict[str, Group | None]:
    found: dict[str, Group | None] = {"world": None}
    if machines is not None and 1 < machines.per_node < machines.world:
        found |= {"node": machines.node(performer.rank), "cross": machines.cross(performer.rank)}
    return found


def _moves(device: torch.device) -> Iterator[tuple[str, Make]]:
    def bytes_(size: int) -> Tensor:
        return torch.zeros(size, dtype=torch.uint8, device=device)

    for name in _DTYPES:
        dtype: torch.dtype = getattr(torch, name)

        def numbers(size: int, dtype: torch.dtype = dtype) -> Tensor:
            return torch.zeros(size // dtype.itemsize, dtype=dtype, device=device)

        yield f"all_reduce {name}", lambda s, n, r, g, x=numbers: AllReduce(x(s), group=g)  # type: ignore[misc]
        yield f"reduce {name}", lambda s, n, r, g, x=numbers: Reduce(x(s), 0, r, group=g)  # type: ignore[misc]
        yield (
            f"reduce_scatter {name}",
            lambda s, n, r, g, x=numbers: ReduceScatter(  # type: ignore[misc]
                x(s), _even(x(s).numel(), n), r, group=g
            ),
        )
    yield "all_gather uint8", lambda s, n, r, g: AllGather(bytes_(s), group=g)
    yield "gather uint8", lambda s, n, r, g: Gather(bytes_(s), 0, r, group=g)
    yield "broadcast uint8", lambda s, n, r, g: Broadcast(bytes_(s), 0, r, group=g)
    yield (
        "all_to_all uint8",
        lambda s, n, r, g: AllToAll(
            bytes_(s), _even(s, n), (_even(s, n)[r],) * n, r, alike=True, group=g
        ),
    )
    yield "exchange uint8", lambda s, n, r, g: _swap(bytes_(s), n, r, g)


def _swap(data: Tensor, n: int, rank: int, group: Group | None) -> Exchange:
    """Neighbours in pairs, as a butterfly's first round; who has none is idle."""
    peer = rank ^ 1
    if peer >= n:
        return Exchange({}, {}, group=group)
    return Exchange({peer: data}, {peer: data.numel()}, group=group)


def _even(total: int, n: int) -> tuple[int, ...]:
    return tuple(total // n + (r < total % n) for r in range(n))


def _runs(performer: Performer, make: Callable[[], Move], device: torch.device) -> list[float]:
    mine = list[float]()
    for _ in range(_WARM_UP + _RUNS):
        move = make()
        performer.perform(AllGather(torch.zeros(8, device=device)), "the probe")
        began = now(device)
        performer.perform(move, "the probe")
        mine.append(now(device) - began)
    slowest: list[float] = of_ranks(performer, device, mine[_WARM_UP:]).amax(0).tolist()
    return slowest

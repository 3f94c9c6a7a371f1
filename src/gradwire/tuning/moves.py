"""What each move costs on its own, by dtype and group: for planning clusters like this one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch

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
_MEASURED: tuple[tuple[type[Move], str], ...] = (
    *((kind, "float32") for kind in (AllReduce, Reduce, ReduceScatter)),
    *((kind, "bfloat16") for kind in (AllReduce, Reduce, ReduceScatter)),
    *((kind, "uint8") for kind in (AllGather, Gather, Broadcast, AllToAll, Exchange)),
)
"""Each kind, and the dtypes: of what adds up on the wire two."""


def measure(
    performer: Performer, machines: Machines | None, device: torch.device, largest_bytes: int
) -> Mapping[str, Fit]:
    """Measure, by "all_reduce float32 world", seconds on the slowest rank against bytes of one
    rank's data.

    Collective. Groups "node" and "cross" where the plan that is attached knows machines.
    """
    made = dict[str, Fit]()
    for where, group in _groups(performer, machines).items():
        for kind, name in _MEASURED:
            measured = list[tuple[int, list[float]]]()
            for size in (s for s in SIZES if s <= max(largest_bytes, SIZES[0])):
                make = partial(_move, kind, getattr(torch, name), size, performer, group, device)
                seconds = _runs(performer, make, device)
                measured.append((size, seconds))
                if min(seconds) > _PATIENCE_SECONDS:
                    break
            made[f"{kind.name} {name} {where}"] = fit(measured)
    return made


def _groups(performer: Performer, machines: Machines | None) -> dict[str, Group | None]:
    found: dict[str, Group | None] = {"world": None}
    if machines is not None and 1 < machines.per_node < machines.world:
        found |= {"node": machines.node(performer.rank), "cross": machines.cross(performer.rank)}
    return found


def _move(
    kind: Any, dtype: torch.dtype, size: int, performer: Performer, group: Group | None,
    device: torch.device,
) -> Move:  # fmt: skip
    """Of so many bytes."""
    data = torch.zeros(size // dtype.itemsize, dtype=dtype, device=device)
    n = len(group.ranks) if group else performer.world
    rank = group.ranks.index(performer.rank) if group else performer.rank
    parts = tuple(data.numel() // n + (r < data.numel() % n) for r in range(n))
    if kind is ReduceScatter:
        return ReduceScatter(data, parts, rank, group=group)
    if kind is AllToAll:
        return AllToAll(data, parts, (parts[rank],) * n, rank, alike=True, group=group)
    if kind is Exchange:  # neighbours in pairs, as a butterfly's first round; who has none is idle
        peers = [peer for peer in (rank ^ 1,) if peer < n]
        sizes = dict.fromkeys(peers, data.numel())
        return Exchange(dict.fromkeys(peers, data), sizes, group=group)
    rooted = (0, rank) if kind in (Reduce, Gather, Broadcast) else ()
    move: Move = kind(data, *rooted, group=group)
    return move


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

"""How far a rank's clock is ahead of the first rank's, and how far away ranks are.

    rank 0  ──enter──────────────leave──      nobody leaves an all-gather before
    rank r  ─────────enter───────leave──      everybody has entered it

With each time in seconds of the rank's own clock, ``enter of r - leave of 0 <= ahead <= leave of
r - enter of 0``. Each all-gather gives new bounds. The answer is the middle of the tightest ones,
and half their distance is the error. This needs only an all-gather of the backend, and as many
moves for a thousand ranks as for two. Cristian 1989 bounds a clock in the same way by one request
and its answer.
"""

from __future__ import annotations

from time import perf_counter
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

ROUNDS = 24
_PINGS = 3


class Ahead(NamedTuple):
    """How many seconds a rank's `perf_counter` is ahead of the first rank's at the same moment,
    and how wrong that may be."""

    seconds: float
    error_seconds: float


def ahead_of_first(group: dist.ProcessGroup | None, device: torch.device) -> Ahead:
    """Measures how far the calling rank is ahead in the group (None: all ranks). device: on which
    the group exchanges. Collective; blocks for some milliseconds."""
    seen = torch.empty(ROUNDS, 2, dtype=torch.float64, device="cpu")
    for i in range(ROUNDS):
        entered = perf_counter()
        of_first(torch.zeros(1, dtype=torch.float32, device="cpu"), group, device)
        seen[i, 0], seen[i, 1] = entered, perf_counter()
    first = of_first(seen, group, device)
    return Ahead(0.0, 0.0) if dist.get_rank(group) == 0 else between(first, seen)


def one_way_seconds(group: dist.ProcessGroup) -> float:
    """Returns how long a message takes to the rank that is farthest from the group's first one,
    the same on all ranks. They answer one by one, as ranks that share processors would delay each
    other. Collective, in host memory; blocks for three round trips to each rank."""
    names, me = dist.get_process_group_ranks(group), dist.get_rank(group)
    ball = torch.zeros(1, dtype=torch.float64, device="cpu")
    longest = 0.0
    for rank in range(1, len(names)):
        if me == rank:
            for _ in range(_PINGS):
                dist.recv(ball, names[0], group=group)
                dist.send(ball, names[0], group=group)
        elif me == 0:
            took = list[float]()
            for _ in range(_PINGS):
                began = perf_counter()
                dist.send(ball, names[rank], group=group)
                dist.recv(ball, names[rank], group=group)
                took.append(perf_counter() - began)
            longest = max(longest, min(took) / 2)
    found = torch.tensor([longest], dtype=torch.float64, device="cpu")
    dist.broadcast(found, names[0], group=group)
    return float(found)


def of_first(own: Tensor, group: dist.ProcessGroup | None, device: torch.device) -> Tensor:
    """Returns the tensor of the group's first rank, on the CPU. No rank returns before all have
    called, which a broadcast would not guarantee. Collective, and blocks."""
    mine = own.to(device)
    every = [torch.empty_like(mine) for _ in range(dist.get_world_size(group))]
    dist.all_gather(every, mine, group=group)
    return every[0].cpu()  # on a device the gather is only queued until then


def between(first: Tensor, own: Tensor) -> Ahead:
    """Computes the offset from the times on two clocks, (rounds, enter and leave), fp64."""
    least = float((own[:, 0] - first[:, 1]).max())
    most = float((own[:, 1] - first[:, 0]).min())
    return Ahead((least + most) / 2, (most - least) / 2)

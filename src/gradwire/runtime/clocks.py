"""How far a rank's clock is ahead of the first rank's.

    rank 0  ──enter──────────────leave──      nobody leaves an all-gather before
    rank r  ─────────enter───────leave──      everybody has entered it

so in seconds of its own clock each, ``enter of r - leave of 0 <= ahead <= leave of r - enter of
0``. Each all-gather bounds it anew; what all bounds allow is the answer, and half their distance
the error. It needs nothing of a backend but that, and as many moves for a thousand ranks as for
two. Cristian 1989 bounds a clock by one answered question in the same way.
"""

from __future__ import annotations

from time import perf_counter
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

ROUNDS = 24


class Ahead(NamedTuple):
    """Of a rank's `perf_counter`: seconds that it shows more than the first rank's at the same
    moment, and how wrong that may be."""

    seconds: float
    error_seconds: float


def ahead_of_first(group: dist.ProcessGroup | None, device: torch.device) -> Ahead:
    """Of the calling rank, in the group; None: of all ranks. device: on which the group exchanges.
    Collective; blocks for some milliseconds."""
    seen = torch.empty(ROUNDS, 2, dtype=torch.float64)
    for i in range(ROUNDS):
        entered = perf_counter()
        of_first(torch.zeros(1), group, device)
        seen[i, 0], seen[i, 1] = entered, perf_counter()
    first = of_first(seen, group, device)
    return Ahead(0.0, 0.0) if dist.get_rank(group) == 0 else between(first, seen)


def of_first(own: Tensor, group: dist.ProcessGroup | None, device: torch.device) -> Tensor:
    """What the group's first rank has given, on the CPU. Nobody has it before all have given
    theirs, which a broadcast would not promise. Collective, and blocks."""
    mine = own.to(device)
    every = [torch.empty_like(mine) for _ in range(dist.get_world_size(group))]
    dist.all_gather(every, mine, group=group)
    return every[0].cpu()  # on a device only asked for until then


def between(first: Tensor, own: Tensor) -> Ahead:
    """What (rounds, enter and leave) on two clocks, fp64, allow."""
    least = float((own[:, 0] - first[:, 1]).max())
    most = float((own[:, 1] - first[:, 0]).min())
    return Ahead((least + most) / 2, (most - least) / 2)

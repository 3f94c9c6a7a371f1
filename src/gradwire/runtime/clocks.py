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

from gradwire.moves import AllGather
from gradwire.runtime.torch_dist import Performer

ROUNDS = 24


class Ahead(NamedTuple):
    """Of a rank's `perf_counter`: seconds that it shows more than the first rank's at the same
    moment, and how wrong that may be."""

    seconds: float
    error_seconds: float


def ahead_of_first(performer: Performer) -> Ahead:
    """Of the calling rank, in the performer's group. Collective; blocks for some milliseconds."""
    seen = torch.empty(ROUNDS, 2, dtype=torch.float64)
    for i in range(ROUNDS):
        entered = perf_counter()
        arrived = performer.perform(AllGather(_word(performer)), "clocks")
        assert isinstance(arrived, torch.Tensor)
        arrived.cpu()  # on a device only asked for until then
        seen[i, 0], seen[i, 1] = entered, perf_counter()
    every = performer.perform(AllGather(seen.view(-1).to(performer.device)), "clocks")
    assert isinstance(every, torch.Tensor)
    first = every[0].view(ROUNDS, 2).cpu()
    return Ahead(0.0, 0.0) if performer.rank == 0 else between(first, seen)


def between(first: torch.Tensor, own: torch.Tensor) -> Ahead:
    """What (rounds, enter and leave) on two clocks, fp64, allow."""
    least = float((own[:, 0] - first[:, 1]).max())
    most = float((own[:, 1] - first[:, 0]).min())
    return Ahead((least + most) / 2, (most - least) / 2)


def _word(performer: Performer) -> torch.Tensor:
    return torch.zeros(1, device=performer.device)

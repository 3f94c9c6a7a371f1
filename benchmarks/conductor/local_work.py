"""Microseconds of local work for each parameter: begin and encode, and all that follows.

Four ranks run in one process and one thread, and reuse the same buffers in every step, as those of
the network are. It reports the tenth percentile of the steps, so that other load on the machine
matters little. With many buckets each is used once a step, after others have been through the
caches. To compare two versions of the source, run it with each in turn: PYTHONPATH names the other
one.
"""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from gradwire import Strategy
from gradwire.buckets import Bucket, Parameter
from gradwire.runtime.context import BucketContext
from gradwire.strategy import StepInfo

RANKS, STEPS = 4, 200
TEXTS = ("topk(0.01)+ef", "dgc(0.01)", "int8+ef", "lloyd(2)+adam", "none")
SHAPES = ((1, 64, 32, 32), (1, 1, 64, 64), (64, 1, 64, 64))
"""The number of buckets, the parameters of each, and the sides of these."""
OWNED = ("topk(0.01)+ef", "int8+ef", "qsgd(4)", "lloyd(2)+adam")
SUMMED = ("none", "bf16")
VECTORS = ((1, 20, 256, 1), (1, 1, 4096, 1), (64, 1, 4096, 1))


class Rank:
    """One rank's work on one bucket. spent: seconds since it was last set to 0."""

    def __init__(self, strategy: Strategy, bucket: Bucket, rank: int) -> None:
        self.context = BucketContext(strategy, bucket, rank, RANKS, {})
        self.sizes, self.spent = bucket.sizes, 0.0

    def begin(self, step: int) -> Any:
        """Returns its first move."""
        own = [torch.randn(n) for n in self.sizes]
        began = perf_counter()
        self.context.begin(own, own, StepInfo(step))
        self._rounds = self.context.rounds()
        move = next(self._rounds)
        self.spent += perf_counter() - began
        return move

    def go_on(self, arrived: Tensor) -> Any:
        """Returns its next move; None after the last one."""
        began, move = perf_counter(), None
        try:
            move = self._rounds.send(arrived)
        except StopIteration:
            self.context.end(skipped=False)
        self.spent += perf_counter() - began
        return move


class Network:
    """What arrives, in the same memory in every step. Sums of the wire are each rank's own."""

    def __init__(self) -> None:
        self._rooms: list[Tensor] = []

    def perform(self, moves: Sequence[Any]) -> list[Tensor]:
        """Returns what arrives on each rank."""
        if moves[0].name == "all_reduce":
            return [move.data for move in moves]
        if moves[0].name == "all_gather":
            return [self._kept(0, torch.stack([move.data for move in moves]))] * len(moves)
        parts = [move.data.split(list(move.sizes)) for move in moves]
        arrived = [torch.cat(own) for own in zip(*parts)]
        return [self._kept(1 + rank, own) for rank, own in enumerate(arrived)]

    def _kept(self, room: int, data: Tensor) -> Tensor:
        if len(self._rooms) <= room:
            self._rooms += [data.new_empty(0)] * (1 + room - len(self._rooms))
        if self._rooms[room].shape != data.shape:
            self._rooms[room] = data.clone()
        return self._rooms[room].copy_(data)


def measured(strategy: Strategy, shape: tuple[int, int, int, int]) -> tuple[float, float]:
    """Returns seconds to encode, and of all that follows, for each parameter."""
    buckets, parameters, rows, columns = shape
    bucket = Bucket(tuple(Parameter(f"p{i}", (rows, columns)) for i in range(parameters)))
    jobs = [[Rank(strategy, bucket, r) for r in range(RANKS)] for _ in range(buckets)]
    networks = [Network() for _ in jobs]
    encode, rest = list[float](), list[float]()
    for step in range(STEPS):
        asked = [[rank.begin(step) for rank in ranks] for ranks in jobs]
        encode.append(_lap(jobs) / parameters)
        for ranks, moves, network in zip(jobs, asked, networks):
            while moves[0] is not None:
                arrived = network.perform(moves)
                moves = [rank.go_on(own) for rank, own in zip(ranks, arrived)]
        rest.append(_lap(jobs) / parameters)
    return sorted(encode)[STEPS // 10], sorted(rest)[STEPS // 10]


def _lap(jobs: Sequence[Sequence[Rank]]) -> float:
    """Returns the mean seconds of a rank's bucket since the last call."""
    spent = sum(rank.spent for ranks in jobs for rank in ranks)
    for ranks in jobs:
        for rank in ranks:
            rank.spent = 0.0
    return spent / RANKS / len(jobs)


def main() -> None:
    """Prints a row for each strategy."""
    for collective, texts, shapes in (
        ("allgather", TEXTS, SHAPES),
        ("alltoall", OWNED, SHAPES),
        ("allreduce", SUMMED, VECTORS),
    ):
        heads = "".join(f"{b:>6} x {n} of {x * y}".ljust(24) for b, n, x, y in shapes)
        print(f"{'| ' + collective:<18}{heads}(µs for each parameter: encode, rest)")
        for text in texts:
            strategy = Strategy.parse(f"{text} | {collective}")
            times = [1e6 * x for shape in shapes for x in measured(strategy, shape)]
            print(f"{text:<18}" + "".join(f"{x:>12.1f}" for x in times))


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()

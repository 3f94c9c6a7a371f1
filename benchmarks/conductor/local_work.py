"""Microseconds of local work for each parameter: begin and encode, and add up and end.

Four ranks run in one process and one thread, and reuse the same buffers in every step, as those of
the network are. It reports the tenth percentile of the steps, so that other load on the machine
matters little. With many buckets each is used once a step, after others have been through the
caches. To compare two versions of the source, run it with each in turn: PYTHONPATH names the other
one.
"""

from __future__ import annotations

from time import perf_counter

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
SUMMED = ("none", "bf16")
VECTORS = ((1, 20, 256, 1), (1, 1, 4096, 1), (64, 1, 4096, 1))


class Rank:
    """One rank's buckets."""

    def __init__(self, strategy: Strategy, rank: int, shape: tuple[int, int, int, int]) -> None:
        buckets, parameters, rows, columns = shape
        self.is_summed, self.n = strategy.collective.name == "allreduce", rows * columns
        named = [Parameter(f"p{i}", (rows, columns)) for i in range(parameters)]
        self.contexts = [
            BucketContext(strategy, Bucket(tuple(named)), rank, RANKS, {}) for _ in range(buckets)
        ]
        self.parameters, self.spent = parameters, 0.0

    def encode(self, step: int) -> list[Tensor]:
        """Returns the messages of all buckets."""
        messages = []
        for context in self.contexts:
            own = [torch.randn(self.n) for _ in range(self.parameters)]
            began = perf_counter()
            context.begin(own, own, StepInfo(step))
            messages.append(context.numbers() if self.is_summed else context.message())
            self.spent += perf_counter() - began
        return messages

    def add_up(self, messages: list[Tensor], arrived: list[Tensor]) -> None:
        """Computes the averages of all buckets; what is summed on the wire averages its own
        message."""
        for context, own, all_ranks in zip(self.contexts, messages, arrived):
            began = perf_counter()
            context.divide(own) if self.is_summed else context.accumulate(all_ranks)
            context.end(skipped=False)
            self.spent += perf_counter() - began

    def lap(self) -> float:
        """Returns seconds for each parameter since the last call."""
        spent, self.spent = self.spent, 0.0
        return spent / len(self.contexts) / self.parameters


def measured(strategy: Strategy, shape: tuple[int, int, int, int]) -> tuple[float, float]:
    """Returns seconds to encode and to add up, for each parameter."""
    ranks = [Rank(strategy, rank, shape) for rank in range(RANKS)]
    encode, add, arrived = list[float](), list[float](), list[Tensor]()
    for step in range(STEPS):
        messages = [rank.encode(step) for rank in ranks]
        encode.append(sum(rank.lap() for rank in ranks) / RANKS)
        arrived = arrived or [torch.stack(own) for own in zip(*messages)]
        for room, own in zip(arrived, zip(*messages)):
            torch.stack(own, out=room)
        for rank, mine in zip(ranks, messages):
            rank.add_up(mine, arrived)
        add.append(sum(rank.lap() for rank in ranks) / RANKS)
    return sorted(encode)[STEPS // 10], sorted(add)[STEPS // 10]


def main() -> None:
    """Prints a row for each strategy."""
    for collective, texts, shapes in (
        ("allgather", TEXTS, SHAPES),
        ("allreduce", SUMMED, VECTORS),
    ):
        heads = "".join(f"{b:>6} x {n} of {x * y}".ljust(24) for b, n, x, y in shapes)
        print(f"{'| ' + collective:<18}{heads}(µs for each parameter: encode, sum)")
        for text in texts:
            strategy = Strategy.parse(f"{text} | {collective}")
            times = [1e6 * x for shape in shapes for x in measured(strategy, shape)]
            print(f"{text:<18}" + "".join(f"{x:>12.1f}" for x in times))


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()

"""Microseconds of local work for each parameter of a bucket.

Four ranks in one process, one thread, by the same buffers step after step, as the network's are.
Encoding is from `begin` to the message, a sum from what arrived to `end`; the tenth percentile of
400 steps, so that what else the machine does counts little. To compare two states of the source,
run it with each of them in turn: PYTHONPATH names the other one.
"""

from __future__ import annotations

from time import perf_counter

import torch
from torch import Tensor

from gradwire import Strategy
from gradwire.buckets import Bucket, Parameter
from gradwire.runtime.context import BucketContext
from gradwire.strategy import StepInfo

RANKS, STEPS = 4, 400
SIZES = ((64, 32, 32), (1, 64, 64))  # parameters, and their sides
TEXTS = ("topk(0.01)+ef", "dgc(0.01)", "int8+ef", "lloyd(2)+adam", "none")
VECTORS = ((20, 256, 1), (1, 4096, 1))
SUMMED = ("none", "bf16")


def measured(strategy: Strategy, parameters: int, rows: int, columns: int) -> tuple[float, float]:
    """Seconds to encode and to add up, for each parameter."""
    bucket = Bucket(tuple(Parameter(f"p{i}", (rows, columns)) for i in range(parameters)))
    contexts = [BucketContext(strategy, bucket, rank, RANKS, {}) for rank in range(RANKS)]
    is_summed = str(strategy.collective) == "allreduce"
    encode, add, arrived = list[float](), list[float](), list[Tensor]()
    for step in range(STEPS):
        messages, spent = [], 0.0
        for context in contexts:
            own = [torch.randn(rows * columns) for _ in range(parameters)]
            began = perf_counter()
            context.begin(own, own, StepInfo(step))
            messages.append(context.numbers() if is_summed else context.message())
            spent += perf_counter() - began
        encode.append(spent / RANKS / parameters)
        if not arrived:
            arrived.append(torch.stack(messages))
        torch.stack(messages, out=arrived[0])
        spent = 0.0
        for context, message in zip(contexts, messages):
            began = perf_counter()
            context.divide(message) if is_summed else context.accumulate(arrived[0])
            context.end(skipped=False)
            spent += perf_counter() - began
        add.append(spent / RANKS / parameters)
    return sorted(encode)[STEPS // 10], sorted(add)[STEPS // 10]


def main() -> None:
    """A row for each strategy."""
    for collective, texts, sizes in (("allgather", TEXTS, SIZES), ("allreduce", SUMMED, VECTORS)):
        heads = "".join(f"{n:>5} of {a * b:,}: encode    sum" for n, a, b in sizes)
        print(f"{'| ' + collective:<18}{heads}   (µs each)")
        for text in texts:
            strategy = Strategy.parse(f"{text} | {collective}")
            times = [1e6 * x for given in sizes for x in measured(strategy, *given)]
            print(f"{text:<18}" + "".join(f"{x:>14.1f}" for x in times))


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()

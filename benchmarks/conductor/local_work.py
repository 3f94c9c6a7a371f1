"""Microseconds of local work for each parameter of a bucket.

64 parameters of 1,024 elements and one of 4,096; four ranks in one process, one thread. Encoding
is `message`, a sum is `accumulate`, of processor time; the median of 30 steps. To compare two
states of the source, run it with each of them in turn: PYTHONPATH names the other one.
"""

from __future__ import annotations

from statistics import median
from time import process_time

import torch

from gradwire import Strategy
from gradwire.buckets import Bucket, Parameter
from gradwire.runtime.context import BucketContext
from gradwire.strategy import StepInfo

TEXTS = ("none", "topk(0.01)+ef", "dgc(0.01)", "int8+ef", "lloyd(2)+adam")
RANKS, STEPS = 4, 30


def measured(text: str, parameters: int, side: int) -> tuple[float, float]:
    """Seconds to encode and to add up, for each parameter."""
    bucket = Bucket(tuple(Parameter(f"p{i}", (side, side)) for i in range(parameters)))
    strategy = Strategy.parse(f"{text} | allgather")
    contexts = [BucketContext(strategy, bucket, rank, RANKS, {}) for rank in range(RANKS)]
    encode, add = list[float](), list[float]()
    for step in range(STEPS):
        messages = []
        for context in contexts:
            own = [torch.randn(side * side) for _ in range(parameters)]
            context.begin(own, own, StepInfo(step))
            began = process_time()
            message = context.message()
            encode.append((process_time() - began) / parameters)
            messages.append(message.clone())
        arrived = torch.stack(messages)
        for context in contexts:
            began = process_time()
            context.accumulate(arrived)
            add.append((process_time() - began) / parameters)
            context.end(skipped=False)
    return median(encode), median(add)


def main() -> None:
    """A row for each strategy."""
    print("strategy           64 of 1,024: encode    sum   1 of 4,096: encode    sum   (µs each)")
    for text in TEXTS:
        times = [1e6 * x for given in ((64, 32), (1, 64)) for x in measured(text, *given)]
        many, one = times[:2], times[2:]
        print(f"{text:<18}{many[0]:>20.0f}{many[1]:>7.0f}{one[0]:>20.0f}{one[1]:>7.0f}")


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()

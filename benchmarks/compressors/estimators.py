"""Would an estimated threshold be faster than exact selection? Prints the table of README.md.

Every method gets this library's own passes over memory (count, take, moments), which are one to
two orders of magnitude faster than torch's, so that only the number of passes is compared.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from statistics import NormalDist, median
from time import perf_counter

import torch
from torch import Tensor

from gradwire import kernels
from gradwire.bench.machine import native
from gradwire.kernels.formats import SIGNS1
from gradwire.report.table import Table

DENSITY = 0.001


def count(x: Tensor, threshold: float) -> int:
    """Counts in one read of x, into a small buffer that is overwritten again and again."""
    core, which = native()
    room, beyond = 4096, 128  # a pass may write 128 entries past its buffer
    places, values = torch.empty(room + beyond, dtype=torch.int32), torch.empty(room + beyond)
    found, _ = core.reaching(
        which, 0, x.data_ptr(), x.numel(), threshold, room, places.data_ptr(), values.data_ptr()
    )
    return found


def exact() -> Callable[[Tensor, int], int]:
    """One read and a selection among 2k candidates; the threshold of the last step as a hint."""
    hint, status = 0.0, kernels.new_status()

    def select(x: Tensor, k: int) -> int:
        nonlocal hint
        places, values = torch.empty(k, dtype=torch.int32), torch.empty(k)
        hint = kernels.topk(x, k, places, values, status, hint)
        return k

    return select


def gaussian(x: Tensor, k: int) -> int:
    """Gaussian-k (Shi et al. 2019): the normal quantile, corrected at most three times."""
    _, squares = kernels.largest(x, squares=True)
    deviation = math.sqrt(squares / x.numel())
    threshold = deviation * NormalDist().inv_cdf(1 - DENSITY / 2)
    for _ in range(3):
        found = count(x, threshold)
        if 2 * k / 3 <= found <= 4 * k / 3:
            break
        threshold *= 0.5 if found < k else 1.5
    return len(kernels.reaching(x, threshold, kernels.new_status()).places)


def sidco(x: Tensor, k: int) -> int:
    """SIDCo-E (Abdelmoniem et al. 2021): exponential fits, each to what exceeds the last."""
    bits = kernels.scratch("sidco", SIGNS1.code_bytes(x.numel()), torch.uint8, x.device)
    mean, status = torch.empty(1), kernels.new_status()
    kernels.encode_codes(SIGNS1, x, bits, mean, status)
    threshold = -float(mean) * math.log(0.25)
    stages = 3
    ratio = (DENSITY / 0.25) ** (1 / (stages - 1))
    tail = kernels.reaching(x, threshold, status).values.abs()
    for _ in range(stages - 1):
        threshold += -float(tail.mean() - threshold) * math.log(ratio)
        tail = tail[tail >= threshold]
    return len(kernels.reaching(x, threshold, status).places)


def mstopk(x: Tensor, k: int) -> int:
    """MSTop-k (Shi et al. 2021): bisection between the mean and the largest."""
    largest, _ = kernels.largest(x)
    low, high = 0.0, largest
    for _ in range(30):
        middle = (low + high) / 2
        found = count(x, middle)
        low, high = (middle, high) if found > k else (low, middle)
        if found == k:
            break
    return len(kernels.reaching(x, low, kernels.new_status()).places)


def residual(n: int) -> Tensor:
    """Returns what selection really works on: the residual of top-k after 200 steps of normal
    gradients."""
    v = torch.zeros(n)
    encoder_k = math.ceil(DENSITY * n)
    places, values = torch.empty(encoder_k, dtype=torch.int32), torch.empty(encoder_k)
    dice = torch.Generator().manual_seed(0)
    scales, status = torch.rand(n, generator=dice) ** 2, kernels.new_status()
    for _ in range(200):
        gradient = torch.randn(n, generator=dice) * scales
        kernels.update_topk(
            gradient, None, v, encoder_k, places, values, None, status, momentum=None
        )
    return v


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--elements", type=int, default=25_500_000)
    parser.add_argument("--repeats", type=int, default=9)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    n, k = asked.elements, math.ceil(DENSITY * asked.elements)
    dice = torch.Generator().manual_seed(1)
    normal = torch.randn(n, generator=dice)
    laplace = torch.empty(n).exponential_(generator=dice) * normal.sign()
    inputs = {"normal": normal, "Laplace": laplace, "residual": residual(n)}
    methods = {"exact": exact(), "Gaussian-k": gaussian, "SIDCo-E": sidco, "MSTop-k": mstopk}
    rows = []
    for what, x in inputs.items():
        times: dict[str, list[float]] = {name: [] for name in methods}
        sent: dict[str, int] = {}
        for _ in range(asked.repeats + 1):
            for name, method in methods.items():
                began = perf_counter()
                sent[name] = method(x, k)
                times[name].append(perf_counter() - began)
        rows += [
            [what, name, f"{1e3 * median(times[name][1:]):.1f}", f"{sent[name] / k:.2f}"]
            for name in methods
        ]
    print(Table(("input", "method", "ms", "sent / k"), rows).as_markdown())


if __name__ == "__main__":
    main()

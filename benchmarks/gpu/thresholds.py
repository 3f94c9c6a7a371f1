"""How often a selection on CUDA has too few or too many candidates by its rule for thresholds.
Takes three minutes; needs no GPU.

Gradients have log-normal scales that jump up at step 150 and down at 280; with "trained" as an
argument, those of the demo's language model are used, too, for all of its parameters. The rule is
that of kernels/cuda/candidates.py and radix.py: candidates reach the upper of two thresholds or,
where these are fewer than k, the lower; if they are still fewer than k, or more than 16 k, all
elements are read. Each step predicts which magnitudes 1.75 k and 3.5 k elements will reach in the
next.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from gradwire.demo.corpus import build
from gradwire.demo.model import LanguageModel, batches, streams

STEPS, WARM, CAPACITY = 400, 50, 16
SIZES = (100_000, 100), (300_000, 300)
JUMPS = 3.0, 10.0
FEW = 100
"""If fewer than this are selected, chance alone makes half as many or twice as many reach."""


class Found(NamedTuple):
    """One step, relative to k: the number of candidates, and of elements that reached the lower
    threshold; and whether all elements had to be read."""

    candidates: float
    marked: float
    looks_at_all: bool


class Thresholds:
    """The thresholds of a segment. upper, lower: of the next step; 0: not known yet."""

    def __init__(self) -> None:
        self.upper = self.lower = 0.0

    def select(self, size: Tensor, k: int) -> tuple[Tensor, Found]:
        """Returns the indices of the k largest magnitudes, and what the kernels would have had to
        do."""
        few, many = (int((size >= least).sum()) for least in (self.upper, self.lower))
        total = few if few >= k else many
        largest, places = size.topk(min(2 * k, size.numel()))
        looks_at_all = not k <= total <= min(CAPACITY * k, size.numel())
        if looks_at_all:
            known = 2 * k, float(largest[-1]), 2 * k, float(largest[-1])
        else:
            known = few, self.upper, many, self.lower
        kth = float(largest[k - 1])
        self.upper, self.lower = (reached_by(r * k, k, kth, *known) for r in (1.75, 3.5))
        return places[:k], Found(total / k, many / k, looks_at_all)


def reached_by(
    rank: float, k: int, kth: float, few: int, upper: float, many: int, lower: float
) -> float:
    """The same as in radix.py."""
    between = k < few < min(rank, many)
    before = few > k and (few >= rank or few == many)
    near, begin = (few, upper) if between else (k, kth)
    far, end = (few, upper) if before else (many, lower)
    least = begin - (begin - end) * (rank - near) / max(far - near, 1)
    return max(least, 0.75 * end)


def simulated(dgc: bool, n: int, k: int, jump: float, seed: int) -> Iterator[Found]:
    """Yields steps with gradients of log-normal scales, all of them about a fifth larger or
    smaller in each step."""
    torch.manual_seed(seed)
    u, v, scale, thresholds = torch.zeros(n), torch.zeros(n), torch.randn(n).exp(), Thresholds()
    for step in range(STEPS):
        if step in (150, 280):
            scale = scale * (jump if step == 150 else 1 / jump)
        g = torch.randn(n) * scale * (1 + 0.2 * torch.randn(()))
        places, found = _step(dgc, g, u, v, k, thresholds)
        yield found
        u[places] = v[places] = 0.0


def _step(
    dgc: bool, g: Tensor, u: Tensor, v: Tensor, k: int, thresholds: Thresholds
) -> tuple[Tensor, Found]:
    u.mul_(0.9 if dgc else 0.0).add_(g)
    v += u
    return thresholds.select(v.abs(), k)


def trained(dgc: bool, density: float) -> dict[bool, list[Found]]:
    """Returns steps of a language model that learns from what is selected: of parameters with few
    selected elements, and of the others."""
    torch.manual_seed(1)
    model = LanguageModel(hidden=64)
    memories = [
        (p, torch.zeros(p.numel()), torch.zeros(p.numel()), Thresholds())
        for p in model.parameters()
    ]
    found: dict[bool, list[Found]] = {True: [], False: []}
    columns = streams(build(5000).train, 16)
    for step, (words, following, _) in enumerate(itertools.islice(batches(columns, 16), STEPS)):
        model.zero_grad()
        model(words, following)[0].backward()
        for p, u, v, thresholds in memories:
            k = max(1, int(density * p.numel()))
            assert p.grad is not None
            places, own = _step(dgc, p.grad.flatten(), u, v, k, thresholds)
            if step >= WARM:
                found[k < FEW].append(own)
            p.data.view(-1)[places] -= (0.1 if dgc else 1.0) * v[places]
            u[places] = v[places] = 0.0
    return found


def row(name: str, found: Sequence[Found]) -> str:
    """Returns a row: the shares of steps in which fewer than k reach the lower threshold, and with
    more than 4 k and 16 k candidates."""
    many = torch.tensor([one.candidates for one in found])
    shares = (many < 1, many > 4, many > CAPACITY)
    marked = torch.tensor([one.marked for one in found]).quantile(0.99)
    parts = "".join(f"{100 * float(x.float().mean()):>10.1f} %" for x in shares)
    return f"{name:<40}{parts}{float(marked):>10.1f} k"


def main() -> None:
    """Prints a row for each recurrence and kind of gradients."""
    print(f"{'':<40}{'below k':>12}{'above 4 k':>12}{'above 16 k':>12}{'marked, p99':>12}")
    rules = ("dgc", True), ("ef", False)
    for (n, k), jump, (name, dgc) in itertools.product(SIZES, JUMPS, rules):
        runs = (list(simulated(dgc, n, k, jump, seed))[WARM:] for seed in (1, 2))
        found = [step for run in runs for step in run]
        print(row(f"{name}, {n:,} elements, a jump by {jump:g}", found), flush=True)
    if "trained" in sys.argv:
        for density, (name, dgc) in itertools.product((0.001, 0.01), rules):
            for few, found in trained(dgc, density).items():
                kind = f"fewer than {FEW}" if few else f"{FEW} or more"
                print(row(f"{name}, trained, {density:g}, {kind}", found), flush=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()

"""The distance between what was sent and what arrives, for a compressor on recorded gradients.

    one step     what arrives of one gradient, without memory
    sum          what arrives in all steps of the window, against the sum of the gradients
    sum_ef       the same, with error feedback: what is left is the residual
    last_ef      what arrives in the last step of the window, with error feedback

Each is given for one rank (over all ranks) and for the mean over the ranks: relative L2 error and
cosine over all matrices together. If a compressor has a unit of its own, its output is first
multiplied by the factor with the least error.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from models import Gradients
from torch import Tensor

from gradwire import kernels
from gradwire.bench.traffic import payload_bytes
from gradwire.feedback import ErrorFeedback
from gradwire.layout.message import Layout
from gradwire.runtime.encoder import make_encoder
from gradwire.strategy import Compressor, Encoder, Feedback, Key, State, StepInfo

Measure = dict[str, dict[str, float]]


@dataclass
class Distance:
    """Sums over elements, accumulated part by part."""

    given: float = 0.0
    arrived: float = 0.0
    both: float = 0.0
    apart: float = 0.0

    def add(self, given: Tensor, arrived: Tensor) -> None:
        given, arrived = given.double(), arrived.double()
        self.given += float(given.dot(given))
        self.arrived += float(arrived.dot(arrived))
        self.both += float(given.dot(arrived))
        self.apart += float((given - arrived).square().sum())

    def result(self, direction: bool) -> dict[str, float]:
        size = math.sqrt(self.given * self.arrived)
        cosine = self.both / size if size else 0.0
        error = math.sqrt(self.apart / self.given) if self.given else 0.0
        return {"error": math.sqrt(max(0.0, 1 - cosine**2)) if direction else error,
                "cosine": cosine}  # fmt: skip


class Rank:
    """One rank's encoders and states, one per matrix."""

    def __init__(self, compressor: Compressor, feedback: Feedback | None, rank: int) -> None:
        self._compressor, self._feedback, self._rank = compressor, feedback, rank
        self._encoders: dict[str, Encoder] = {}
        self._states: dict[str, State] = {}

    def send(self, gradients: Gradients, step: int) -> dict[str, tuple[Tensor, ...]]:
        """The payload of every matrix."""
        return {name: self._send(name, x, step) for name, x in gradients.items()}

    def _send(self, name: str, x: Tensor, step: int) -> tuple[Tensor, ...]:
        if name not in self._encoders:
            self._encoders[name] = make_encoder(self._compressor, self._feedback)
            self._states[name] = {}
        layout = Layout.of([self._compressor.claims(x.numel())])
        (sections,) = layout.views(torch.zeros(layout.bytes, dtype=torch.uint8))
        encoder, key = self._encoders[name], Key(0, step, name, self._rank)
        status = kernels.new_status()
        encoder.encode(x, self._states[name], sections, StepInfo(step), key, status)
        if kernels.is_raised(status):
            raise ArithmeticError(f"{self._compressor} found {name} not finite at step {step}")
        encoder.release()
        return sections


class Totals:
    """Totals of what was given and what arrived, by rank and for the mean, summed over steps."""

    def __init__(self, compressor: Compressor, gradients: Gradients, ranks: int) -> None:
        self._compressor = compressor
        self._given = [_zeros(gradients) for _ in range(ranks)]
        self._arrived = [_zeros(gradients) for _ in range(ranks)]
        self._mean = _zeros(gradients)

    def add(
        self, gradients: Sequence[Gradients], sent: Sequence[dict[str, tuple[Tensor, ...]]],
        step: int,
    ) -> None:  # fmt: skip
        for name, x in self._mean.items():
            one, key = torch.empty_like(x), Key(0, step, name)
            for rank, mine in enumerate(sent):
                self._compressor.decode(mine[name], one, key)
                self._arrived[rank][name] += one
                self._given[rank][name] += gradients[rank][name]
            payloads = [mine[name] for mine in sent]
            self._compressor.accumulate(payloads, one, float(len(sent)), key)
            x += one

    def result(self) -> Measure:
        rank, mean = Distance(), Distance()
        for name, x in self._mean.items():
            for given, arrived in zip(self._given, self._arrived):
                rank.add(given[name], arrived[name])
            mean.add(torch.stack([given[name] for given in self._given]).mean(0), x)
        direction = self._compressor.claims(1).direction
        return {"rank": rank.result(direction), "mean": mean.result(direction)}


def _zeros(like: Gradients) -> Gradients:
    return {name: torch.zeros_like(x) for name, x in like.items()}


def measure(compressor: Compressor, recorded: list[list[Gradients]]) -> dict[str, Measure]:
    """Measures everything that the module's docstring lists, for one compressor at one moment."""
    first, _, total = _run(compressor, None, recorded)
    found = {"one_step": first, "sum": total}
    claims = compressor.claims(1 << 20)
    if not claims.lossless and not claims.direction:
        _, last, total = _run(compressor, ErrorFeedback(), recorded)
        found |= {"sum_ef": total, "last_ef": last}
    return found


def _run(
    compressor: Compressor, feedback: Feedback | None, recorded: list[list[Gradients]]
) -> tuple[Measure, Measure, Measure]:
    """Returns the measures of the first step alone, the last alone, and all steps summed."""
    count = len(recorded[0])
    ranks = [Rank(compressor, feedback, rank) for rank in range(count)]
    total = Totals(compressor, recorded[0][0], count)
    singles = []
    for step, gradients in enumerate(recorded):
        sent = [rank.send(mine, step) for rank, mine in zip(ranks, gradients)]
        total.add(gradients, sent, step)
        if step in (0, len(recorded) - 1):
            alone = Totals(compressor, recorded[0][0], count)
            alone.add(gradients, sent, step)
            singles.append(alone.result())
    return singles[0], singles[-1], total.result()


def bits_per_element(compressor: Compressor, gradients: Gradients) -> float:
    """The bits per element over all matrices, without headers."""
    bits = elements = 0
    rank = Rank(compressor, None, 0)
    for name, sections in rank.send(gradients, 0).items():
        n = gradients[name].numel()
        bits += 8 * payload_bytes(compressor, n, sections)
        elements += n
    return bits / elements

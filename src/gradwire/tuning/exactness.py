"""Measures the error of strategies on a job's own gradients: each average beside the exact one.

sampled steps, again and again ─┬─ by the strategy ──► averages ─┐
                                └─ sent whole ───────► averages ─┴─► errors
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from statistics import mean
from time import perf_counter

import torch
from torch import Tensor

from gradwire.buckets import Bucket, Parameter
from gradwire.dynamics import Dynamics
from gradwire.planner.candidates import FP32
from gradwire.strategy import Strategy
from gradwire.tuning.agree import of_ranks
from gradwire.tuning.probe import Probe

_ROUNDS, _MOST_ROUNDS = 6, 384  # passes over the sampled steps
_RISES = 1.1  # if the error grows by more when rounds double, residuals still grow
_PATIENCE_SECONDS = 20.0  # for one strategy


class Exactness:
    """Measures errors. All methods are collective. samples: by name, this rank's gradients step
    by step, equally many of each."""

    def __init__(self, probe: Probe, samples: Mapping[str, Sequence[Tensor]]) -> None:
        self._probe, self._samples = probe, samples

    def errors(self, strategy: str) -> dict[str, float]:
        """Returns the relative error of one step's average, with feedback: its distance from the
        exact one over that one's norm, the mean over steps; by name, and of all as "". Returns an
        empty dict if there is nothing to compare.

        The samples are repeated, twice as often each time, until the error grows no more: at a
        low density most elements stay in the residual for long before they are sent. It ends
        after 384 rounds or some seconds; an error that still grows then is reported too small. A
        strategy that keeps a momentum is compared with the momentum of the exact average;
        orthogonal steps, of matrices only, with those that are sent whole.
        """
        made, names = Strategy.parse(strategy), list(self._samples)
        own = Dynamics.of(made)
        if made.feedback is not None and made.feedback.rule == "orthogonal":
            names = [name for name, x in self._samples.items() if x[0].dim() == 2]
        else:
            own = own.of_vectors
        whole = own.take(FP32)
        if whole is None or not names:  # directions cannot be sent whole
            return {}
        lossy, exact = self._passes(strategy, names), self._passes(whole, names)
        before, rounds, began = 0.0, 0, perf_counter()
        while True:
            more = max(rounds, _ROUNDS)
            for _ in range(more):
                pairs = list(zip(next(lossy), next(exact)))
            found, rounds = _errors(names, pairs), rounds + more
            now, took = self._agreed(found.get("", 0.0), perf_counter() - began)
            if now <= _RISES * before or rounds >= _MOST_ROUNDS or 2 * took >= _PATIENCE_SECONDS:
                return found
            before = now

    def _agreed(self, error: float, seconds: float) -> tuple[float, float]:
        """Returns rank 0's error, as norms may differ in bits between processors, and the longest
        time."""
        every = of_ranks(self._probe.performer, [error, seconds])
        return float(every[0, 0]), float(every[:, 1].max())

    def _passes(self, text: str, names: Sequence[str]) -> Iterator[list[list[Tensor]]]:
        """Yields, pass after pass over the samples, the averages of each parameter, step by step.
        A strategy without state gives the same in every pass, which is then run only once."""
        samples = [self._samples[name] for name in names]
        named = [Parameter(name, tuple(own[0].shape)) for name, own in zip(names, samples)]
        context, steps = self._probe.context(text, Bucket(tuple(named))), count()
        made = Strategy.parse(text)
        remembers = made.feedback is not None or made.collective.own_feedback
        while True:
            found = list[list[Tensor]]()
            for gradients in zip(*samples):
                rooms = [x.flatten().clone() for x in gradients]
                self._probe.run(context, rooms, next(steps))
                found.append(rooms)
            yield found
            while not remembers:
                yield found


def _errors(
    names: Sequence[str], pairs: Sequence[tuple[Sequence[Tensor], Sequence[Tensor]]]
) -> dict[str, float]:
    """Returns the errors by name, and the error of all parameters as ""."""
    found = {"": _error([(torch.cat([*own]), torch.cat([*right])) for own, right in pairs])}
    for i, name in enumerate(names):
        found[name] = _error([(own[i], right[i]) for own, right in pairs])
    return {name: error for name, error in found.items() if error is not None}


def _error(steps: Sequence[tuple[Tensor, Tensor]]) -> float | None:
    """Returns the mean error over steps with finite averages of which the exact one is not 0. In
    float64, in which the square of no float32 vanishes or overflows."""
    errors = [
        float((own.double() - right.double()).norm() / right.double().norm())
        for own, right in steps
        if own.isfinite().all() and right.isfinite().all() and right.any()
    ]
    return mean(errors) if errors else None

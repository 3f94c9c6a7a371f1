"""What strategies lose of a job's own gradients: each parameter's average beside the exact one.

sampled steps, again and again ─┬─ by the strategy ──► averages ─┐
                                └─ sent whole ───────► averages ─┴─► errors
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain, repeat
from statistics import mean

import torch
from torch import Tensor

from gradwire.buckets import Bucket, Parameter
from gradwire.dynamics import Dynamics
from gradwire.planner.candidates import FP32
from gradwire.strategy import Strategy
from gradwire.tuning.probe import Probe

_ROUNDS = 6  # over the sampled steps, until residuals are what they are in a long run


class Exactness:
    """Measures it. All methods are collective. samples: by name, this rank's gradients step by
    step, as many of each."""

    def __init__(self, probe: Probe, samples: Mapping[str, Sequence[Tensor]]) -> None:
        self._probe, self._samples = probe, samples
        self._known: dict[tuple[str, tuple[str, ...]], list[list[Tensor]]] = {}

    def errors(self, strategy: str) -> dict[str, float]:
        """Of one step's average, with feedback: its distance from the exact one over that one's
        norm, the mean over steps; by name, and of all as "". Empty if there is nothing to compare.

        What keeps a momentum is compared with that of the exact average; orthogonal steps, of
        matrices only, with those that are sent whole.
        """
        made, names = Strategy.parse(strategy), list(self._samples)
        own = Dynamics.of(made)
        if made.feedback is not None and made.feedback.rule == "orthogonal":
            names = [name for name, x in self._samples.items() if x[0].dim() == 2]
        else:
            own = own.of_vectors
        whole = own.take(FP32)
        if whole is None or not names:  # directions
            return {}
        pairs = list(zip(self._averages(strategy, names), self._exact(whole, names)))
        found = {"": _error([(torch.cat(own), torch.cat(right)) for own, right in pairs])}
        for i, name in enumerate(names):
            found[name] = _error([(own[i], right[i]) for own, right in pairs])
        return {name: error for name, error in found.items() if error is not None}

    def _exact(self, whole: str, names: Sequence[str]) -> list[list[Tensor]]:
        key = whole, tuple(names)
        if key not in self._known:
            self._known[key] = self._averages(whole, names)
        return self._known[key]

    def _averages(self, text: str, names: Sequence[str]) -> list[list[Tensor]]:
        """Step by step, of each parameter, when the samples come for the last time."""
        if not names:
            return []
        samples = [self._samples[name] for name in names]
        named = [Parameter(name, tuple(own[0].shape)) for name, own in zip(names, samples)]
        context, found = self._probe.context(text, Bucket(tuple(named))), list[list[Tensor]]()
        for step, gradients in enumerate(chain(*repeat(list(zip(*samples)), _ROUNDS))):
            rooms = [x.flatten().clone() for x in gradients]
            self._probe.run(context, rooms, step)
            found.append(rooms)
        return found[-len(samples[0]) :]


def _error(steps: Sequence[tuple[Tensor, Tensor]]) -> float | None:
    """The mean over steps whose exact average is something."""
    errors = [
        float((own - right).norm() / right.norm())
        for own, right in steps
        if right.isfinite().all() and right.any()
    ]
    return mean(errors) if errors else None

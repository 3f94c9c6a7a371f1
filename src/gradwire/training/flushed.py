"""What `flush` added to gradients, until an optimizer steps with it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn

from gradwire.training.fsdp import shard_of


class Flushed:
    """Averages that are in `.grad`, and may have come with another learning rate than the step's.

    After a resume, or where a scheduler moves on, the rate is known at the step only; what waited
    in residuals is multiplied then, and so is what was taken out of them.
    """

    def __init__(
        self, parameters: Mapping[str, nn.Parameter], averages: Mapping[str, Tensor],
        loss_scale: float = 1.0,
    ) -> None:  # fmt: skip
        self._parameters, self._averages = parameters, dict(averages)
        for name, average in averages.items():
            p = parameters[name]
            p.grad = torch.zeros_like(p) if p.grad is None else p.grad
            self._add(name, 1.0)
            average.div_(loss_scale)  # without which gradients are in the optimizer's step

    def scale_waiting(self, name: str, factor: float) -> None:
        """Scale what waits, as a `Ledger` does."""
        if name in self._averages:
            self._add(name, factor - 1.0)

    def __contains__(self, name: str) -> bool:
        return name in self._averages

    def leave(self, names: Iterable[str]) -> None:
        """A step is made with them."""
        for name in names:
            self._averages.pop(name, None)

    @torch.no_grad()
    def _add(self, name: str, factor: float) -> None:
        gradient = self._parameters[name].grad
        if gradient is not None:
            average = self._averages[name]
            shard_of(gradient).add_(average.to(gradient.dtype), alpha=factor)

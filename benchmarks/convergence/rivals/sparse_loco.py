"""SparseLoCo: local steps, then the largest parts of how far each came, in two bits."""

from __future__ import annotations

import torch
from torch import Tensor

from gradwire.buckets import Parameter
from gradwire.plan import Plan
from gradwire.strategy import State
from rivals import tiles
from rivals.rival import Rival

SIGMAS = 6
"""The width of the four bins together."""
CODES = torch.arange(-2.0, 2.0)
TABLE_BYTES = 4 * len(CODES)


class SparseLoCo(Rival):
    """Worker i contributes D, how far it came in its own H steps of AdamW.

          E = β · E + D
          S = two bits of the largest of each tile   sent: a place of 12 bits and 2 of value each
          E = E - S
          X = X - mean S                             the outer step, of rate 1; all go on from X

    E replaces DiLoCo's outer momentum. The number of elements is proportional to the tile: 128 of
    64 × 64, 3 %, by default, at least one.

    of_senders: the mean of an element is over those that sent it, as in the authors' program,
    instead of over all workers, as the paper has it.

    Source: Sarfi et al. 2025, "Communication efficient LLM pre-training with SparseLoCo",
    arXiv:2508.15706, algorithm 1; bins as in the authors' program.
    """

    def __init__(
        self, plan: Plan, world: int, *, share: float = 128 / 4096, decay: float = 0.95,
        coded: bool = True, of_senders: bool = False, seed: int = 0,
    ) -> None:  # fmt: skip
        self._share, self._decay = share, decay
        self._coded, self._of_senders = coded, of_senders
        super().__init__(plan, world, seed=seed)

    def begin(self, parameter: Parameter) -> State:
        return {"waiting": torch.zeros(self.world, *parameter.shape)}

    def meet(self, name: str, x: Tensor, state: State) -> Tensor:
        waiting = tiles.split(self._decay * state["waiting"] + x)
        mask = tiles.chosen(waiting, self._share)
        values = waiting[mask].view(self.world, -1)
        sent = torch.zeros_like(waiting)
        sent[mask] = (two_bits(values) if self._coded else values).flatten()
        state["waiting"] = tiles.join(waiting - sent, x.shape)
        bits, table = (2, TABLE_BYTES) if self._coded else (32, 0)
        self.count("all_gather", tiles.payload(waiting, self._share, bits) + table)
        senders = mask.sum(0).clamp(min=1) if self._of_senders else self.world
        return tiles.join((sent.sum(0) / senders)[None], (1, *x.shape[1:]))[0]


def two_bits(values: Tensor) -> Tensor:
    """Replaces each value by the mean of its bin: (workers, values) -> the same.

    Four bins lie around the mean of a worker's values, together as wide as six of their standard
    deviations; the outer ones reach as far as values do.
    """
    width = SIGMAS / len(CODES) * values.std(1, keepdim=True).nan_to_num() + 1e-30
    bins = ((values - values.mean(1, keepdim=True)) / width).round().clamp(CODES[0], CODES[-1])
    members = (bins[..., None] == CODES).to(values.dtype)
    means = (values[..., None] * members).sum(1) / members.sum(1).clamp(min=1)
    return (members * means[:, None]).sum(2)

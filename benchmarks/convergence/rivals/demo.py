"""DeMo: the largest waves leave each worker's momentum; the sign of their sum is the step."""

from __future__ import annotations

import math
from functools import cache

import torch
from torch import Tensor

from gradwire.buckets import Parameter
from gradwire.plan import Plan
from gradwire.strategy import State
from rivals import tiles
from rivals.rival import Rival


class DeMo(Rival):
    """DeMo, for all parameters.

        worker i        C: its momentum's cosine transform, tile by tile
          C = β · C + transform(G)
          S = the largest of each tile           sent: a place of 12 bits and 32 of value each
          C = C - S
          X = (1 - η λ) · X - η · sign(inverse(Σ S))

    The transform is orthonormal, so the momentum is kept in transformed form. The number of waves
    is proportional to the tile: 32 of 64 × 64 by default, at least one. In the authors' program it
    is 32 of a tile of any size, and a wave that some workers send is averaged over these instead
    of added up.

    Source: Peng, Quesnelle, Kingma 2024, "DeMo: Decoupled momentum optimization",
    arXiv:2411.19870, algorithm 1; the decay of 0.999 and 32 waves are its experiments'.
    """

    def __init__(
        self, plan: Plan, world: int, *, share: float = 32 / 4096, decay: float = 0.999,
        seed: int = 0,
    ) -> None:  # fmt: skip
        self._share, self._decay = share, decay
        super().__init__(plan, world, seed=seed)

    def begin(self, parameter: Parameter) -> State:
        return {"momentum": tiles.split(torch.zeros(self.world, *parameter.shape))}

    def meet(self, name: str, x: Tensor, state: State) -> Tensor:
        waves = self._decay * state["momentum"] + transform(tiles.split(x))
        sent = waves.where(tiles.chosen(waves, self._share), 0.0)
        state["momentum"] = waves - sent
        self.count("all_gather", tiles.payload(waves, self._share, bits=32))
        return tiles.join(inverse(sent.sum(0, keepdim=True)), (1, *x.shape[1:]))[0].sign()


def transform(x: Tensor) -> Tensor:
    """Returns the cosine transform of tiles: (…, height, width) -> the same."""
    return cosines(x.shape[-2]) @ x @ cosines(x.shape[-1]).T


def inverse(waves: Tensor) -> Tensor:
    return cosines(waves.shape[-2]).T @ waves @ cosines(waves.shape[-1])


@cache
def cosines(n: int) -> Tensor:
    """Returns the matrix of the orthonormal cosine transform, DCT-II: a wave in each row, (n,
    n)."""
    at = torch.arange(n, dtype=torch.float64)
    waves = torch.cos(math.pi / n * (at + 0.5) * at[:, None]) * math.sqrt(2 / n)
    waves[0] /= math.sqrt(2)
    return waves.float()

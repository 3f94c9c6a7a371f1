"""The next character by a small transformer with AdamW: which compressors are sound with Adam?"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from task import Batch, Length, Metric, Settings, Task, cosine, dice, evaluating, there
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, gelu, scaled_dot_product_attention

from tasks.text import SYMBOLS, text, windows

WIDTH, HEADS, LAYERS, CONTEXT = 96, 4, 3, 64
PER_WORKER = 4
HELD_OUT_WINDOWS = 512


class Block(nn.Module):
    """Causal attention, then two layers for each position, with norms in front."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self._heads = heads
        self.norm, self.second_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query_key_value = nn.Linear(width, 3 * width)
        self.project = nn.Linear(width, width)
        self.widen, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, time, width = x.shape
        shape = batch, time, 3, self._heads, width // self._heads
        query, key, value = self.query_key_value(self.norm(x)).view(shape).permute(2, 0, 3, 1, 4)
        seen = scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.project(seen.transpose(1, 2).reshape(batch, time, width))
        return x + self.narrow(gelu(self.widen(self.second_norm(x))))


class Gpt(nn.Module):
    """A transformer of 361,000 parameters by default."""

    def __init__(
        self, width: int = WIDTH, heads: int = HEADS, layers: int = LAYERS,
        context: int = CONTEXT, symbols: int = SYMBOLS,
    ) -> None:  # fmt: skip
        super().__init__()
        self.symbols = nn.Embedding(symbols, width)
        self.places = nn.Embedding(context, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        self.scores = nn.Linear(width, symbols)
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, symbols: Tensor) -> Tensor:
        """Returns scores of what follows each. (batch, time) -> (batch, time, symbols)"""
        x = self.symbols(symbols) + self.places.weight[: symbols.shape[1]]
        return self.scores(self.norm(self.blocks(x)))


def batches(seed: int, step: int, workers: int) -> Sequence[Batch]:
    generator = dice("gpt", seed, step)
    drawn = windows(text().train, PER_WORKER * workers, CONTEXT + 1, generator)
    return [(part,) for part in drawn.split(PER_WORKER)]


def loss(network: nn.Module, batch: Batch) -> Tensor:
    symbols = batch[0]
    return cross_entropy(network(symbols[:, :-1]).flatten(0, 1), symbols[:, 1:].flatten())


def evaluate(network: nn.Module) -> float:
    """Returns bits per character."""
    held_out = windows(
        text().held_out, HELD_OUT_WINDOWS, CONTEXT + 1, dice("gpt", "held out")
    ).split(64)
    with evaluating(network):
        losses = [float(loss(network, there(network, part))) for part in held_out]
    return sum(losses) / len(losses) / math.log(2)


TASK = Task(
    name="gpt",
    mirrors="no paper of ours: a transformer with AdamW",
    model=Gpt,
    batches=batches,
    loss=loss,
    evaluate=evaluate,
    metric=Metric("held-out text", "bits/character", "bits"),
    settings=Settings(
        rate=2e-3, schedule=cosine(0.05), weight_decay=0.01, clip=1.0, optimizer="adamw"
    ),
    small=Length(500, 0.01),
    full=Length(2000, 0.01),
    data=lambda: text().digest,
)

MUON = replace(
    TASK, name="gpt-muon", mirrors="the same with Muon for its hidden matrices",
    settings=replace(TASK.settings, rate=8e-3, optimizer="muon"),
)  # fmt: skip

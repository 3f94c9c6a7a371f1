"""The next character by a transformer as large models are built today: AdamW, and Muon.

RMSNorm in front, rotary positions, SwiGLU, and no biases, so that there are few vectors (Touvron
et al. 2023, "LLaMA", section 2.2).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import torch
from task import Batch, Length, dice
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention, silu

from tasks import gpt
from tasks.text import SYMBOLS, text, windows

HEAD = 32


class Block(nn.Module):
    """Causal attention, then a gated layer for each position."""

    def __init__(self, width: int) -> None:
        super().__init__()
        inner = -(-8 * width // 3 // 8) * 8  # two thirds of four widths, a multiple of eight
        self.norm, self.second_norm = nn.RMSNorm(width), nn.RMSNorm(width)
        self.query_key_value = nn.Linear(width, 3 * width, bias=False)
        self.project = nn.Linear(width, width, bias=False)
        self.gate, self.widen = (nn.Linear(width, inner, bias=False) for _ in range(2))
        self.narrow = nn.Linear(inner, width, bias=False)

    def forward(self, x: Tensor, turn: Tensor) -> Tensor:
        batch, time, width = x.shape
        shape = batch, time, 3, width // HEAD, HEAD
        query, key, value = self.query_key_value(self.norm(x)).view(shape).permute(2, 0, 3, 1, 4)
        query, key = rotated(query, turn), rotated(key, turn)
        seen = scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.project(seen.transpose(1, 2).reshape(batch, time, width))
        inner = self.second_norm(x)
        return x + self.narrow(silu(self.gate(inner)) * self.widen(inner))


def rotated(x: Tensor, turn: Tensor) -> Tensor:
    """Rotates pairs of elements by their position's angles. (…, time, n), (2, time, n/2)"""
    first, second = x.chunk(2, -1)
    cosine_, sine = turn
    return torch.cat([first * cosine_ - second * sine, first * sine + second * cosine_], -1)


class Llama(nn.Module):
    """A transformer of 1,013,000 parameters, or 3,214,000 (width 256, 4 layers)."""

    def __init__(self, width: int = 128, layers: int = 5, symbols: int = SYMBOLS) -> None:
        super().__init__()
        self.symbols = nn.Embedding(symbols, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(layers))
        self.norm = nn.RMSNorm(width)
        self.scores = nn.Linear(width, symbols, bias=False)
        half = HEAD // 2
        angles = torch.arange(gpt.CONTEXT)[:, None] * 1e4 ** (-torch.arange(half) / half)
        self.register_buffer("turn", torch.stack([angles.cos(), angles.sin()]), persistent=False)
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, symbols: Tensor) -> Tensor:
        """Returns scores of what follows each. (batch, time) -> (batch, time, symbols)"""
        x, turn = self.symbols(symbols), self.get_buffer("turn")[:, : symbols.shape[1]]
        for block in self.blocks:
            x = block(x, turn)
        return self.scores(self.norm(x))


def batches(seed: int, step: int, workers: int) -> Sequence[Batch]:
    generator = dice("llama", seed, step)
    drawn = windows(text().train, gpt.PER_WORKER * workers, gpt.CONTEXT + 1, generator)
    return [(part,) for part in drawn.split(gpt.PER_WORKER)]


TASK = replace(
    gpt.TASK, name="llama", mirrors="no paper of ours: LLaMA's blocks with AdamW", model=Llama,
    batches=batches, full=Length(4000, 0.01),
)  # fmt: skip

MUON = replace(
    TASK, name="llama-muon", mirrors="the same with Muon for its hidden matrices",
    settings=replace(TASK.settings, rate=8e-3, optimizer="muon"),
)  # fmt: skip

LARGE = replace(
    TASK, name="llama-3m", mirrors="the same, three times as large",
    model=partial(Llama, 256, 4), full=Length(2000, 0.01),
)  # fmt: skip

LARGE_MUON = replace(
    LARGE, name="llama-3m-muon", mirrors="the same with Muon for its hidden matrices",
    settings=MUON.settings,
)  # fmt: skip

"""The next character by a transformer as large models are built today: AdamW, and Muon.

RMSNorm in front, rotary places, SwiGLU, no biases, so that vectors are few (Touvron et al. 2023,
"LLaMA", section 2.2).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from task import Batch, Length, dice
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention, silu

from tasks import gpt
from tasks.text import SYMBOLS, text, windows

WIDTH, HEADS, LAYERS, INNER = 128, 4, 5, 344


class Block(nn.Module):
    """Attention to what came before, then a gated layer for each place."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.second_norm = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)
        self.query_key_value = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.project = nn.Linear(WIDTH, WIDTH, bias=False)
        self.gate, self.widen = (nn.Linear(WIDTH, INNER, bias=False) for _ in range(2))
        self.narrow = nn.Linear(INNER, WIDTH, bias=False)

    def forward(self, x: Tensor, turn: Tensor) -> Tensor:
        batch, time, _ = x.shape
        shape = batch, time, 3, HEADS, WIDTH // HEADS
        query, key, value = self.query_key_value(self.norm(x)).view(shape).permute(2, 0, 3, 1, 4)
        query, key = rotated(query, turn), rotated(key, turn)
        seen = scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.project(seen.transpose(1, 2).reshape(batch, time, WIDTH))
        inner = self.second_norm(x)
        return x + self.narrow(silu(self.gate(inner)) * self.widen(inner))


def rotated(x: Tensor, turn: Tensor) -> Tensor:
    """Pairs of elements turned by their place's angles. (…, time, n), (2, time, n/2)"""
    first, second = x.chunk(2, -1)
    cosine_, sine = turn
    return torch.cat([first * cosine_ - second * sine, first * sine + second * cosine_], -1)


class Llama(nn.Module):
    """1,013,000 parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.symbols = nn.Embedding(SYMBOLS, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm = nn.RMSNorm(WIDTH)
        self.scores = nn.Linear(WIDTH, SYMBOLS, bias=False)
        half = WIDTH // HEADS // 2
        angles = torch.arange(gpt.CONTEXT)[:, None] * 1e4 ** (-torch.arange(half) / half)
        self.register_buffer("turn", torch.stack([angles.cos(), angles.sin()]), persistent=False)
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, symbols: Tensor) -> Tensor:
        """Scores of what follows each. (batch, time) -> (batch, time, symbols)"""
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

"""The next character of Python's own text: an LSTM, plain SGD, clipping; as on Penn Treebank."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import torch
from task import Batch, Length, Metric, Settings, Task, dice, evaluating, linear, there
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.functional import linear as weighted

from tasks.text import SYMBOLS, text, windows

HIDDEN, FEW_HIDDEN = 112, 64
PER_WORKER, CHARACTERS = 4, 32
HELD_OUT_CHARACTERS = 256


class LanguageModel(nn.Module):
    """Two LSTM layers; the embedding is the output's matrix too. 213,000 parameters, or 73,000."""

    def __init__(self, hidden: int = HIDDEN) -> None:
        super().__init__()
        self.embedding = nn.Embedding(SYMBOLS, hidden)
        self.lstm = nn.LSTM(hidden, hidden, 2)
        self.bias = nn.Parameter(torch.zeros(SYMBOLS))
        nn.init.uniform_(self.embedding.weight, -0.1, 0.1)

    def forward(self, symbols: Tensor) -> Tensor:
        """Returns scores of what follows each. (time, batch) -> (time, batch, symbols)"""
        states, _ = self.lstm(self.embedding(symbols))
        return weighted(states, self.embedding.weight, self.bias)


def batches(seed: int, step: int, workers: int) -> Sequence[Batch]:
    generator = dice("language", seed, step)
    drawn = windows(text().train, PER_WORKER * workers, CHARACTERS + 1, generator)
    return [(part,) for part in drawn.t().split(PER_WORKER, dim=1)]


def loss(network: nn.Module, batch: Batch) -> Tensor:
    symbols = batch[0]
    return cross_entropy(network(symbols[:-1]).flatten(0, 1), symbols[1:].flatten())


def evaluate(network: nn.Module) -> float:
    """Returns bits per character of all that is held out."""
    held_out = text().held_out.unfold(0, HELD_OUT_CHARACTERS + 1, HELD_OUT_CHARACTERS)
    with evaluating(network):
        return float(loss(network, there(network, held_out.t()))) / math.log(2)


TASK = Task(
    name="language",
    mirrors="Penn Treebank, LSTM",
    model=LanguageModel,
    batches=batches,
    loss=loss,
    evaluate=evaluate,
    metric=Metric("held-out text", "bits/character", "bits"),
    settings=Settings(rate=12.0, schedule=linear(), clip=0.25, warm_up=40),
    small=Length(500, 0.01),
    full=Length(40_000, 0.001),  # with 20,000, sparse methods are 1.5 % behind
    data=lambda: text().digest,
)
FAST = replace(
    TASK, name="language-small", model=partial(LanguageModel, FEW_HIDDEN),
    small=Length(500, 0.01), full=Length(4000, 0.01),
)  # fmt: skip

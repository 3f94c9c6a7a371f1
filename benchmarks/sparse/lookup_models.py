"""Three models whose parameters are mostly tables, with batches that look rows up.

deepfm   16 fields of 100 to 200,000 values each, DeepFM (Guo et al. 2017)
lstm     the next word of Python's documentation, two tables, sampled softmax
nmt      sentences of made-up words, reversed and renamed: encoder, decoder, attention; 3 tables

Words and values are drawn by Zipf's law, or come from the text. A batch is a function of
(step, rank).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gradwire.demo.corpus import python_documents, tokenize, vocabulary

Batch = tuple[Tensor, ...]


def zipf(size: int, shape: tuple[int, ...], dice: torch.Generator) -> Tensor:
    """Draws numbers below `size`, the n-th 1/n times as often as the first."""
    return torch.pow(size, torch.rand(shape, generator=dice)).long() - 1


def sampled(states: Tensor, targets: Tensor, table: nn.Embedding, others: Tensor) -> Tensor:
    """Cross entropy of states (n, width) and targets (n,) over the targets and other words."""
    words, places = torch.unique(torch.cat([targets, others]), return_inverse=True)
    return F.cross_entropy(states @ table(words).T, places[: len(targets)])


class DeepFM(nn.Module):
    """Predicts a click from one value of each field."""

    sizes = tuple(int(100 * 2000 ** (i / 15)) for i in range(16))
    width, examples = 16, 256

    def __init__(self, sparse: bool) -> None:
        super().__init__()
        rows = sum(self.sizes)
        self.table = nn.Embedding(rows, self.width, sparse=sparse)
        self.linear = nn.Embedding(rows, 1, sparse=sparse)
        for table in (self.table, self.linear):
            nn.init.normal_(table.weight, std=0.05)
        wide = len(self.sizes) * self.width
        self.deep = nn.Sequential(
            nn.Linear(wide, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 1)
        )

    @classmethod
    def batch(cls, dice: torch.Generator) -> Batch:
        values = [zipf(size, (cls.examples,), dice) for size in cls.sizes]
        first = torch.tensor([0, *cls.sizes[:-1]]).cumsum(0)
        # Odd values of the small fields are clicked on more often.
        odds = torch.stack(values[:4]).remainder(2).float().mean(0)
        clicked = torch.rand(cls.examples, generator=dice) < 0.2 + 0.6 * odds
        return torch.stack(values, 1) + first, clicked.float()

    def forward(self, ids: Tensor, clicked: Tensor) -> Tensor:
        rows = self.table(ids)
        pairs = (rows.sum(1).square() - rows.square().sum(1)).sum(1) / 2
        scores = self.linear(ids).sum((1, 2)) + pairs + self.deep(rows.flatten(1)).squeeze(1)
        return F.binary_cross_entropy_with_logits(scores, clicked)


@cache
def text() -> tuple[Tensor, int]:
    """Returns Python's documentation as word numbers, and how many words there are."""
    stream = [word for document in python_documents() for word in tokenize(document)]
    words = vocabulary(stream, 30_000)
    number = {word: i for i, word in enumerate(words)}
    return torch.tensor([number.get(word, 0) for word in stream]), len(words)


class LanguageModel(nn.Module):
    """Predicts the next word of the text."""

    width, hidden, windows, length, others = 256, 128, 8, 16, 256

    def __init__(self, sparse: bool) -> None:
        super().__init__()
        words = text()[1]
        self.table = nn.Embedding(words, self.width, sparse=sparse)
        self.lstm = nn.LSTM(self.width, self.hidden)
        self.out = nn.Embedding(words, self.hidden, sparse=sparse)

    @classmethod
    def batch(cls, dice: torch.Generator) -> Batch:
        stream, words = text()
        begins = torch.randint(len(stream) - cls.length - 1, (cls.windows,), generator=dice)
        return stream[begins + torch.arange(cls.length + 1)[:, None]], zipf(
            words, (cls.others,), dice
        )

    def forward(self, words: Tensor, others: Tensor) -> Tensor:
        states, _ = self.lstm(self.table(words[:-1]))
        return sampled(states.flatten(0, 1), words[1:].flatten(), self.out, others)


class Translator(nn.Module):
    """Translates a sentence to its words backwards, each by its other name."""

    words, width, hidden, sentences, length, others = 20_000, 256, 128, 12, 12, 256

    def __init__(self, sparse: bool) -> None:
        super().__init__()
        self.source = nn.Embedding(self.words, self.width, sparse=sparse)
        self.target = nn.Embedding(self.words, self.width, sparse=sparse)
        self.out = nn.Embedding(self.words, self.hidden, sparse=sparse)
        self.encoder = nn.GRU(self.width, self.hidden)
        self.decoder = nn.GRU(self.width, self.hidden)
        self.joined = nn.Linear(2 * self.hidden, self.hidden)

    @classmethod
    def batch(cls, dice: torch.Generator) -> Batch:
        source = zipf(cls.words, (cls.length, cls.sentences), dice)
        return source, source.flip(0) * 7919 % cls.words, zipf(cls.words, (cls.others,), dice)

    def forward(self, source: Tensor, target: Tensor, others: Tensor) -> Tensor:
        read, last = self.encoder(self.source(source))
        states, _ = self.decoder(self.target(target[:-1]), last)
        seen = F.scaled_dot_product_attention(*(x.transpose(0, 1) for x in (states, read, read)))
        both = torch.cat([states, seen.transpose(0, 1)], -1)
        states = torch.tanh(self.joined(both)).flatten(0, 1)
        return sampled(states, target[1:].flatten(), self.out, others)


MODELS: dict[str, Callable[[bool], nn.Module]] = {
    "deepfm": DeepFM, "lstm": LanguageModel, "nmt": Translator
}  # fmt: skip

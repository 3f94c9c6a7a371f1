"""The model and how it is fed: a word-level LSTM in the medium Penn Treebank setting."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

Hidden: TypeAlias = tuple[Tensor, Tensor]

_INITIAL_RANGE = 0.05  # of all weights, as Zaremba et al. 2014 chose for this model


class LanguageModel(nn.Module):
    """Embedding, two LSTM layers, and an untied projection to the vocabulary."""

    def __init__(self, vocabulary: int = 10_000, hidden: int = 650, layers: int = 2) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, hidden)
        self.lstm = nn.LSTM(hidden, hidden, layers)
        self.projection = nn.Linear(hidden, vocabulary)
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -_INITIAL_RANGE, _INITIAL_RANGE)

    def forward(
        self, words: Tensor, following: Tensor, hidden: Hidden | None = None
    ) -> tuple[Tensor, Hidden]:
        """Returns the mean cross entropy in nats per word, and the state to go on from.

        words, following: int64, (time, batch); `following` is `words` one word later.
        """
        states, hidden = self.lstm(self.embedding(words), hidden)
        scores = self.projection(states).flatten(0, 1)
        return cross_entropy(scores, following.flatten()), hidden


def streams(words: Tensor, count: int) -> Tensor:
    """Cuts a text into `count` equal, contiguous streams: (length, count). The rest is dropped."""
    length = len(words) // count
    return words[: length * count].view(count, length).t().contiguous()


def batches(columns: Tensor, time: int) -> Iterator[tuple[Tensor, Tensor, bool]]:
    """Yields (words, following, fresh) for ever: each (time, batch); fresh at a stream's start."""
    last = len(columns) - 1 - time
    while True:
        for start in range(0, last + 1, time):
            end = start + time
            yield columns[start:end], columns[start + 1 : end + 1], start == 0


def share(columns: Tensor, rank: int, world: int) -> Tensor:
    """Returns a rank's own streams, as equal as can be; all ranks' shares make the whole."""
    return columns[:, rank::world]


@torch.no_grad()
def loss_sum(model: LanguageModel, columns: Tensor) -> tuple[float, int]:
    """Returns the cross entropy in nats, summed over all words of the streams, and their count."""
    count = (len(columns) - 1) * columns.shape[1]
    if count <= 0:
        return 0.0, 0
    loss, _ = model(columns[:-1], columns[1:])
    return float(loss) * count, count

"""Three small models on data that needs no download, and their gradients on every rank's data."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from gradwire.demo import corpus
from gradwire.demo.model import LanguageModel

Gradients: TypeAlias = "dict[str, Tensor]"
"""The gradient of every matrix, flat, by name; vectors travel dense and are left out."""

RANKS = 4


@dataclass(frozen=True)
class Workload:
    """A model, and the loss of a rank's mini-batch as a function of (rank, its generator)."""

    name: str
    module: nn.Module
    loss: Callable[[int, torch.Generator], Tensor]
    learning_rate: float


@dataclass(frozen=True)
class Moment:
    """The gradients of consecutive steps: by step, then by rank."""

    step: int
    loss: float
    gradients: list[list[Gradients]]


def moments(workload: Workload, starts: tuple[int, ...], window: int) -> Iterator[Moment]:
    """Trains with the exact mean gradient; at each start, records `window` steps.

    SGD with momentum 0.9; the gradient itself is recorded. starts: ascending, at least `window`
    apart.
    """
    optimizer = torch.optim.SGD(workload.module.parameters(), workload.learning_rate, 0.9)
    recorded: list[list[Gradients]] = []
    first_loss = 0.0
    for step in range(starts[-1] + window):
        optimizer.zero_grad()
        loss, gradients = _step(workload, step)
        optimizer.step()
        if any(start <= step < start + window for start in starts):
            first_loss = first_loss if recorded else loss
            recorded.append(gradients)
        if len(recorded) == window:
            yield Moment(step + 1 - window, first_loss, recorded)
            recorded = []


def _step(workload: Workload, step: int) -> tuple[float, list[Gradients]]:
    """Returns the mean loss and every rank's gradient, and leaves their mean in .grad."""
    names = [(name, p) for name, p in workload.module.named_parameters() if p.dim() > 1]
    losses, gradients = [], []
    before = {name: torch.zeros(p.numel()) for name, p in names}
    for rank in range(RANKS):
        generator = torch.Generator().manual_seed(1000 * step + rank)
        loss = workload.loss(rank, generator)
        loss.backward()
        so_far = {name: _gradient(p).clone() for name, p in names}
        gradients.append({name: so_far[name] - before[name] for name, _ in names})
        before = so_far
        losses.append(float(loss.detach()))
    for p in workload.module.parameters():
        if p.grad is not None:
            p.grad.div_(RANKS)
    return sum(losses) / RANKS, gradients


def _gradient(p: nn.Parameter) -> Tensor:
    return torch.zeros(p.numel()) if p.grad is None else p.grad.view(-1)


# -- the three ---------------------------------------------------------------------------------


def workloads(hidden: int = 40, documents: list[str] | None = None) -> list[Workload]:
    """Returns a convolutional network on generated pictures, and an LSTM and a transformer on
    Python's text.

    hidden: the width of the language models. documents: the texts; all by default.
    """
    torch.manual_seed(0)
    text = corpus.build(100, documents)
    return [pictures(), lstm(text, hidden), transformer(text, hidden)]


def pictures(classes: int = 10, side: int = 16, batch: int = 32) -> Workload:
    """Smooth random prototypes, shifted and noisy; a rank sees its classes twice as often."""
    coarse = torch.randn(classes, 1, side // 4, side // 4)
    prototypes = nn.functional.interpolate(coarse, scale_factor=4, mode="bilinear")
    module = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(32 * (side // 4) ** 2, 64), nn.ReLU(), nn.Linear(64, classes),
    )  # fmt: skip

    def loss(rank: int, generator: torch.Generator) -> Tensor:
        odds = torch.ones(classes)
        odds[rank::RANKS] = 2.0
        labels = torch.multinomial(odds, batch, replacement=True, generator=generator)
        shifts = torch.randint(-2, 3, (2,), generator=generator).tolist()
        shown = torch.roll(prototypes[labels], shifts, dims=(2, 3))
        noise = torch.randn(shown.shape, generator=generator)
        return cross_entropy(module(shown + 1.5 * noise), labels)

    return Workload("CNN, pictures", module, loss, 0.01)


def lstm(text: corpus.Corpus, hidden: int, time: int = 16, streams: int = 8) -> Workload:
    """The demo's language model, with a smaller width."""
    module = LanguageModel(len(text.words), hidden)

    def loss(rank: int, generator: torch.Generator) -> Tensor:
        words = _passages(text.train, rank, generator, time + 1, streams).t()
        value: Tensor = module(words[:-1], words[1:])[0]
        return value

    return Workload("LSTM, text", module, loss, 0.3)


def transformer(text: corpus.Corpus, hidden: int, time: int = 32, batch: int = 4) -> Workload:
    """Two layers with a causal mask, on the 2,000 most frequent words."""
    module = _Transformer(min(len(text.words), 2000), 2 * hidden, time)

    def loss(rank: int, generator: torch.Generator) -> Tensor:
        words = _passages(text.train, rank, generator, time + 1, batch)
        words = torch.where(words < module.vocabulary, words, 0)
        scores = module(words[:, :-1])
        return cross_entropy(scores.flatten(0, 1), words[:, 1:].flatten())

    return Workload("transformer, text", module, loss, 0.05)


class _Transformer(nn.Module):
    def __init__(self, vocabulary: int, width: int, time: int) -> None:
        super().__init__()
        self.vocabulary = vocabulary
        self.words = nn.Embedding(vocabulary, width)
        self.places = nn.Embedding(time, width)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(
                width, 4, 4 * width, dropout=0.0, batch_first=True, norm_first=True
            )
            for _ in range(2)
        )
        self.norm = nn.LayerNorm(width)
        self.projection = nn.Linear(width, vocabulary)

    def forward(self, words: Tensor) -> Tensor:
        time = words.shape[1]
        mask = nn.Transformer.generate_square_subsequent_mask(time)
        x = self.words(words) + self.places(torch.arange(time))
        for layer in self.layers:
            x = layer(x, src_mask=mask, is_causal=True)
        scores: Tensor = self.projection(self.norm(x))
        return scores


def _passages(
    words: Tensor, rank: int, generator: torch.Generator, length: int, count: int
) -> Tensor:
    """Returns (count, length) words from random positions in this rank's quarter of the text."""
    quarter = len(words) // RANKS
    starts = torch.randint(quarter - length, (count, 1), generator=generator)
    return words[rank * quarter + starts + torch.arange(length)]

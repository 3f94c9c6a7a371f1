"""Models to train: four for CPUs by plain SGD, each of which needs another plan; and three jobs
whose plan keeps optimizer state, or whose gradients are rows.

few_large    6 × Linear(1024), 25 MB          few gradients, all of which are worth compressing
many_small   60 × Linear(160) with bias, 6 MB  120 gradients: what is paid per message rules
transformer  4 blocks of width 128, 4 MB       a real mixture, vectors among matrices
embedding    80 % of 13 MB in one table        one gradient, the last to come, rules

transformer_dgc    SGD with momentum, which the plan keeps
transformer_adam   AdamW, whose moments the plan keeps
embedding_rows     the table's gradient is the rows that a batch has looked up
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from gradwire.optim import SGD, AdamW

MakeOptimizer = Callable[..., Optimizer]
"""(parameters) -> the optimizer that steps with the averages."""


_PLAIN = partial(torch.optim.SGD, lr=1e-4)


@dataclass
class Training:
    """A model, and the function that gives the loss of one step. strategies: to plan with by
    default; none: those that fit the optimizer."""

    model: nn.Module
    loss: Callable[[], Tensor]
    make_optimizer: MakeOptimizer = _PLAIN
    strategies: tuple[str, ...] = ()


def few_large() -> Training:
    """Returns a model of 6 × 1024² weights, 25 MB of gradients."""
    model = nn.Sequential(*(nn.Linear(1024, 1024, bias=False) for _ in range(6)))
    return _regression(model, torch.randn(64, 1024))


def many_small() -> Training:
    """Returns a model of 60 layers of 160² with bias: 120 parameters, 6.2 MB of gradients."""
    layers = [layer for _ in range(60) for layer in (nn.Linear(160, 160), nn.Tanh())]
    return _regression(nn.Sequential(*layers), torch.randn(32, 160))


def transformer() -> Training:
    """Returns a language model of four blocks: 51 parameters, 3.7 MB of gradients."""
    model = Transformer(words=1000, width=128, blocks=4)
    words = torch.randint(1000, (8, 33))

    def loss() -> Tensor:
        scores = model(words[:, :-1])
        return nn.functional.cross_entropy(scores.flatten(0, 1), words[:, 1:].flatten())

    return Training(model, loss)


def transformer_dgc() -> Training:
    """Returns the same with momentum SGD, which leaves its momentum to the plan."""
    return replace(
        transformer(), make_optimizer=partial(SGD, lr=1e-4, momentum=0.9),
        strategies=("none | allreduce", "bf16 | allreduce", "dgc(0.01) | allgather"),
    )  # fmt: skip


def transformer_adam() -> Training:
    """Returns the same with AdamW, which leaves its moments to the plan."""
    return replace(transformer(), make_optimizer=partial(AdamW, lr=1e-5))


def embedding(rows: bool = False) -> Training:
    """Returns a model with four fifths of the elements in one table, whose gradient comes last;
    dense, or its rows."""
    table = nn.Embedding(20_000, 128, sparse=rows)
    layers = [nn.Linear(1024, 512), nn.Tanh(), nn.Linear(512, 192), nn.Tanh(), nn.Linear(192, 64)]
    model = nn.Sequential(table, nn.Flatten(), *layers)
    words = torch.randint(20_000, (64, 8))
    return Training(model, lambda: model(words).square().mean())


def embedding_rows() -> Training:
    """Returns `embedding` with row gradients: the table's gradient is 512 rows of 20,000."""
    return embedding(rows=True)


def _regression(model: nn.Sequential, x: Tensor) -> Training:
    return Training(model, lambda: model(x).square().mean())


class Block(nn.Module):
    """Causal attention and a layer of four times the width, each beside a shortcut."""

    def __init__(self, width: int, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.mix, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wide, self.back = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Maps x, (sentences, words, width), to the same shape."""
        n, words, width = x.shape
        q, k, v = (
            part.view(n, words, self.heads, -1).transpose(1, 2)
            for part in self.mix(self.before(x)).chunk(3, dim=-1)
        )
        seen = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).reshape(n, words, width))
        made: Tensor = x + self.back(nn.functional.gelu(self.wide(self.between(x))))
        return made


class Transformer(nn.Module):
    """Maps words to scores of the next word; input and output share their table."""

    def __init__(self, words: int, width: int, blocks: int) -> None:
        super().__init__()
        self.table = nn.Embedding(words, width)
        self.blocks = nn.Sequential(*(Block(width) for _ in range(blocks)))
        self.last = nn.LayerNorm(width)

    def forward(self, words: Tensor) -> Tensor:
        """Returns scores, (sentences, words, all words)."""
        scores: Tensor = self.last(self.blocks(self.table(words))) @ self.table.weight.T
        return scores


MODELS: dict[str, Callable[[], Training]] = {
    make.__name__: make for make in (few_large, many_small, transformer, embedding)
}
REMEMBERED: dict[str, Callable[[], Training]] = {
    make.__name__: make for make in (transformer_dgc, transformer_adam, embedding_rows)
}

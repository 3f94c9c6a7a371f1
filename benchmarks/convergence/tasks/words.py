"""The next word of Python's own documentation: an LSTM of mostly two tables; SGD with momentum.

The demo's model and text, with a smaller width: still so large that its steps wait for a slow
network.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from functools import cache

from task import Batch, Length, Metric, Settings, Task, dice, evaluating, linear, there
from torch import Tensor, nn

from gradwire.demo.corpus import Corpus, build
from gradwire.demo.model import LanguageModel
from tasks.text import windows

HIDDEN = 320
PER_WORKER, WORDS = 4, 16
HELD_OUT_WORDS = 40_000
HELD_OUT_WINDOWS, HELD_OUT_LENGTH = 128, 64


def model() -> nn.Module:
    """A model of 8.0 million parameters, 6.4 of them in the tables of 10,000 words."""
    return LanguageModel(hidden=HIDDEN)


@cache
def corpus() -> Corpus:
    """Returns the corpus, read once in a process; takes about two seconds."""
    return build(HELD_OUT_WORDS)


def batches(seed: int, step: int, workers: int) -> Sequence[Batch]:
    generator = dice("words", seed, step)
    drawn = windows(corpus().train, PER_WORKER * workers, WORDS + 1, generator)
    return [(part,) for part in drawn.t().split(PER_WORKER, dim=1)]


def loss(network: nn.Module, batch: Batch) -> Tensor:
    words = batch[0]
    mean: Tensor = network(words[:-1], words[1:])[0]
    return mean


def evaluate(network: nn.Module) -> float:
    """Returns bits per word."""
    held_out = windows(
        corpus().held_out, HELD_OUT_WINDOWS, HELD_OUT_LENGTH + 1, dice("words", "held out")
    )
    with evaluating(network):
        return float(loss(network, there(network, held_out.t()))) / math.log(2)


def _digest() -> str:
    return hashlib.sha256(" ".join(corpus().words).encode()).hexdigest()[:16]


TASK = Task(
    name="words",
    mirrors="Penn Treebank, LSTM",
    model=model,
    batches=batches,
    loss=loss,
    evaluate=evaluate,
    metric=Metric("held-out text", "bits/word", "bits"),
    settings=Settings(rate=4.0, schedule=linear(), momentum=0.9, clip=0.5, warm_up=40),
    small=Length(200, 0.01),
    full=Length(2000, 0.01),
    data=_digest,
)

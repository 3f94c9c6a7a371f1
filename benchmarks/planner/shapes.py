"""The tensors of well-known networks, made from their architectures, with the work of each.

work: multiply-adds of the forward pass for one image or word, from which backward's time is shared
out; a tensor without (a bias, a norm, a table that is only looked up) comes with its layer.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import NamedTuple


class Weight(NamedTuple):
    """A parameter, in the order of registration."""

    name: str
    shape: tuple[int, ...]
    work: float = 0.0

    @property
    def elements(self) -> int:
        return prod(self.shape)


def resnet(blocks: tuple[int, ...]) -> Iterator[Weight]:
    """Bottleneck networks for images of 224² (He et al. 2016): (3, 4, 6, 3) is ResNet-50."""
    yield from _convolution("stem", 3, 64, 7, 112)
    wide, side = 64, 56
    for stage, count in enumerate(blocks):
        narrow = 64 << stage
        for block in range(count):
            name, before = f"stage{stage}.{block}", side
            side = 56 >> stage
            yield from _convolution(f"{name}.1", wide, narrow, 1, before)
            yield from _convolution(f"{name}.2", narrow, narrow, 3, side)
            yield from _convolution(f"{name}.3", narrow, 4 * narrow, 1, side)
            if block == 0:
                yield from _convolution(f"{name}.shortcut", wide, 4 * narrow, 1, side)
            wide = 4 * narrow
    yield from _linear("classes", 2048, 1000)


def _convolution(name: str, given: int, made: int, window: int, side: int) -> Iterator[Weight]:
    """Without bias, and the norm after it."""
    shape = (made, given, window, window)
    yield Weight(f"{name}.weight", shape, prod(shape) * side**2)
    yield Weight(f"{name}.norm.weight", (made,))
    yield Weight(f"{name}.norm.bias", (made,))


def _linear(name: str, given: int, made: int, work: float = 1.0) -> Iterator[Weight]:
    yield Weight(f"{name}.weight", (made, given), work * made * given)
    yield Weight(f"{name}.bias", (made,))


def vgg16() -> Iterator[Weight]:
    """Simonyan & Zisserman 2015, D: 32 tensors."""
    given, side = 3, 224
    for number, made in enumerate((64, 64, 128, 128, 256, 256, 256, *(512,) * 6)):
        side = 224 >> sum(number >= n for n in (2, 4, 7, 10))
        shape = (made, given, 3, 3)
        yield Weight(f"{number}.weight", shape, prod(shape) * side**2)
        yield Weight(f"{number}.bias", (made,))
        given = made
    for name, sizes in (("a", (25_088, 4096)), ("b", (4096, 4096)), ("c", (4096, 1000))):
        yield from _linear(name, *sizes)


def bert_base() -> Iterator[Weight]:
    """12 blocks of width 768, for questions and answers: 199 tensors."""
    yield from (Weight("words", (30_522, 768)), Weight("places", (512, 768)))
    yield from (Weight("kinds", (2, 768)), *_norm("norm"))
    for block in range(12):
        for part in ("query", "key", "value", "out"):
            yield from _linear(f"{block}.{part}", 768, 768)
        yield from _norm(f"{block}.norm1")
        yield from _linear(f"{block}.wide", 768, 3072)
        yield from _linear(f"{block}.back", 3072, 768)
        yield from _norm(f"{block}.norm2")
    yield from _linear("answer", 768, 2)


def gpt2_small() -> Iterator[Weight]:
    """12 blocks of width 768; the scores use the table of words: 148 tensors."""
    yield from (Weight("words", (50_257, 768)), Weight("places", (1024, 768)))
    for block in range(12):
        yield from _norm(f"{block}.norm1")
        yield from _linear(f"{block}.mix", 768, 2304)
        yield from _linear(f"{block}.out", 768, 768)
        yield from _norm(f"{block}.norm2")
        yield from _linear(f"{block}.wide", 768, 3072)
        yield from _linear(f"{block}.back", 3072, 768)
    yield from _norm("norm")


def _norm(name: str, width: int = 768) -> tuple[Weight, Weight]:
    return Weight(f"{name}.weight", (width,)), Weight(f"{name}.bias", (width,))


def lstm() -> Iterator[Weight]:
    """A language model of two layers of 1500 on WikiText-2, one table for words and scores."""
    yield Weight("words", (33_278, 1500))
    for layer in range(2):
        for kind in ("given", "kept"):
            yield Weight(f"{layer}.{kind}.weight", (6000, 1500), 6000 * 1500)
            yield Weight(f"{layer}.{kind}.bias", (6000,))
    yield Weight("scores.bias", (33_278,), 33_278 * 1500)

"""The tensors of well-known networks, made from their architectures, with the work of each.

work: multiply-adds of the forward pass for one image or word, by which backward's time is divided;
a tensor without work (a bias, a norm, a table that is only looked up) comes with its layer.
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
    """Yields bottleneck networks for images of 224² (He et al. 2016): (3, 4, 6, 3) is
    ResNet-50."""
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
    """Yields a convolution without bias, and the norm after it."""
    shape = (made, given, window, window)
    yield Weight(f"{name}.weight", shape, prod(shape) * side**2)
    yield Weight(f"{name}.norm.weight", (made,))
    yield Weight(f"{name}.norm.bias", (made,))


def _linear(name: str, given: int, made: int, work: float = 1.0) -> Iterator[Weight]:
    yield Weight(f"{name}.weight", (made, given), work * made * given)
    yield Weight(f"{name}.bias", (made,))


def vgg16() -> Iterator[Weight]:
    """Yields the network D of Simonyan & Zisserman 2015: 32 tensors."""
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
    """Yields 12 blocks of width 768, for questions and answers: 199 tensors."""
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
    """Yields 12 blocks of width 768; the scores use the table of words: 148 tensors."""
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
    """Yields a language model of two layers of 1500 on WikiText-2, with one table for words and
    scores."""
    yield Weight("words", (33_278, 1500))
    for layer in range(2):
        for kind in ("given", "kept"):
            yield Weight(f"{layer}.{kind}.weight", (6000, 1500), 6000 * 1500)
            yield Weight(f"{layer}.{kind}.bias", (6000,))
    yield Weight("scores.bias", (33_278,), 33_278 * 1500)


def ugatit() -> Iterator[Weight]:
    """Yields the full form of Kim et al. 2020 for images of 256²: two generators, each with a
    layer of 268 M weights, and four discriminators, as one step that trains them all."""
    for name in ("to b", "to a"):
        yield from _generator(name)
    for name in ("a", "b"):
        yield from _discriminator(f"{name}, whole", 7)
        yield from _discriminator(f"{name}, parts", 5)


def _generator(name: str) -> Iterator[Weight]:
    wide = 256
    yield _window(f"{name}.in", 3, 64, 7, 256)
    yield _window(f"{name}.down1", 64, 128, 3, 128)
    yield _window(f"{name}.down2", 128, wide, 3, 64)
    for number in range(8):  # four before attention, four after, each of two windows
        if number == 4:
            yield from _attention(name, wide, 64)
            for layer, given in (("style1", wide * 64**2), ("style2", wide)):
                yield Weight(f"{name}.{layer}", (wide, given), wide * given)
            yield Weight(f"{name}.gamma", (wide, wide), wide**2)
            yield Weight(f"{name}.beta", (wide, wide), wide**2)
        for part in (1, 2):
            yield _window(f"{name}.block{number}.{part}", wide, wide, 3, 64)
            if number >= 4:
                yield Weight(f"{name}.block{number}.{part}.rho", (wide,))
    for number, given in enumerate((wide, wide // 2)):
        yield _window(f"{name}.up{number}", given, given // 2, 3, 128 << number)
        for part in ("rho", "gamma", "beta"):
            yield Weight(f"{name}.up{number}.{part}", (given // 2,))
    yield _window(f"{name}.out", 64, 3, 7, 256)


def _discriminator(name: str, layers: int) -> Iterator[Weight]:
    given, made = 3, 64
    for number in range(layers - 1):
        side = 128 >> min(number, layers - 3)
        yield _window(f"{name}.{number}", given, made, 4, side)
        yield Weight(f"{name}.{number}.bias", (made,))
        given, made = made, 2 * made
    yield from _attention(name, given, side)
    yield _window(f"{name}.out", given, 1, 4, side)


def _attention(name: str, wide: int, side: int) -> Iterator[Weight]:
    """Yields the attention to channels, by their means and their largest values."""
    for kind in ("mean", "most"):
        yield Weight(f"{name}.{kind}", (1, wide), wide)
    yield _window(f"{name}.join", 2 * wide, wide, 1, side)
    yield Weight(f"{name}.join.bias", (wide,))


def _window(name: str, given: int, made: int, window: int, side: int) -> Weight:
    shape = (made, given, window, window)
    return Weight(name, shape, prod(shape) * side**2)

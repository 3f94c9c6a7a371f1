"""The bytes that DGC sends in a step for three models of its paper, from their parameters' shapes.

The published ratios (Lin et al. 2018, tables 3 and 4) come out exactly if every matrix sends one
in a thousand of its elements with 32 bits of value and 16 bits of run length, and everything of
one dimension is sent whole, in fp32 (reference: compressors, A.7).
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
from instances import message_bytes

from gradwire import Plan, Strategy
from gradwire.buckets import Parameter
from gradwire.strategy import Claims

Shape = tuple[int, ...]
ITEM_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "int32": 4, "uint8": 1}


def alexnet() -> Iterator[Shape]:
    """The original AlexNet: its second, fourth and fifth convolutions are in two groups."""
    for weight in (
        (96, 3, 11, 11), (256, 48, 5, 5), (384, 256, 3, 3), (384, 192, 3, 3), (256, 192, 3, 3),
        (4096, 9216), (4096, 4096), (1000, 4096),
    ):  # fmt: skip
        yield from (weight, weight[:1])


def convolution(out: int, into: int, side: int) -> Iterator[Shape]:
    """A convolution without a bias, and the two vectors of its batch normalization."""
    yield from ((out, into, side, side), (out,), (out,))


def resnet50() -> Iterator[Shape]:
    yield from convolution(64, 3, 7)
    into = 64
    for width, count in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for block in range(count):
            yield from convolution(width, into, 1)
            yield from convolution(width, width, 3)
            yield from convolution(4 * width, width, 1)
            if block == 0:
                yield from convolution(4 * width, into, 1)
            into = 4 * width
    yield from ((1000, 2048), (1000,))


def lstm() -> Iterator[Shape]:
    """An LSTM: two layers of 1500 on 10,000 words; the decoder's weight is the embedding's."""
    yield (10_000, 1500)
    for _ in range(2):
        yield from ((6000, 1500), (6000, 1500), (6000,), (6000,))
    yield (10_000,)


# elements, those of one dimension, MiB of gradient, MiB and ratio as published
MODELS = {
    "AlexNet": (list(alexnet()), 60_965_224, 10_568, 232.56, 0.39, 597),
    "ResNet-50": (list(resnet50()), 25_557_032, 54_120, 97.49, 0.35, 277),
    "PTB LSTM": (list(lstm()), 51_034_000, 34_000, 194.68, 0.42, 462),
}
every_model = pytest.mark.parametrize("name", MODELS)


def published_bytes(shapes: list[Shape]) -> float:
    """Bytes as published: 48 bits for each of 0.1 % of a matrix; the rest in fp32."""
    matrices = sum(math.prod(s) for s in shapes if len(s) > 1)
    vectors = sum(math.prod(s) for s in shapes if len(s) <= 1)
    return 0.001 * matrices * 6 + 4 * vectors


def our_bytes(shapes: list[Shape], text: str) -> tuple[int, int]:
    """One rank's bytes in a step, with headers and padding; and the plain fp32 among them."""
    parameters = [Parameter(f"p{i}", shape) for i, shape in enumerate(shapes)]
    plan = Plan.make(parameters, Strategy.parse(text))
    compressed = dense = 0
    for bucket, strategy in zip(plan.buckets, plan.strategies):
        if strategy.compressor.name == "none":
            dense += bucket.bytes
            continue
        claims = [strategy.compressor.claims(n, bucket.dtype) for n in bucket.sizes]
        compressed += message_bytes(*(size for claim in claims for size in payload_bytes(claim)))
    return compressed + dense, dense


def payload_bytes(claims: Claims) -> list[int]:
    """The bytes of each section."""
    return [count * ITEM_BYTES[dtype] for dtype, count in claims.sections]


@every_model
def test_the_shapes_are_those_of_the_paper(name: str) -> None:
    shapes, elements, vectors, mib, _, _ = MODELS[name]
    assert sum(map(math.prod, shapes)) == elements
    assert sum(math.prod(s) for s in shapes if len(s) <= 1) == vectors
    assert round(4 * elements / 2**20, 2) == mib


@every_model
def test_the_published_ratio_comes_out(name: str) -> None:
    shapes, elements, _, _, mib, ratio = MODELS[name]
    sent = published_bytes(shapes)
    assert round(sent / 2**20, 2) == mib
    assert abs(4 * elements / sent - ratio) < 1


@every_model
@pytest.mark.parametrize("values", ["bf16", "fp16"])
def test_ours_sends_less(name: str, values: str) -> None:
    shapes, elements, vectors, _, _, ratio = MODELS[name]
    sent, dense = our_bytes(shapes, f'dgc(0.001, values="{values}") | allgather')
    assert dense == 4 * vectors, "what is dense is what the paper sends dense"
    assert sent < published_bytes(shapes)
    assert 4 * elements / sent > ratio


@every_model
def test_of_what_is_compressed_ours_sends_five_eighths(name: str) -> None:
    """An entry takes 30 bits at most where the paper has 48, with headers, padding and k rounded
    up."""
    shapes = MODELS[name][0]
    sent, dense = our_bytes(shapes, 'dgc(0.001, values="bf16") | allgather')
    assert sent - dense < 5 / 8 * (published_bytes(shapes) - dense)


@every_model
def test_without_index_codes_and_short_values_it_would_not(name: str) -> None:
    """The former layout took 64 bits for each entry."""
    shapes = MODELS[name][0]
    sent, _ = our_bytes(shapes, 'dgc(0.001, index="int32") | allgather')
    assert sent > published_bytes(shapes)

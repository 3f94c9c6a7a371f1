"""Streams as bytes: sizes, the way back, and whatever else arrives."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from inputs import FLOATS
from torch import Tensor

from gradwire.errors import PayloadError
from gradwire.kernels import shape_of, shaped_bytes
from gradwire.streams import Form, Stream

FORMS: tuple[Form, ...] = ("smallest", "coo", "bitmap")
SHAPE_BYTES = 16


def stream(
    k: int, n: int, width: int | None = None, dtype: torch.dtype = torch.float32, run: int = 1
) -> Stream:
    """A stream of k places in runs, whose values include NaN, inf and -0."""
    dice = torch.Generator().manual_seed(k)
    places = torch.randperm(n // run, generator=dice)[: k // run].sort().values
    places = (places[:, None] * run + torch.arange(run)).flatten().int()
    count = places.numel()
    values = torch.randn((count,) if width is None else (count, width), generator=dice)
    odd = torch.tensor([math.nan, math.inf, -0.0])[: values.numel()]
    values.view(-1)[: odd.numel()] = odd
    return Stream(places, values.to(dtype), n)


def check_same(one: Stream, other: Stream) -> None:
    assert torch.equal(one.places, other.places)
    assert one.values.dtype == other.values.dtype
    assert one.values.shape == other.values.shape
    assert torch.equal(one.values.view(torch.uint8), other.values.view(torch.uint8))


def astride(message: Tensor) -> Tensor:
    """A copy of the bytes at an odd address, where no value may begin."""
    return torch.cat([torch.zeros(1, dtype=torch.uint8), message])[1:]


CASES = list(itertools.product([0, 1, 32, 320], [None, 0, 3], [1, 16]))
PACKED = [(form, *case) for form in FORMS for case in CASES if form == "smallest" or case[1] != 0]
"""The published forms tell the number of entries by the values, so none has values of width 0."""


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize(("form", "k", "width", "run"), PACKED)
def test_a_packed_stream_comes_back(
    form: Form, dtype: torch.dtype, k: int, width: int | None, run: int
) -> None:
    n = 4000
    given = stream(k, n, width, dtype, run)
    message = given.packed(form)
    assert message.numel() <= given.most_packed_bytes()
    check_same(given.unpacked(message, form), given)
    check_same(given.unpacked(astride(message), form), given)


@pytest.mark.parametrize(("k", "width", "run"), CASES)
def test_a_coded_stream_comes_back(k: int, width: int | None, run: int) -> None:
    n = 4000
    given = stream(k, n, width, run=run)
    message = given.coded()
    assert message.numel() == given.coded_bytes()
    check_same(given.read(astride(message)), given)
    alone = Stream(given.places, given.places.new_empty(given.count, 0), n)
    assert torch.equal(alone.read(alone.coded()).places, given.places)
    assert alone.coded_bytes(7) == stream(7, n, 0).coded().numel(), "of another number"


@pytest.mark.parametrize("n", [1, 2, 16, 300])
def test_no_stream_is_longer_than_the_longest(n: int) -> None:
    for k, form in itertools.product(range(n + 1), FORMS):
        given = stream(k, n)
        assert given.packed(form).numel() <= given.most_packed_bytes()


def test_sizes_by_hand() -> None:
    """A message is a shape, four bytes a value, and places, in crowds or not; or it is empty."""
    n = 4000
    for k, run in ((32, 1), (320, 1), (320, 16)):
        given = stream(k, n, run=run)
        shape = shape_of(given.places, n)
        assert (shape.crowded > 0) == (run > 1)
        size = SHAPE_BYTES + 4 * k + shaped_bytes(n, shape)
        message = given.packed()
        assert message.numel() == size
        assert message[:SHAPE_BYTES].view(torch.int32).tolist() == list(shape)
        assert message[SHAPE_BYTES : SHAPE_BYTES + 4 * k].equal(given.values.view(torch.uint8))
    assert stream(0, n).packed().numel() == 0
    assert stream(0, n).packed("bitmap").numel() == n // 8, "as published"


def check_whatever_it_is(like: Stream, message: Tensor) -> None:
    """Checks that unpacking raises PayloadError, or gives the one stream that has these bytes."""
    try:
        found = like.unpacked(message)
    except PayloadError:
        return
    assert found.packed().equal(message)


@pytest.mark.parametrize("width", [None, 0, 2])
@pytest.mark.parametrize("run", [1, 16])
def test_every_flipped_bit_is_refused_or_gives_a_stream(width: int | None, run: int) -> None:
    given = stream(16, 200, width, run=run)
    message = given.packed()
    for bit in range(8 * message.numel()):
        flipped = message.clone()
        flipped[bit // 8] ^= 1 << bit % 8
        check_whatever_it_is(given, flipped)


@given(
    content=st.binary(max_size=80), told=st.none() | st.lists(st.integers(0, 40), min_size=4,
    max_size=4), width=st.sampled_from([None, 0, 1]), n=st.integers(0, 80),
)  # fmt: skip
def test_garbage_is_refused_or_gives_a_stream(
    content: bytes, told: list[int] | None, width: int | None, n: int
) -> None:
    like = replace(stream(1, 1, width), n=n)
    message = torch.tensor(list(content), dtype=torch.uint8)
    if told is not None:
        message = torch.cat([torch.tensor(told).int().view(torch.uint8), message])
    check_whatever_it_is(like, message)


@pytest.mark.parametrize("told", [(2**31 - 1,) * 4, (-1, -1, -1, -1), (0, 0, 0, 0)])
def test_a_shape_is_not_believed(told: tuple[int, ...]) -> None:
    """A wrong shape is refused before memory is allocated for it."""
    message = torch.cat([torch.tensor(told).int().view(torch.uint8), torch.zeros(9).byte()])
    with pytest.raises(
        PayloadError, match=r"no list of places below 50 has|must have no bytes; 25"
    ):
        stream(1, 50).unpacked(message)


@pytest.mark.parametrize("size", [1, 15, 16, 17, 19, 20, 22])
def test_short_and_long_messages_are_refused(size: int) -> None:
    """A stream of one entry has 21 bytes, and no other length is accepted."""
    given = stream(1, 16)
    message = torch.cat([given.packed(), torch.zeros(9).byte()])
    check_same(given.unpacked(message[:21]), given)
    with pytest.raises(PayloadError, match=f"{size} arrived"):
        given.unpacked(message[:size])

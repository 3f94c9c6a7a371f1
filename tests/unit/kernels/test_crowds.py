"""Codes of lists with crowds: sizes, every byte, decoding, damaged input, and the twins."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from functools import cache

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from in_torch import in_torch
from samples import NATIVE
from test_indices import listed, random_list

from gradwire.errors import KernelError, PayloadError
from gradwire.kernels import (
    Shape,
    code_bytes,
    decode_shaped,
    encode_indices,
    encode_shaped,
    shape_of,
    shaped_bytes,
    smallest,
    use,
)
from gradwire.kernels.tensors import INDEX_LIMIT

encode_shaped_twin, decode_shaped_twin = in_torch(encode_shaped), in_torch(decode_shaped)
Encode = Callable[[torch.Tensor, int, Shape, torch.Tensor], None]
FACES = pytest.mark.usefixtures("instruction_set")
CHUNK, CROWD = 16, 3


def flat(k: int) -> Shape:
    """The shape of a list without crowds, or with crowds that save nothing."""
    return Shape(k, 0, 0, k)


def shape_by_hand(places: torch.Tensor, n: int) -> Shape:
    """The shape by its definition, in loops."""
    chunks: dict[int, int] = {}
    for place in places.tolist():
        chunks[place // CHUNK] = chunks.get(place // CHUNK, 0) + 1
    inside = list(chunks.values())
    crowds = Shape(
        len(places), sum(i >= CROWD for i in inside), sum(i == CHUNK for i in inside),
        sum(i for i in inside if i < CROWD),
    )  # fmt: skip
    k = len(places)
    return crowds if bytes_by_hand(n, crowds) < bytes_by_hand(n, flat(k)) else flat(k)


def bytes_by_hand(n: int, shape: Shape) -> int:
    lists = (-(-n // CHUNK), shape.crowded), (shape.crowded, shape.full), (n, shape.thin)
    sizes = [code_bytes(smallest(size, k), size, k) for size, k in lists]
    return sum(sizes) + 2 * (shape.crowded - shape.full)


def encoded(
    places: torch.Tensor, n: int, encode: Encode = encode_shaped, fill: int = 0xFF
) -> torch.Tensor:
    """The code, written at an odd address between two guards that must stay as they are."""
    shape = shape_of(places, n)
    held = torch.full((shaped_bytes(n, shape) + 2,), fill, dtype=torch.uint8)
    encode(places, n, shape, held[1:-1])
    assert held[0] == held[-1] == fill
    return held[1:-1]


def decoded(
    section: torch.Tensor, n: int, shape: Shape, decode: Encode = decode_shaped
) -> torch.Tensor | str:
    """Returns the list, or the error's text; nothing is written outside the result."""
    held = torch.full((shape.entries + 2,), -7, dtype=torch.int32)
    said = None
    try:
        decode(section, n, shape, held[1:-1])
    except PayloadError as error:
        said = str(error)
    assert held[0] == held[-1] == -7
    return held[1:-1] if said is None else said


def check_both_ways(places: torch.Tensor, n: int) -> Shape:
    shape = shape_of(places, n)
    with use("twin"):
        assert shape_of(places, n) == shape
    section = encoded(places, n, fill=0x00)
    assert torch.equal(section, encoded(places, n, fill=0xFF)), "every byte is written"
    assert torch.equal(section, encoded(places, n, encode_shaped_twin))
    for decode in (decode_shaped, decode_shaped_twin):
        back = decoded(section, n, shape, decode)
        assert isinstance(back, torch.Tensor), back
        assert torch.equal(back, places)
    return shape


def check_whatever_it_is(section: torch.Tensor, n: int, shape: Shape) -> bool:
    """Checks that kernel and twin raise the same error, or return the one list with this code."""
    result, twin = (
        decoded(section, n, shape, decode) for decode in (decode_shaped, decode_shaped_twin)
    )
    if isinstance(result, str) or isinstance(twin, str):
        assert result == twin
        return False
    assert torch.equal(result, twin)
    assert shape_of(result, n) == shape
    assert torch.equal(encoded(result, n), section)
    return True


def by_chunk(counts: list[int], seed: int = 0) -> torch.Tensor:
    """A list with this many places in each chunk, anywhere in it."""
    parts = [random_list(CHUNK, k, seed + i) + CHUNK * i for i, k in enumerate(counts)]
    return torch.cat([torch.empty(0, dtype=torch.int32), *parts])


def rows(count: int, width: int, chance: float, seed: int = 0) -> torch.Tensor:
    dice = torch.Generator().manual_seed(seed)
    found = (torch.rand(count, generator=dice) < chance).repeat_interleave(width)
    return found.nonzero().flatten().int()


def patterns() -> Iterator[tuple[str, torch.Tensor, int]]:
    for n in (0, 1, 2, 15, 16, 17, 31, 32, 33, 47, 48, 100, 1000, 1024, 4103):
        yield f"none of {n}", listed(), n
        yield f"all of {n}", torch.arange(n, dtype=torch.int32), n
        for k in sorted({1, 2, 3, n // 2, n // 10, n - 1} & set(range(1, n + 1))):
            yield f"{k} of {n}", random_list(n, k), n
            yield f"last {k} of {n}", torch.arange(n - k, n, dtype=torch.int32), n
            yield f"{k} from 1 of {n}", torch.arange(1, k + 1, dtype=torch.int32), n + 1
    for last in range(1, 17):  # the last chunk, cut or not, at the end of the list or not
        for counts in ([16, 16, last], [0, 3, last], [2, 1, last], [16, 0, 0, 4, 16, last]):
            places = by_chunk(counts)
            yield f"{counts}", places, int(places[-1]) + 1
            yield f"{counts} of many", places, 40_000
            yield f"{counts} behind", places + 32_000, 32_000 + 16 * len(counts)
    for width, chance in itertools.product((1, 2, 3, 7, 16, 64, 500), (0.01, 0.2, 0.9)):
        places = rows(9000 // width, width, chance)
        yield f"rows of {width}, {chance}", places, 9000 // width * width
        yield f"rows of {width}, {chance}, astride", places + 5, 9500


PATTERNS = {name: (places, n) for name, places, n in patterns()}


# -- shapes and sizes ----------------------------------------------------------------------------


@FACES
def test_a_shape_is_what_its_definition_says() -> None:
    seen = set()
    for places, n in PATTERNS.values():
        shape = shape_of(places, n)
        assert shape == shape_by_hand(places, n)
        assert shape.is_possible(n)
        assert shaped_bytes(n, shape) == bytes_by_hand(n, shape)
        assert shaped_bytes(n, shape) <= code_bytes(smallest(n, len(places)), n, len(places))
        seen.add((shape.crowded > shape.full, shape.full > 0, shape.thin > 0))
    assert len(seen) == 8, "all sections with something and with nothing"


def test_whole_rows_take_few_bits() -> None:
    """Whole rows, 4 % of 64,000, take 7 bits for 16 places; one list takes 7 for each place."""
    places, n = rows(64_000, 64, 0.04), 64 * 64_000
    size = shaped_bytes(n, shape_of(places, n))
    assert 8 * size < 8 * len(places) / 16
    assert size < code_bytes(smallest(n, len(places)), n, len(places)) / 12


def test_places_at_random_take_no_more_than_in_one_list() -> None:
    for k in (1, 1000, 5000, 50_000):
        places = random_list(100_000, k)
        assert shape_of(places, 100_000) == flat(k)


@pytest.mark.parametrize(
    "shape",
    [
        (-1, 0, 0, -1), (5, 0, 0, 4), (5, 0, 0, 6), (17, 0, 0, 17 * 16 + 1), (5, 1, 2, 5),
        (2, 1, 0, 0), (16, 1, 0, 0), (4, 1, 0, 2), (15, 1, 1, 0), (17, 1, 1, 0), (60, 18, 0, 0),
        (274, 17, 17, 2), (3, -1, -1, 3), (2**31 - 1,) * 4, (-(2**31),) * 4,
    ],
)  # fmt: skip
def test_impossible_shapes_are_refused(shape: tuple[int, int, int, int]) -> None:
    n = 17 * CHUNK
    with pytest.raises(PayloadError, match="no list of places below 272 has"):
        shaped_bytes(n, Shape(*shape))
    with pytest.raises(PayloadError, match="no list of places below 272 has"):
        decode_shaped(torch.empty(0, dtype=torch.uint8), n, Shape(*shape), torch.empty(0).int())


def test_layout_by_hand() -> None:
    """Chunks of 100,000 places: 2 holds 0, 1 and 15; 5 is full; 9 has two places, too few."""
    places = torch.tensor([32, 33, 47, *range(80, 96), 144, 150]).int()
    shape = shape_of(places, 100_000)
    assert shape == Shape(21, 2, 1, 2)
    # 2 of 6,250 chunks, 2·12 bits: 16 as pairs of bytes; the second is full; two of 100,000
    lists = [(6250, listed(2, 5)), (2, listed(1)), (100_000, listed(144, 150))]
    sections = []
    for n, one in lists:
        code = smallest(n, len(one))
        sections.append(torch.empty(code_bytes(code, n, len(one)), dtype=torch.uint8))
        encode_indices(one, n, code, sections[-1])
    chunks, full, thin = (section.tolist() for section in sections)
    assert encoded(places, 100_000).tolist() == [*chunks, *full, 0b11, 0b1000_0000, *thin]


# -- there and back ------------------------------------------------------------------------------


@FACES
@NATIVE
def test_every_pattern_comes_back() -> None:
    for places, n in PATTERNS.values():
        check_both_ways(places, n)


@FACES
@given(
    counts=st.lists(st.sampled_from([0, 0, 0, 0, 1, 2, 3, 4, 15, 16, 16]), max_size=60),
    more=st.integers(0, 3000), seed=st.integers(0, 9),
)  # fmt: skip
def test_every_list_comes_back(counts: list[int], more: int, seed: int) -> None:
    places = by_chunk(counts, seed)
    check_both_ways(places, CHUNK * len(counts) + more)


@pytest.mark.parametrize("width", [1, 4, 64])
def test_a_large_list_comes_back(width: int) -> None:
    places = rows(2_000_000 // width, width, 0.05)
    shape = check_both_ways(places, 2_000_000)
    assert (shape.crowded > 0) == (width > 1)


def test_the_largest_parameter_fits() -> None:
    places = torch.cat([torch.arange(20), INDEX_LIMIT - 20 + torch.arange(20)]).int()
    shape = check_both_ways(places, INDEX_LIMIT)
    assert shape == Shape(40, 4, 1, 0), "the last chunk lacks one place"


@FACES
def test_strided_input_is_read() -> None:
    places = by_chunk([16, 3, 1, 0, 16]).repeat_interleave(2)[::2]
    section = encoded(places, 9000).repeat_interleave(2)[::2]
    back = decoded(section, 9000, shape_of(places, 9000))
    assert isinstance(back, torch.Tensor)
    assert torch.equal(back, places)


def test_the_twins_make_everything_where_the_tensors_are() -> None:
    places, n = by_chunk([16, 3, 1, 0, 16, 9]), 9000
    shape = shape_of(places, n)
    section = torch.empty(shaped_bytes(n, shape), dtype=torch.uint8)
    back = torch.empty_like(places)
    with torch.device("meta"), use("twin"):
        assert shape_of(places, n) == shape
        encode_shaped(places, n, shape, section)
        decode_shaped(section, n, shape, back)
    assert torch.equal(back, places)


# -- damage --------------------------------------------------------------------------------------


def small_lists() -> Iterator[tuple[torch.Tensor, int]]:
    for counts in ([16], [3], [16, 16, 5], [0, 4, 1, 16, 2], [16, 7, 16, 3, 3, 0, 2], [1, 2]):
        for n in (16 * len(counts), 700):
            yield by_chunk(counts), n
    yield torch.arange(3, 45).int(), 45
    yield listed(), 40


@FACES
@NATIVE
def test_every_flipped_bit_is_refused_or_gives_a_list() -> None:
    refused = 0
    for places, n in small_lists():
        shape, section = shape_of(places, n), encoded(places, n)
        for byte, bit in itertools.product(range(section.numel()), range(8)):
            flipped = section.clone()
            flipped[byte] ^= 1 << bit
            refused += not check_whatever_it_is(flipped, n, shape)
    assert refused


@FACES
def test_other_shapes_of_as_many_bytes_are_refused_or_give_a_list() -> None:
    """A damaged shape that needs as many bytes raises the same errors, or gives a list."""
    for places, n in small_lists():
        section, true = encoded(places, n), shape_of(places, n)
        near = itertools.product(*(range(max(0, x - 1), x + 2) for x in true))
        for shape in map(Shape._make, near):
            if shape.is_possible(n) and shaped_bytes(n, shape) == section.numel():
                assert check_whatever_it_is(section, n, shape) or shape != true


@FACES
@given(drawn=st.data())
def test_garbage_is_refused_or_gives_a_list(drawn: st.DataObject) -> None:
    n = drawn.draw(st.integers(0, 2000))
    chunks = -(-n // CHUNK)
    crowded = drawn.draw(st.integers(0, min(chunks, 12)))
    full = drawn.draw(st.integers(0, crowded))
    thin = drawn.draw(st.integers(0, min(n, 8)))
    masks = crowded - full
    entries = drawn.draw(st.integers(thin + 16 * full + 3 * masks, thin + 16 * full + 15 * masks))
    shape = Shape(entries, crowded, full, thin)
    if not shape.is_possible(n):
        return
    size = shaped_bytes(n, shape)
    content = drawn.draw(st.binary(min_size=size, max_size=size))
    check_whatever_it_is(torch.tensor(list(content), dtype=torch.uint8), n, shape)


@cache
def long_list(seed: int) -> tuple[torch.Tensor, int]:
    dice = torch.Generator().manual_seed(seed)
    kinds = torch.multinomial(torch.tensor([5.0, 1, 1, 1, 1, 1]), 6000, True, generator=dice)
    counts = torch.tensor([0, 1, 2, 5, 15, 16])[kinds].tolist()
    return by_chunk(counts), CHUNK * len(counts)


@FACES
@NATIVE
@given(drawn=st.data())
def test_damage_to_long_lists_is_refused_or_gives_a_list(drawn: st.DataObject) -> None:
    """Lists are long enough for whole vectors in each section, where the damage may be."""
    places, n = long_list(drawn.draw(st.integers(0, 3)))
    shape, section = shape_of(places, n), encoded(places, n).clone()
    assert min(shape) > 0
    for _ in range(drawn.draw(st.integers(1, 3))):
        place = drawn.draw(st.integers(0, section.numel() - 1))
        section[place] = drawn.draw(st.one_of(st.integers(0, 255), st.sampled_from([0, 255])))
    check_whatever_it_is(section, n, shape)


@FACES
@pytest.mark.parametrize(
    ("mask", "thin", "wrong"),
    [
        (0b111, 20, None),
        (0b11, 20, "the combination of these lists"),  # two are no crowd
        (0b1111, 20, "the combination of these lists"),  # one more than there are entries
        (0b111, 5, "the combination of these lists"),  # in the crowded chunk
        (0, 20, "the combination of these lists"),
    ],
)
def test_what_is_no_crowd_is_no_other_code(mask: int, thin: int, wrong: str | None) -> None:
    """The first of 700 chunks has 3 places, the second one, and two chunks are full."""
    n = 700 * CHUNK
    places = torch.tensor([0, 1, 2, 20, *range(32, 64)]).int()
    shape = shape_of(places, n)
    assert shape == Shape(36, 3, 2, 1)
    section = encoded(places, n).clone()
    chunks = code_bytes(smallest(700, 3), 700, 3) + code_bytes(smallest(3, 2), 3, 2)
    section[chunks : chunks + 2] = torch.tensor([mask, 0])
    encode_indices(listed(thin), n, smallest(n, 1), section[chunks + 2 :])
    assert check_whatever_it_is(section, n, shape) == (wrong is None)
    if wrong is not None:
        assert wrong in str(decoded(section, n, shape))


@FACES
def test_masks_end_where_places_do() -> None:
    """The last chunk has only 4 places: a fifth is refused, and so is a full chunk."""
    n = 200 * CHUNK + 4
    places = torch.cat([torch.arange(64), torch.arange(n - 3, n)]).int()
    shape, section = shape_of(places, n), encoded(places, n).clone()
    assert shape == Shape(67, 5, 4, 0)
    assert section[-2:].tolist() == [0b1110, 0]
    section[-2] = 0b11010
    assert not check_whatever_it_is(section, n, shape)
    section[-2], section[-1] = 0b0010, 0b11
    assert not check_whatever_it_is(section, n, shape)


# -- arguments -----------------------------------------------------------------------------------


@FACES
def test_wrong_arguments_are_refused() -> None:
    places, n = by_chunk([16, 3, 1, 0, 16]), 9000
    shape = shape_of(places, n)
    section = torch.full((shaped_bytes(n, shape),), 7, dtype=torch.uint8)
    for encode in (encode_shaped, encode_shaped_twin):
        with pytest.raises(KernelError, match="section must have shape"):
            encode(places, n, shape, section[1:])
        with pytest.raises(KernelError, match="ascend strictly"):
            encode(places.flip(0), n, shape, section)
        with pytest.raises(KernelError, match="the places must have the shape"):
            encode(by_chunk([16, 4, 0, 0, 16]), n, shape, section)
        flat_section = torch.full((bytes_by_hand(n, flat(36)),), 7, dtype=torch.uint8)
        with pytest.raises(KernelError, match="the places must have the shape"):
            encode(places[1:], n, flat(36), flat_section)
        assert (section == 7).all()
        assert (flat_section == 7).all()
    with pytest.raises(KernelError, match="places must be 0 or more, but the first is -1"):
        shape_of(torch.tensor([-1, 3], dtype=torch.int32), n)
    no_list = torch.tensor([2, 255, *range(4, 15)], dtype=torch.int32)
    assert shape_of(no_list, 16).entries == 13, "which the places are is not looked at"
    with pytest.raises(KernelError, match=r"2\^31-1"):
        shape_of(places, 2**31)
    with pytest.raises(PayloadError, match=r"must be uint8 of shape"):
        decode_shaped(section[1:], n, shape, places)
    with pytest.raises(KernelError, match="places_out must be"):
        decode_shaped(section, n, shape, places.long())

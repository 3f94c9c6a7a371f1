"""Codes of index lists: sizes, every byte, decoding, damaged input, and the twins."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from in_torch import in_torch
from samples import NATIVE

from gradwire.errors import KernelError, PayloadError
from gradwire.kernels import (
    INDEX_CODES,
    add_coded,
    code_bytes,
    decode_indices,
    encode_indices,
    smallest,
    use,
)
from gradwire.kernels.tensors import INDEX_LIMIT

encode_indices_twin, decode_indices_twin = in_torch(encode_indices), in_torch(decode_indices)
Encode = Callable[[torch.Tensor, int, str, torch.Tensor], None]
CODES = pytest.mark.parametrize("code", INDEX_CODES)
FACES = pytest.mark.usefixtures("instruction_set")
LARGE = 25_500_000


def listed(*indices: int) -> torch.Tensor:
    return torch.tensor(indices, dtype=torch.int32)


def random_list(n: int, k: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randperm(n, generator=generator)[:k].sort().values.int()


def encoded(
    indices: torch.Tensor, n: int, code: str, encode: Encode = encode_indices, fill: int = 0xFF
) -> torch.Tensor:
    """The code, written at an odd address between two guards that must stay as they are."""
    size = code_bytes(code, n, indices.numel())
    held = torch.full((size + 2,), fill, dtype=torch.uint8)
    encode(indices, n, code, held[1:-1])
    assert held[0] == held[-1] == fill
    return held[1:-1]


def decoded(
    section: torch.Tensor, n: int, code: str, k: int, decode: Encode = decode_indices
) -> torch.Tensor | str:
    """Returns the list, or the error's text; nothing is written outside the result."""
    held = torch.full((k + 2,), -7, dtype=torch.int32)
    said = None
    try:
        decode(section, n, code, held[1:-1])
    except PayloadError as error:
        said = str(error)
    assert held[0] == held[-1] == -7
    return held[1:-1] if said is None else said


def check_both_ways(indices: torch.Tensor, n: int, code: str) -> None:
    k = indices.numel()
    section = encoded(indices, n, code, fill=0x00)
    assert section.numel() == code_bytes(code, n, k)
    assert torch.equal(section, encoded(indices, n, code, fill=0xFF)), "every byte is written"
    assert torch.equal(section, encoded(indices, n, code, encode_indices_twin))
    for decode in (decode_indices, decode_indices_twin):
        back = decoded(section, n, code, k, decode)
        assert isinstance(back, torch.Tensor), back
        assert torch.equal(back, indices)


def check_whatever_it_is(section: torch.Tensor, n: int, code: str, k: int) -> bool:
    """Checks that kernel and twin raise the same error, or return the one list with this code."""
    result = decoded(section, n, code, k)
    twin = decoded(section, n, code, k, decode_indices_twin)
    if isinstance(result, str) or isinstance(twin, str):
        assert result == twin
        return False
    assert torch.equal(result, twin)
    assert torch.equal(encoded(result, n, code), section)
    return True


GAPS = [
    [around * times + more for times in (1, 2, 3)]
    for around in (254, 255, 256, 65534, 65535, 65536)
    for more in (0, 1)
]


def patterns() -> Iterator[tuple[str, torch.Tensor, int]]:
    """Yields lists that are a bad case for some code."""
    for n in (1, 2, 7, 8, 9, 63, 64, 65, 255, 256, 257, 1000, 65536, 131073):
        yield f"none of {n}", listed(), n
        yield f"all of {n}", torch.arange(n, dtype=torch.int32), n
        yield f"first of {n}", listed(0), n
        yield f"last of {n}", listed(n - 1), n
        yield f"ends of {n}", listed(*sorted({0, n - 1})), n
        for k in sorted({n // 2, n // 3, n // 9, n // 64, n // 1000} - {0}):
            yield f"{k} at the front of {n}", torch.arange(k, dtype=torch.int32), n
            yield f"{k} at the end of {n}", torch.arange(n - k, n, dtype=torch.int32), n
            yield f"{k} apart in {n}", torch.arange(k, dtype=torch.int32) * (n // k), n
            yield f"{k} of {n}", random_list(n, k), n
    for gaps in GAPS:
        indices = torch.tensor(gaps).cumsum(0).int() - 1
        end = int(indices[-1]) + 1
        yield f"gaps {gaps}", indices, end
        yield f"gaps {gaps} and more", indices, end + 70_000
    yield "none of none", listed(), 0


PATTERNS = {name: (indices, n) for name, indices, n in patterns()}


@pytest.mark.once
@FACES
@NATIVE
@CODES
def test_every_pattern_comes_back(code: str) -> None:
    for indices, n in PATTERNS.values():
        check_both_ways(indices, n, code)


@pytest.mark.once
@FACES
@CODES
@given(drawn=st.data())
def test_every_list_comes_back(code: str, drawn: st.DataObject) -> None:
    n = drawn.draw(st.one_of(st.integers(0, 70), st.integers(0, 140_000)))
    chosen = drawn.draw(st.sets(st.integers(0, n - 1), max_size=40) if n else st.just(set()))
    check_both_ways(listed(*sorted(chosen)), n, code)


@CODES
@pytest.mark.parametrize("k", [1, 25_500, 255_000, 2_550_000])
def test_a_large_list_comes_back(code: str, k: int) -> None:
    places = (torch.rand(k, generator=torch.Generator().manual_seed(k)) * LARGE).int().unique()
    section = encoded(places, LARGE, code)
    back = decoded(section, LARGE, code, places.numel())
    assert isinstance(back, torch.Tensor)
    assert torch.equal(back, places)


@pytest.mark.parametrize("code", ["int32", "gap16", "elias_fano"])
def test_the_largest_parameter_fits(code: str) -> None:
    indices = listed(0, 1, 65535, 2**30, INDEX_LIMIT - 1)
    check_both_ways(indices, INDEX_LIMIT, code)
    check_both_ways(indices[-1:], INDEX_LIMIT, code)


@CODES
def test_sizes_are_the_published_ones(code: str) -> None:
    """Sizes equal the published formulas, written with floats and loops instead of shifts."""
    for n, k in itertools.product(range(600), range(0, 600, 7)):
        if k > n:
            continue
        low = math.floor(math.log2(n / k)) if k else 0
        wanted = {
            "int32": 4 * k,
            "gap16": 2 * k,
            "gap8": k + (n - k) // 255 if k else 0,
            "elias_fano": (
                math.ceil(k * low / 8) + math.ceil((k + (n - 1) // 2**low) / 8) if k else 0
            ),
            "bitmap": math.ceil(n / 8),
        }
        assert code_bytes(code, n, k) == wanted[code]


@pytest.mark.parametrize("k", [1, 2, 30])
@pytest.mark.parametrize(("code", "escape"), [("gap8", 255), ("gap16", 65535)])
def test_the_room_for_escapes_is_used_to_the_last(code: str, escape: int, k: int) -> None:
    n = 3 * escape + k + 1
    indices = torch.arange(3 * escape, 3 * escape + k, dtype=torch.int32)
    indices[-1] += 1  # a 1 in the last word used
    width = 2 if code == "gap16" else 1
    assert encoded(indices, n, code)[-width] == 1


@pytest.mark.parametrize("k", [1, 2, 30, 1000])
def test_the_room_for_upper_bits_is_used_to_the_last(k: int) -> None:
    for n in range(1000, 1100):
        bits = k + (n - 1) // 2 ** math.floor(math.log2(n / k))
        last = encoded(torch.arange(n - k, n, dtype=torch.int32), n, "elias_fano")[-1]
        assert last >> (bits - 1) % 8 == 1


@pytest.mark.parametrize("n", [100_000, 1_000_000, LARGE, INDEX_LIMIT])
def test_elias_fano_takes_twelve_bits_at_a_thousandth(n: int) -> None:
    assert code_bytes("elias_fano", n, n // 1000) * 8 <= 12.1 * (n // 1000)


def test_smallest_is_the_smallest() -> None:
    chosen = set()
    for n in (*range(40), 300, 5000, 65_536, LARGE, INDEX_LIMIT):
        for k in {*range(min(n, 40) + 1), n // 1000, n // 100, n // 9, n // 4, n // 3, n // 2, n}:
            sizes = [code_bytes(code, n, k) for code in INDEX_CODES]
            best = smallest(n, k)
            assert best == INDEX_CODES[sizes.index(min(sizes))]
            chosen.add(best)
    assert {"int32", "elias_fano", "bitmap"} <= chosen


def small_lists() -> Iterator[tuple[torch.Tensor, int]]:
    for n, k in [(1, 0), (1, 1), (9, 0), (9, 9), (13, 4), (64, 3), (300, 2), (600, 7)]:
        yield random_list(n, k), n
        yield torch.arange(k, dtype=torch.int32), n
        yield torch.arange(n - k, n, dtype=torch.int32), n
    yield listed(0, 131_070), 131_080


@pytest.mark.once
@FACES
@NATIVE
@CODES
def test_every_flipped_bit_is_refused_or_gives_a_list(code: str) -> None:
    refused = 0
    for indices, n in small_lists():
        section = encoded(indices, n, code)
        if section.numel() > 200:
            continue
        for byte, bit in itertools.product(range(section.numel()), range(8)):
            flipped = section.clone()
            flipped[byte] ^= 1 << bit
            good = check_whatever_it_is(flipped, n, code, indices.numel())
            refused += not good
            assert not (good and code == "bitmap"), "a bit more or less is never k"
    assert refused


@pytest.mark.once
@FACES
@CODES
@given(drawn=st.data())
def test_garbage_is_refused_or_gives_a_list(code: str, drawn: st.DataObject) -> None:
    n = drawn.draw(st.one_of(st.integers(0, 300), st.integers(0, 3000), st.just(INDEX_LIMIT)))
    n = min(n, 3000) if code == "bitmap" else n
    k = drawn.draw(st.integers(0, min(n, 12)))
    k = 0 if n == INDEX_LIMIT and code == "gap8" else k
    size = code_bytes(code, n, k)
    if size > 3000:  # gap16 of the largest n: mostly empty
        head = drawn.draw(st.binary(max_size=64))
        content = head + drawn.draw(st.sampled_from([b"\0", b"\xff"])) * (size - len(head))
    else:
        content = drawn.draw(st.binary(min_size=size, max_size=size))
    section = torch.tensor(list(content), dtype=torch.uint8)
    check_whatever_it_is(section, n, code, k)


@FACES
@CODES
@pytest.mark.parametrize("fill", [0x00, 0x01, 0x80, 0xAA, 0xFE, 0xFF])
def test_one_byte_all_over_is_refused_or_gives_a_list(code: str, fill: int) -> None:
    for n, k in [(0, 0), (1, 1), (8, 3), (100, 100), (1000, 64), (100_000, 99), (100_000, 3)]:
        section = torch.full((code_bytes(code, n, k),), fill, dtype=torch.uint8)
        check_whatever_it_is(section, n, code, k)


def test_layouts_by_hand() -> None:
    """The bytes of each code for n = 600 and indices 2, 300, 599."""
    indices = listed(2, 300, 599)
    assert encoded(indices, 600, "int32").tolist() == [2, 0, 0, 0, 44, 1, 0, 0, 87, 2, 0, 0]
    assert encoded(indices, 600, "gap16").tolist() == [2, 0, 41, 1, 42, 1]
    assert encoded(indices, 600, "gap8").tolist() == [2, 255, 42, 255, 43]
    # l = 7: 2 = 0·128 + 2, 300 = 2·128 + 44, 599 = 4·128 + 87; ones at 0+0, 2+1, 4+2 of 7 bits.
    low = 2 + (44 << 7) + (87 << 14)
    assert encoded(indices, 600, "elias_fano").tolist() == [*low.to_bytes(3, "little"), 0b1001001]
    bits = (1 << 2) + (1 << 300) + (1 << 599)
    assert encoded(indices, 600, "bitmap").tolist() == list(bits.to_bytes(75, "little"))
    assert encoded(listed(0), 600, "gap8").tolist() == [0, 0, 0], "unused words are 0"


@FACES
@pytest.mark.parametrize(
    ("code", "n", "section", "k", "wrong"),
    [
        ("int32", 5, [1, 0, 0, 0, 1, 0, 0, 0], 2, "entry 1 is"),
        ("int32", 5, [255, 255, 255, 255], 1, "entry 0 is"),
        ("int32", 5, [5, 0, 0, 0], 1, "entry 0 is"),
        ("gap8", 300, [255, 45], 1, "entry 0 is"),
        ("gap8", 300, [255, 255], 1, "entry 0 is"),
        ("gap8", 300, [44, 1], 1, "the bits after"),
        ("gap16", 9, [8, 0, 0, 0], 2, "entry 1 is"),
        # l = 2, so 4 low bits and 3 upper bits: 0 and 1, with a third one, and so on
        ("elias_fano", 8, [0b0_0100, 0b0111], 2, "the bits after"),
        ("elias_fano", 8, [0b0_0100, 0b1011], 2, "the bits after"),
        ("elias_fano", 8, [0b1_0100, 0b0011], 2, "the bits after"),
        ("elias_fano", 8, [0b0_0000, 0b0011], 2, "entry 1 is"),  # 0 again
        ("elias_fano", 8, [0b0_0100, 0b0001], 2, "entry 1 is"),  # missing
        ("elias_fano", 8, [0b0_0100, 0b1001], 2, "entry 1 is"),  # 9
        ("elias_fano", 7, [0b10, 0b10001], 2, "entry 1 is"),  # 7; l = 1
        ("bitmap", 9, [1, 2], 1, "the bits after"),
        ("bitmap", 9, [0, 2], 1, "entry 0 is"),  # only the ninth bit counts
        ("bitmap", 9, [1, 0], 2, "entry 1 is"),
        ("bitmap", 9, [1, 0], 0, "the bits after"),
    ],
)
def test_damage_is_named(code: str, n: int, section: list[int], k: int, wrong: str) -> None:
    damaged = torch.tensor(section, dtype=torch.uint8)
    assert not check_whatever_it_is(damaged, n, code, k)
    said = decoded(damaged, n, code, k)
    assert f"the {code} code must hold {k} indices" in str(said)
    assert wrong in str(said)


@FACES
def test_wrong_arguments_are_refused() -> None:
    place, section = listed(0, 4), torch.empty(8, dtype=torch.uint8)
    with pytest.raises(KernelError, match=r"index code must be one of int32, .*, not 'zip'"):
        encode_indices(place, 5, "zip", section)
    with pytest.raises(KernelError, match=r"section must have shape \(8,\), not \(7,\)"):
        encode_indices(place, 5, "int32", section[:7])
    with pytest.raises(KernelError, match="section must be"):
        encode_indices(place, 5, "int32", section.char())
    with pytest.raises(KernelError, match="indices must be int32 with one dimension"):
        encode_indices(place.long(), 5, "int32", section)
    with pytest.raises(KernelError, match="k must be between 0 and the number of elements, 1"):
        encode_indices(place, 1, "int32", section)
    with pytest.raises(KernelError, match=r"2\^31-1"):
        code_bytes("int32", 2**31, 1)
    with pytest.raises(PayloadError, match=r"int32 code of 2 .* shape \(8,\), .* \(7,\); check"):
        decode_indices(section[:7], 5, "int32", place)
    with pytest.raises(KernelError, match="indices_out must be"):
        decode_indices(section, 5, "int32", place.long())
    with pytest.raises(KernelError, match="contiguous"):
        decode_indices(section, 5, "int32", torch.empty(4, dtype=torch.int32)[::2])


@FACES
@CODES
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_a_coded_list_is_added_unless_it_is_none(code: str, dtype: torch.dtype) -> None:
    n, k = 900, 70
    places, values = random_list(n, k), torch.arange(1, k + 1).to(dtype)
    given = [encoded(places, n, code)]
    given += [places] if code == "int32" else []
    for section in given:
        v, wanted = torch.ones(n), torch.ones(n)
        add_coded(v, section, code, values, -0.5)
        wanted[places.long()] -= 0.5 * values.float()
        assert torch.equal(v, wanted)
        bad = section.clone().fill_(0 if code == "int32" else 0xFF)
        with pytest.raises(PayloadError, match=r"payload 0: .*ascend strictly"):
            add_coded(v, bad, code, values, -0.5)
        assert torch.equal(v, wanted)


@FACES
@CODES
@pytest.mark.parametrize("wrong", [[0, 5], [-1, 2], [2, 2], [3, 1]])
def test_a_bad_list_is_not_encoded(code: str, wrong: list[int]) -> None:
    section = torch.full((code_bytes(code, 5, 2),), 7, dtype=torch.uint8)
    with pytest.raises(KernelError, match=r"ascend strictly within 0 \.\.\. 4, but entry [01] is"):
        encode_indices(listed(*wrong), 5, code, section)
    assert (section == 7).all()


@FACES
@CODES
def test_strided_input_is_read(code: str) -> None:
    for k in (1, 10):
        indices = torch.arange(2 * k, dtype=torch.int32)[::2]
        section = encoded(indices, 30, code)
        doubled = section.repeat_interleave(2)[::2]
        back = decoded(doubled, 30, code, k)
        assert isinstance(back, torch.Tensor)
        assert torch.equal(back, indices)


@CODES
def test_the_twins_make_everything_where_the_tensors_are(code: str) -> None:
    """With another default device, a tensor made without a device would not fit the others."""
    indices, n = random_list(1000, 30), 1000
    section = torch.empty(code_bytes(code, n, 30), dtype=torch.uint8)
    back = torch.empty_like(indices)
    with torch.device("meta"), use("twin"):
        encode_indices(indices, n, code, section)
        decode_indices(section, n, code, back)
    assert torch.equal(back, indices)

"""Lists long enough for whole vectors: decode_indices against its twin, good and damaged."""

from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from test_indices import check_both_ways, check_whatever_it_is, encoded, random_list

from gradwire.kernels import code_bytes
from suites import first

pytestmark = pytest.mark.usefixtures("instruction_set")
CODES = pytest.mark.parametrize("code", ["elias_fano", "bitmap"])
NUMBERS = [*range(515, 550), 575, 576, 577, 1039, 1040, 1041, 1055, 1056, 1057, 2000]
LARGEST = 2**31 - 1
PARTS = 20


def one_run(n: int, k: int, first: int) -> torch.Tensor:
    return torch.arange(first, first + k, dtype=torch.int32)


def apart(n: int, k: int) -> torch.Tensor:
    return (torch.arange(k) * (n // k)).int()


def lists(code: str) -> Iterator[tuple[Callable[[], torch.Tensor], int]]:
    """Yields runs, even steps and random lists, from almost full to as sparse as can be."""
    for k in NUMBERS:
        for n in (k, k + 1, 2 * k - 1, 2 * k, 17 * k + 3, 5000 * k, LARGEST):
            if n > 3_000_000 and (code == "bitmap" or k % 50):
                continue
            yield partial(one_run, n, k, 0), n
            yield partial(one_run, n, k, n - k), n
            yield partial(apart, n, k), n
            if n < 3_000_000:
                yield partial(random_list, n, k), n


@pytest.mark.once
@CODES
@pytest.mark.parametrize("part", first(range(PARTS)))
def test_long_lists_come_back(code: str, part: int) -> None:
    for drawn, n in islice(lists(code), part, None, PARTS):
        check_both_ways(drawn(), n, code)


@pytest.mark.parametrize("width", range(21))
def test_every_width_of_low_bits_comes_back(width: int) -> None:
    for k in (600, 1015):
        for n in {k << width, (k << width) + 1, (k << width + 1) - 1}:
            places = torch.rand(4 * k, generator=torch.Generator().manual_seed(n))
            some = (places.double() * n).long().unique()
            some = some[torch.randperm(some.numel())[:k]].sort().values.int()
            if some.numel() < k:
                some = apart(n, k)
            check_both_ways(some, n, "elias_fano")


@pytest.mark.once
@CODES
@given(drawn=st.data())
def test_damage_is_refused_or_gives_a_list(code: str, drawn: st.DataObject) -> None:
    """Damage anywhere gives the twin's error, which names the same entry, or the same list."""
    k = drawn.draw(st.sampled_from(NUMBERS))
    n = k * drawn.draw(st.sampled_from([1, 2, 3, 9, 64, 700])) + drawn.draw(st.integers(0, 99))
    section = encoded(random_list(n, k, drawn.draw(st.integers(0, 9))), n, code).clone()
    for _ in range(drawn.draw(st.integers(1, 3))):
        place = drawn.draw(st.integers(0, section.numel() - 1))
        section[place] = drawn.draw(st.one_of(st.integers(0, 255), st.sampled_from([0, 255])))
    check_whatever_it_is(section, n, code, k)


@CODES
@pytest.mark.parametrize("n", [700, 1400, 3000, 90_000, LARGEST])
def test_garbage_is_refused_or_gives_a_list(code: str, n: int) -> None:
    if code == "bitmap" and n == LARGEST:
        pytest.skip("a bitmap of 256 MB")
    for seed, k in enumerate(k for k in NUMBERS if k <= n):
        generator = torch.Generator().manual_seed(seed)
        section = torch.empty(code_bytes(code, n, k), dtype=torch.uint8)
        for sparser in range(3):  # a half, a quarter, an eighth of ones
            section.random_(0, 256, generator=generator)
            for _ in range(sparser):
                section &= torch.empty_like(section).random_(0, 256, generator=generator)
            check_whatever_it_is(section, n, code, k)


@pytest.mark.once
@CODES
@pytest.mark.parametrize("fill", [0x00, 0x01, 0x55, 0x80, 0xFF])
def test_one_byte_all_over_is_refused_or_gives_a_list(code: str, fill: int) -> None:
    for k in NUMBERS:
        for n in (k, 2 * k, 5 * k, 1000 * k):
            section = torch.full((code_bytes(code, n, k),), fill, dtype=torch.uint8)
            check_whatever_it_is(section, n, code, k)


@pytest.mark.parametrize("entry", [0, 1, 15, 16, 17, 599, 640, 1022, 1023])
def test_two_entries_that_change_places_are_named(entry: int) -> None:
    """Both entries are in one bucket of the upper half, so only their low bits differ."""
    n, k = 64 * 1024, 1024  # 6 low bits
    indices = torch.arange(k, dtype=torch.int64) // 2 * 128 + torch.arange(k) % 2
    section = encoded(indices.int(), n, "elias_fano").clone()
    first = entry // 2 * 2
    bits = int.from_bytes(section[: k * 6 // 8].numpy().tobytes(), "little")
    bits ^= 1 << (6 * first) | 1 << (6 * first + 6)
    section[: k * 6 // 8] = torch.tensor(list(bits.to_bytes(k * 6 // 8, "little")))
    assert not check_whatever_it_is(section, n, "elias_fano", k)


def test_the_last_entry_beyond_the_end_is_named() -> None:
    """Only the last word is bad: n - 1 is in the list, and n is made one less."""
    for k in NUMBERS:
        n = 8 * k + 4
        section = encoded(one_run(n, k, n - k), n, "elias_fano")
        assert not check_whatever_it_is(section, n - 1, "elias_fano", k)

"""split_stream and place_stream against their twins and each other, and their checks."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from samples import DTYPES, bits, draw, same
from sorted_streams import (
    DAMAGE,
    DENSITIES,
    DTYPE,
    FILL,
    KINDS,
    SIZES,
    chunks_of,
    deal,
    outputs,
    stream,
    untouched,
)

from gradwire.errors import KernelError, PayloadError
from gradwire.kernels import place_stream, split_stream
from gradwire.kernels.streams import place_stream_twin, split_stream_twin

pytestmark = pytest.mark.usefixtures("instruction_set")


@settings(max_examples=100, deadline=None)
@given(
    SIZES, DENSITIES, st.sampled_from([1, 2, 3, 16, 128, 1000]), DTYPE, KINDS, st.integers(0, 9)
)
def test_split_same_bits_as_twin(
    n: int, density: float, owners: int, dtype: torch.dtype, kind: str, seed: int
) -> None:
    places, values = stream(n, density, seed, dtype, kind)
    table, width = deal(n, owners, seed)
    found, wanted = outputs(places.numel(), dtype), outputs(places.numel(), dtype)
    counts = split_stream(places, values, table, width, owners, *found)
    assert counts == split_stream_twin(places, values, table, width, owners, *wanted)
    assert found[0].tolist() == wanted[0].tolist()
    integers = torch.int32 if dtype == torch.float32 else torch.int16  # moved, NaN and all
    assert torch.equal(found[1].clone().view(integers), wanted[1].clone().view(integers))


@settings(max_examples=100, deadline=None)
@given(SIZES, DENSITIES, st.integers(1, 20), DTYPE, KINDS, st.integers(0, 9))
def test_what_is_split_comes_back(
    n: int, density: float, owners: int, dtype: torch.dtype, kind: str, seed: int
) -> None:
    """Each part is a stream of its owner's elements; put in place, together they are the whole."""
    places, values = stream(n, density, seed, dtype, kind)
    table, width = deal(n, owners, seed)
    found = outputs(places.numel(), dtype)
    counts = split_stream(places, values, table, width, owners, *found)
    out, wanted = torch.zeros(n, dtype=dtype), torch.zeros(n, dtype=dtype)
    wanted[places.long()] = values
    parts = zip(found[0].split(counts), found[1].split(counts))
    for owner, (local, part) in enumerate(parts):
        place_stream(out, local, part, chunks_of(table, width, owner))
    assert same(out, wanted)


def test_split_by_hand() -> None:
    table = torch.tensor([0 << 2 | 2, 0 << 2 | 0, 1 << 2 | 2, 1 << 2 | 0], dtype=torch.int32)
    places = torch.tensor([0, 15, 16, 35, 63], dtype=torch.int32)
    found = outputs(5, torch.float32)
    assert split_stream(places, torch.arange(5.0), table, 2, 3, *found) == [2, 0, 3]
    assert found[0].tolist() == [0, 31, 0, 15, 19]
    assert found[1].tolist() == [2, 4, 0, 1, 3]


def test_split_of_nothing_and_of_one() -> None:
    table, width = deal(40, 3, 0)
    nothing = outputs(0, torch.float16)
    assert split_stream(*stream(40, 0.0, 0, torch.float16), table, width, 3, *nothing) == [0] * 3
    last = torch.tensor([39], dtype=torch.int32)
    found = outputs(1, torch.float32)
    counts = split_stream(last, torch.tensor([-0.0]), table, width, 3, *found)
    owner = int(table[2]) & 3
    assert counts == [int(j == owner) for j in range(3)]
    assert (found[0].tolist(), bits(found[1])) == ([(int(table[2]) >> 2) * 16 + 7], [-(2**31)])


def test_split_with_large_numbers_in_the_table() -> None:
    """The upper bit of an entry is a bit like the others."""
    entry = torch.tensor([(2**26 - 1) << 6 | 63]).to(torch.int32)  # -1
    found = outputs(1, torch.float32)
    place = torch.tensor([5], dtype=torch.int32)
    assert split_stream(place, torch.ones(1), entry, 6, 64, *found)[63] == 1
    assert found[0].tolist() == [(2**26 - 1) * 16 + 5]


def test_split_refuses() -> None:
    places, values = stream(100, 0.3, 1)
    table, width = deal(100, 3, 0)
    k = places.numel()
    found = outputs(k, torch.float32)
    with pytest.raises(KernelError, match=r"must be below the number of owners, 2, but one"):
        split_stream(places, values, table, width, 2, *found)
    with pytest.raises(KernelError, match=r"bits must be at most 16 and hold the owners"):
        split_stream(places, values, table, 17, 3, *found)
    with pytest.raises(KernelError, match=r"2 bits for 5 owners; pass \(owners"):
        split_stream(places, values, table, 2, 5, *found)
    with pytest.raises(KernelError, match=r"places must be within 0 \.\.\. 31"):
        split_stream(places, values, table[:2].clone(), 2, 3, *found)
    with pytest.raises(KernelError, match=r"places must be int32"):
        split_stream(places.long(), values, table, 2, 3, *found)
    with pytest.raises(KernelError, match=r"values must have the shape of the places"):
        split_stream(places, values[1:], table, 2, 3, *found)
    with pytest.raises(KernelError, match=r"table must be torch\.int32"):
        split_stream(places, values, table.long(), 2, 3, *found)
    with pytest.raises(KernelError, match=r"values_out must be torch\.float32"):
        split_stream(places, values, table, 2, 3, found[0], found[1].half())
    with pytest.raises(KernelError, match=r"places_out must have shape"):
        split_stream(places, values, table, 2, 3, found[0][1:], found[1])
    assert untouched(*found)


@settings(max_examples=100, deadline=None)
@given(SIZES, DENSITIES, st.integers(1, 20), DTYPE, DTYPE, KINDS, st.integers(0, 9))
def test_place_same_bits_as_twin(
    n: int,
    density: float,
    owners: int,
    to: torch.dtype,
    dtype: torch.dtype,
    kind: str,
    seed: int,
) -> None:
    table, width = deal(n, owners, seed)
    chunks = chunks_of(table, width, seed % owners)
    size = sum(min(16, n - 16 * c) for c in chunks.tolist())
    for domain, given_ in ((size, chunks), (n, None)):
        places, values = stream(domain, density, seed, dtype, kind)
        out, wanted = draw("broken", n, 0, to, shift=1), draw("broken", n, 0, to)
        place_stream(out, places, values, given_)
        place_stream_twin(wanted, places, values, given_)
        assert same(out, wanted)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_place_by_hand_with_a_cut_chunk(dtype: torch.dtype) -> None:
    out = torch.full((40,), FILL, dtype=dtype)
    chunks = torch.tensor([0, 2], dtype=torch.int32)
    values = torch.tensor([1.0, -0.0, 3.0], dtype=dtype)
    place_stream(out, torch.tensor([3, 16, 23], dtype=torch.int32), values, chunks)
    assert out[[3, 32, 39]].tolist() == [1, 0, 3]
    assert int((out == FILL).sum()) == 37
    with pytest.raises(PayloadError, match=r"0 \.\.\. 23, but entry 1 is 24, after 3 \(n = 24\)"):
        place_stream(out, torch.tensor([3, 24], dtype=torch.int32), values[:2], chunks)
    assert out[3] == 1


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("chunked", [True, False])
@pytest.mark.parametrize("damage", sorted(DAMAGE))
def test_place_refuses_damaged_places(damage: str, chunked: bool, dtype: torch.dtype) -> None:
    out = torch.full((1000,), FILL, dtype=dtype)
    chunks = torch.arange(1, 63, 2, dtype=torch.int32)
    n = 16 * chunks.numel() if chunked else 1000
    places, values = stream(n, 0.3, 1, dtype)
    with pytest.raises(PayloadError, match="payload 0: indices must ascend strictly within 0"):
        place_stream(out, DAMAGE[damage](places, n), values, chunks if chunked else None)
    assert untouched(out)


def test_place_refuses_wrong_buffers() -> None:
    out, place = torch.full((40,), float(FILL)), torch.tensor([0, 4], dtype=torch.int32)
    for chunks in ([0, 3], [1, 1], [2, 0], [-1, 0]):
        with pytest.raises(KernelError, match=r"chunks must ascend strictly within 0 \.\.\. 2"):
            place_stream(out, place, torch.ones(2), torch.tensor(chunks, dtype=torch.int32))
    with pytest.raises(KernelError, match=r"chunks must be torch\.int32"):
        place_stream(out, place, torch.ones(2), torch.tensor([0]))
    with pytest.raises(PayloadError, match="payload 0: values must be"):
        place_stream(out, place, torch.ones(3), None)
    with pytest.raises(PayloadError, match="payload 0: indices must be int32"):
        place_stream(out, place.long(), torch.ones(2), None)
    with pytest.raises(PayloadError, match="entry 0 is 0"):
        place_stream(out, place, torch.ones(2), torch.empty(0, dtype=torch.int32))
    with pytest.raises(KernelError, match="contiguous"):
        place_stream(torch.zeros(80)[::2], place, torch.ones(2), None)
    place_stream(torch.empty(0), place[:0], torch.ones(0), None)
    assert untouched(out)


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=64), st.integers(0, 60), st.booleans())
def test_place_takes_any_bytes(data: bytes, n: int, chunked: bool) -> None:
    """Refused with nothing written, or what the twin does."""
    size = len(data) // 4
    small = torch.tensor(list(data[: 4 * size]), dtype=torch.uint8).view(torch.int32)
    for places in (small, small % 61, (small % 61).sort().values):
        out, wanted = torch.full((n,), float(FILL)), torch.full((n,), float(FILL))
        values = torch.arange(float(size))
        chunks = torch.arange(0, -(-n // 16), 2, dtype=torch.int32) if chunked else None
        try:
            place_stream(out, places, values, chunks)
        except PayloadError:
            assert untouched(out)
            with pytest.raises(PayloadError):
                place_stream_twin(wanted, places, values, chunks)
        else:
            place_stream_twin(wanted, places, values, chunks)
            assert same(out, wanted)

"""split_stream, flat_places and place_stream: against twins and each other, and their checks."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from in_torch import in_torch
from samples import DTYPES, draw, same
from sorted_streams import (
    DAMAGE,
    DENSITIES,
    DTYPE,
    FILL,
    KINDS,
    SIZES,
    outputs,
    stream,
    untouched,
)

from gradwire.errors import KernelError, PayloadError
from gradwire.kernels import flat_places, owners_of, place_stream, split_stream
from gradwire.kernels.torch import flat_places as flat_places_twin
from gradwire.kernels.torch import split_stream as split_stream_twin

OWNERS = st.sampled_from([1, 2, 3, 5, 16, 128, 1000, 65_535, 65_536])
place_stream_twin = in_torch(place_stream)
SEEDS = st.sampled_from([0, 1, 0x9E3779B9, 2**32 - 1])

pytestmark = pytest.mark.usefixtures("instruction_set")


@given(SIZES, DENSITIES, OWNERS, SEEDS, DTYPE, KINDS, st.integers(0, 9))
def test_split_same_bits_as_twin(
    n: int, density: float, owners: int, seed: int, dtype: torch.dtype, kind: str, draws: int
) -> None:
    places, values = stream(n, density, draws, dtype, kind)
    found, wanted = outputs(places.numel(), dtype), outputs(places.numel(), dtype)
    counts = split_stream(places, values, owners, seed, *found)
    assert counts == split_stream_twin(places, values, owners, seed, *wanted)
    assert found[0].tolist() == wanted[0].tolist()
    integers = torch.int32 if dtype == torch.float32 else torch.int16  # moved, NaN and all
    assert torch.equal(found[1].clone().view(integers), wanted[1].clone().view(integers))


@given(SIZES, DENSITIES, st.integers(1, 20), SEEDS, DTYPE, KINDS, st.integers(0, 9))
def test_what_is_split_comes_back(
    n: int, density: float, owners: int, seed: int, dtype: torch.dtype, kind: str, draws: int
) -> None:
    """Each part is a stream of its owner's elements; put in place, the parts give the whole."""
    places, values = stream(n, density, draws, dtype, kind)
    found = outputs(places.numel(), dtype)
    counts = split_stream(places, values, owners, seed, *found)
    out, wanted = torch.zeros(n, dtype=dtype), torch.zeros(n, dtype=dtype)
    wanted[places.long()] = values
    parts = zip(found[0].split(counts), found[1].split(counts))
    for owner, (own, part) in enumerate(parts):
        flat, twin = torch.empty_like(own), torch.empty_like(own)
        flat_places(own, owner, owners, seed, flat)
        flat_places_twin(own, owner, owners, seed, twin)
        assert torch.equal(flat, twin)
        place_stream(out, flat, part)
    assert same(out, wanted)


@given(st.integers(0, 2**27 - 1), st.integers(1, 2**16), SEEDS)
def test_rounds_are_divided_exactly(chunk: int, owners: int, seed: int) -> None:
    """The division is done as a multiplication; the ends of rounds are its hardest cases."""
    near = {0, chunk // owners * owners, 2**27 // owners * owners, 2**27 - 1}
    chunks = sorted({c + d for c in near for d in (-1, 0, 1) if 0 <= c + d < 2**27})
    places = torch.tensor([16 * c + c % 16 for c in chunks], dtype=torch.int32)
    found, wanted = (outputs(len(chunks), torch.float32) for _ in range(2))
    values = torch.arange(float(len(chunks)))
    counts = split_stream(places, values, owners, seed, *found)
    assert counts == split_stream_twin(places, values, owners, seed, *wanted)
    assert torch.equal(found[0], wanted[0])
    assert torch.equal(found[1], wanted[1])


def test_split_by_hand() -> None:
    """A round begins with the owner that its hash says, and every owner has one chunk of it."""
    first = [int(owners_of(torch.tensor(r), 3, 5)) for r in range(2)]
    places = torch.tensor([0, 15, 16, 35, 63], dtype=torch.int32)  # chunks 0, 0, 1, 2, 3
    found = outputs(5, torch.float32)
    counts = split_stream(places, torch.arange(5.0), 3, 5, *found)
    owner = [first[0], first[0], (first[0] + 1) % 3, (first[0] + 2) % 3, first[1]]
    assert counts == [owner.count(j) for j in range(3)]
    order = sorted(range(5), key=owner.__getitem__)
    assert found[1].tolist() == order
    assert found[0].tolist() == [[0, 15, 0, 3, 16 + 15][j] for j in order]


def test_split_of_nothing() -> None:
    nothing = outputs(0, torch.float16)
    assert split_stream(*stream(40, 0.0, 0, torch.float16), 3, 0, *nothing) == [0] * 3
    flat_places(nothing[0], 2, 3, 0, nothing[0])


def test_split_refuses() -> None:
    places, values = stream(100, 0.3, 1)
    k = places.numel()
    found = outputs(k, torch.float32)
    for owners, seed in ((0, 0), (2**16 + 1, 0), (3, -1), (3, 2**32)):
        with pytest.raises(KernelError, match=r"1 to 65536 and the seed must have 32"):
            split_stream(places, values, owners, seed, *found)
        with pytest.raises(KernelError, match=r"1 to 65536 and the seed must have 32"):
            flat_places(places, 0, owners, seed, found[0])
    with pytest.raises(KernelError, match=r"places must ascend and be 0 or more, but go from -1"):
        split_stream(torch.cat([places[:1] * 0 - 1, places[1:]]), values, 3, 0, *found)
    with pytest.raises(KernelError, match=r"places must be int32"):
        split_stream(places.long(), values, 3, 0, *found)
    with pytest.raises(KernelError, match=r"values must have the shape of the places"):
        split_stream(places, values[1:], 3, 0, *found)
    with pytest.raises(KernelError, match=r"values_out must be torch\.float32"):
        split_stream(places, values, 3, 0, found[0], found[1].half())
    with pytest.raises(KernelError, match=r"places_out must have shape"):
        split_stream(places, values, 3, 0, found[0][1:], found[1])
    assert untouched(*found)


def test_flat_places_refuses() -> None:
    places, _ = stream(100, 0.3, 1)
    out = outputs(places.numel(), torch.float32)[0]
    for owner in (-1, 3):
        with pytest.raises(
            KernelError, match=rf"owner must be one of 3, not .* and {owner}; pass"
        ):
            flat_places(places, owner, 3, 0, out)
    with pytest.raises(KernelError, match=r"places must be int32"):
        flat_places(places.long(), 0, 3, 0, out)
    with pytest.raises(KernelError, match=r"places_out must have shape"):
        flat_places(places, 0, 3, 0, out[1:])
    for bad in ([-1, 5], [5, 2**27 // 3 * 16 + 16], [5, 2**31 - 1]):
        with pytest.raises(
            KernelError, match=r"what owner 0 of 3 can have of 2\^31 elements, but"
        ):
            flat_places(torch.tensor(bad, dtype=torch.int32), 0, 3, 0, out[:2])
    assert untouched(out)


@pytest.mark.parametrize("owners", [1, 2, 3, 5, 7, 1000, 65_535])
def test_the_last_round_of_the_largest_tensor(owners: int) -> None:
    """The last round is cut if owners do not divide the chunks; splitting still comes back."""
    n = 2**31 - 1
    places = torch.tensor([0, n - 40, n - 20, n - 1], dtype=torch.int32)
    found = outputs(4, torch.float32)
    counts = split_stream(places, torch.arange(4.0), owners, 9, *found)
    back = []
    for owner, own in enumerate(found[0].split(counts)):
        if own.numel():
            flat_places(own, owner, owners, 9, own)
            flat_places_twin(own[:0], owner, owners, 9, own[:0])
            back += own.tolist()
    assert sorted(back) == places.tolist()


def test_a_list_that_is_none_writes_nowhere_else() -> None:
    """Only the ends of a list are checked: places between may be anything."""
    places = torch.tensor([0, *range(-2000, 0, 16), -(2**31), 2**31 - 1, 50], dtype=torch.int32)
    for owners in (1, 2, 3, 7, 13):
        for seed in range(50):
            found = outputs(places.numel(), torch.float32)
            counts = split_stream(places, torch.ones(places.numel()), owners, seed, *found)
            assert sum(counts) == places.numel()


@given(SIZES, DENSITIES, DTYPE, DTYPE, KINDS, st.integers(0, 9))
def test_place_same_bits_as_twin(
    n: int, density: float, to: torch.dtype, dtype: torch.dtype, kind: str, seed: int
) -> None:
    places, values = stream(n, density, seed, dtype, kind)
    out, wanted = draw("broken", n, 0, to, shift=1), draw("broken", n, 0, to)
    place_stream(out, places, values)
    place_stream_twin(wanted, places, values)
    assert same(out, wanted)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("damage", sorted(DAMAGE))
def test_place_refuses_damaged_places(damage: str, dtype: torch.dtype) -> None:
    out = torch.full((1000,), FILL, dtype=dtype)
    places, values = stream(1000, 0.3, 1, dtype)
    with pytest.raises(PayloadError, match="payload 0: indices must ascend strictly within 0"):
        place_stream(out, DAMAGE[damage](places, 1000), values)
    assert untouched(out)


def test_place_refuses_wrong_buffers() -> None:
    out, place = torch.full((40,), float(FILL)), torch.tensor([0, 4], dtype=torch.int32)
    with pytest.raises(PayloadError, match="payload 0: values must be"):
        place_stream(out, place, torch.ones(3))
    with pytest.raises(PayloadError, match="payload 0: indices must be int32"):
        place_stream(out, place.long(), torch.ones(2))
    with pytest.raises(KernelError, match="contiguous"):
        place_stream(torch.zeros(80)[::2], place, torch.ones(2))
    place_stream(torch.empty(0), place[:0], torch.ones(0))
    assert untouched(out)


@given(st.binary(max_size=64), st.integers(0, 60))
def test_place_takes_any_bytes(data: bytes, n: int) -> None:
    """Arbitrary bytes are refused with nothing written, or give what the twin gives."""
    size = len(data) // 4
    small = torch.tensor(list(data[: 4 * size]), dtype=torch.uint8).view(torch.int32)
    for places in (small, small % 61, (small % 61).sort().values):
        out, wanted = torch.full((n,), float(FILL)), torch.full((n,), float(FILL))
        values = torch.arange(float(size))
        try:
            place_stream(out, places, values)
        except PayloadError:
            assert untouched(out)
            with pytest.raises(PayloadError):
                place_stream_twin(wanted, places, values)
        else:
            place_stream_twin(wanted, places, values)
            assert same(out, wanted)

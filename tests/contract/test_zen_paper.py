"""zen(variant="paper"): the published wire format to the byte, who owns what, and its balance."""

from __future__ import annotations

import math

import pytest
import torch
from inputs import FLOATS, integers, ranks
from torch import Tensor

from gradwire import Strategy, lockstep
from gradwire.buckets import digest
from gradwire.collectives import Zen
from gradwire.errors import PayloadError, StrategyError
from gradwire.streams import Form, HashedElements, Ranges, Stream

PAPER = 'nonzero | zen(variant="paper")'
CPU = torch.device("cpu")
HEADER = 32
every_world = pytest.mark.parametrize("world", [1, 2, 3, 5, 8])


def owners_by_hand(n: int, world: int, seed: int = 0) -> Tensor:
    key = digest("hashed elements", n, world, seed, 0) & 0xFFFFFFFF
    owners = []
    for index in range(n):
        h = index ^ key
        h = (h ^ (h >> 16)) * 0x85EBCA6B % 2**32
        h = (h ^ (h >> 13)) * 0xC2B2AE35 % 2**32
        owners.append(((h ^ (h >> 16)) * world) >> 32)
    return torch.tensor(owners)


def sparse(world: int, n: int, density: float, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    dice = torch.Generator().manual_seed(n)
    return [
        torch.where(torch.rand(n, generator=dice) < density, x, torch.zeros_like(x))
        for x in ranks(world, n, dtype=dtype)
    ]


# -- the result and the bytes --------------------------------------------------------------------


@every_world
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_the_result_is_that_of_chunks(world: int, dtype: torch.dtype) -> None:
    """Both sum in rank order, so they are equal to the bit; whole numbers give the dense mean."""
    for n in (1, 3, 100, 5000):
        xs = sparse(world, n, 0.2, dtype)
        for one, other in zip(lockstep(PAPER, xs)[0], lockstep("nonzero | zen", xs)[0]):
            assert torch.equal(one, other)
        whole = integers(world, n)
        assert torch.equal(lockstep(PAPER, whole)[0][0], torch.stack(whole).sum(0) / world)


@every_world
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("density", [0.0, 0.01, 0.3, 1.0])
def test_bytes_are_the_published_ones(world: int, dtype: torch.dtype, density: float) -> None:
    """Pairs of int32 and value go out, a bit per owned element and values come back; and counts.

    An fp32 non-zero takes 8 bytes.
    """
    n, item = 1003, dtype.itemsize
    xs = sparse(world, n, density, dtype)
    owner = owners_by_hand(n, world)
    result, trace = lockstep(PAPER, xs)
    for rank, x in enumerate(xs):
        pushed = int(((x != 0) & (owner != rank)).sum()) * (4 + item)
        mine = owner == rank
        total = torch.stack([g.float() for g in xs]).sum(0)
        pulled = -(-int(mine.sum()) // 8) + int((total[mine] != 0).sum()) * item
        counts = HEADER + 8 * (world + 1) + HEADER + 8 * 2  # each with a seal
        assert trace.bytes_sent[rank] == (world - 1) * (counts + pulled) + pushed
    assert result[0].dtype == dtype


def test_bitmaps_of_all_owners_are_a_bit_per_element() -> None:
    n, world = 100_003, 16
    domains = HashedElements(n, world, 0, CPU)
    total = sum(-(-size // 8) for size in domains.sizes)
    assert n / 8 <= total < n / 8 + world


def test_printing_and_refusing() -> None:
    assert str(Strategy.parse(PAPER)) == PAPER
    assert str(Zen()) == str(Zen(variant="chunks")) == "zen"
    with pytest.raises(
        StrategyError, match=r"zen's variant must be one of chunks, paper; got 'hash'"
    ):
        Strategy.parse("nonzero | zen(variant='hash')")


# -- who owns what -------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [0, 1, 5, 1000])
@every_world
def test_every_element_has_one_owner(n: int, world: int) -> None:
    domains = HashedElements(n, world, 3, CPU)
    owned = [domains.flat(r, torch.arange(size)) for r, size in enumerate(domains.sizes)]
    assert sorted(torch.cat(owned).tolist()) == list(range(n))
    for own in owned:
        assert own.dtype == torch.int32
        assert own.tolist() == sorted(own.tolist())


def test_another_seed_is_another_deal() -> None:
    """Seeds deal differently, so nobody can know in advance which elements burden an owner."""
    one, other = (HashedElements(1000, 4, seed, CPU).flat(0, torch.arange(200)) for seed in (0, 1))
    assert not torch.equal(one, other)


@every_world
def test_the_split_does_not_depend_on_what_else_is_there(world: int) -> None:
    n = 2000
    domains = HashedElements(n, world, 0, CPU)
    owner = owners_by_hand(n, world)
    for seed in range(20):
        dice = torch.Generator().manual_seed(seed)
        places = (torch.rand(n, generator=dice) < seed / 19).nonzero().flatten().int()
        values = torch.randn(places.numel(), generator=dice)
        parts = domains.split(Stream(places, values, n))
        for r, part in enumerate(parts):
            mine = owner[places.long()] == r
            assert torch.equal(domains.flat(r, part.places), places[mine])
            assert torch.equal(part.values, values[mine])


def test_blocks_of_hashing_are_seamless() -> None:
    n = (1 << 20) + 7
    domains = HashedElements(n, 3, 0, CPU)
    assert sum(domains.sizes) == n
    last = torch.cat([domains.flat(r, torch.tensor([s - 1])) for r, s in enumerate(domains.sizes)])
    assert int(last.max()) == n - 1


SUPPORTS = {
    "contiguous": torch.arange(20_000, 40_000),
    "every 16th": torch.arange(0, 320_000, 16),
    "hot columns": (torch.arange(1000)[:, None] * 320 + torch.arange(0, 320, 16)).flatten(),
    "uniform": torch.randperm(320_000, generator=torch.Generator().manual_seed(1))[:20_000],
}


def imbalance(counts: list[int]) -> float:
    return max(counts) * len(counts) / sum(counts)


@pytest.mark.parametrize("kind", SUPPORTS)
@pytest.mark.parametrize("world", [4, 16])
def test_owners_are_balanced_whatever_the_support(kind: str, world: int) -> None:
    """Bernstein's bound with delta = 1e-9; even ranges break it on a contiguous block."""
    n, places = 320_000, SUPPORTS[kind].sort().values.int()
    stream = Stream(places, places.float(), n)
    mu, level = places.numel() / world, math.log(world / 1e-9)
    bound = 1 + (level / 3 + math.sqrt(level**2 / 9 + 2 * mu * level)) / mu
    for seed in range(10):
        parts = HashedElements(n, world, seed, CPU).split(stream)
        assert imbalance([part.count for part in parts]) <= bound
    even = Ranges.even(n, world).split(stream)
    if kind == "contiguous":
        assert imbalance([part.count for part in even]) > bound, "the test has no power"


# -- the forms of a coded stream -----------------------------------------------------------------


FORMS: tuple[tuple[Form, str], ...] = (("coo", "4 * k"), ("bitmap", "-(-n // 8)"))


@pytest.mark.parametrize(("form", "size"), FORMS)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize(("n", "k"), [(1, 0), (1, 1), (9, 4), (77, 77), (1000, 13), (1000, 0)])
def test_a_form_is_read_back(form: Form, size: str, dtype: torch.dtype, n: int, k: int) -> None:
    places = torch.randperm(n, generator=torch.Generator().manual_seed(k))[:k].sort().values.int()
    values = torch.randn(k).to(dtype)
    values[: min(k, 3)] = torch.tensor([math.nan, math.inf, -0.0], dtype=dtype)[: min(k, 3)]
    stream = Stream(places, values, n)
    message = stream.packed(form)
    assert message.numel() == eval(size, {"n": n, "k": k}) + k * dtype.itemsize
    assert message.numel() <= stream.most_packed_bytes()
    back = stream.unpacked(message, form)
    assert torch.equal(back.places, places)
    assert torch.equal(back.values.view(torch.uint8), values.view(torch.uint8))


def test_bits_lie_in_the_order_of_elements_behind_the_values() -> None:
    stream = Stream(torch.tensor([0, 9, 19], dtype=torch.int32), torch.tensor([1.0, 2.0, 3.0]), 20)
    message = stream.packed("bitmap")
    assert message[:12].view(torch.float32).tolist() == [1.0, 2.0, 3.0]
    assert message[12:].tolist() == [1, 2, 8]
    pairs = stream.packed("coo")
    assert pairs[12:].view(torch.int32).tolist() == [0, 9, 19]


def test_a_damaged_form_is_refused() -> None:
    stream = Stream(torch.tensor([0, 9, 19], dtype=torch.int32), torch.ones(3), 20)
    for form in ("coo", "bitmap"):
        message = stream.packed(form)
        with pytest.raises(PayloadError, match="entries of 20 elements take"):
            stream.unpacked(message[1:], form)
        with pytest.raises(PayloadError, match="20 entries of 20 elements take"):
            stream.unpacked(message.repeat(20), form)
        message[12] = 255
        with pytest.raises(PayloadError, match=r"strictly within 0 \.\.\. 19"):
            stream.unpacked(message, form)
    with pytest.raises(PayloadError, match="0 entries of 20 elements take 3 bytes; 2 arrived"):
        stream.unpacked(message[:2], "bitmap")

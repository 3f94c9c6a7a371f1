"""Every element has one owner, the same everywhere, and owners are balanced for any tensor."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from gradwire.streams import Chunks, Domains, Ranges, Rows, Stream, chunks_or_ranges
from gradwire.streams.domains import CHUNK

SIZES = (1, 2, 15, 16, 17, 31, 100, 1000, 1024, 1025, 5003)
WORLDS = (1, 2, 3, 4, 5, 7, 8, 16, 17)


def chunks(n: int, world: int, seed: int = 0) -> Chunks:
    return Chunks(n, world, seed)


def ranges(n: int, world: int, seed: int = 0) -> Ranges:
    return Ranges.even(n, world)


def rows(n: int, world: int, seed: int = 0) -> Rows:
    return Rows(n, world, seed)


every = pytest.mark.parametrize("make", [chunks, rows, ranges])


def owned(domains: Domains) -> list[Tensor]:
    """The places of every owner's domain in the flat vector."""
    return [
        domains.flat(owner, torch.arange(size, dtype=torch.int32))
        for owner, size in enumerate(domains.sizes)
    ]


def stream(places: Tensor) -> Stream:
    return Stream(places.int(), places.float() + 0.5, 1 << 30)


# -- the laws of a partition ---------------------------------------------------------------------


@every
@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("world", WORLDS)
def test_every_element_has_one_owner(make: type[Domains], n: int, world: int) -> None:
    domains = make(n, world)  # type: ignore[call-arg]
    parts = owned(domains)
    assert len(parts) == world
    assert torch.equal(torch.cat(parts).sort().values, torch.arange(n).int())
    for part in parts:
        assert bool((part.diff() > 0).all()), "sorted lists stay sorted"


@every
@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("world", WORLDS)
def test_domains_are_of_one_size(make: type[Domains], n: int, world: int) -> None:
    """Domains differ by at most one chunk; the last chunk may be cut."""
    sizes = make(n, world).sizes  # type: ignore[call-arg]
    whole = [-(-size // CHUNK) for size in sizes]
    assert sum(sizes) == n
    assert max(whole) - min(whole) <= 1
    if make is not chunks:
        assert max(sizes) - min(sizes) <= 1


@every
@given(
    places=st.sets(st.integers(0, 1030), max_size=80), world=st.sampled_from(WORLDS),
    seed=st.integers(0, 3),
)  # fmt: skip
def test_the_owner_does_not_depend_on_what_else_is_there(
    make: type[Domains], places: set[int], world: int, seed: int
) -> None:
    """A stream that is cut and put together again is whole, with its values, and every owner gets
    places of its own domain alone."""
    domains = make(1031, world, seed)  # type: ignore[call-arg]
    mine = stream(torch.tensor(sorted(places)))
    parts = domains.split(mine)
    back = []
    for owner, (part, every_place) in enumerate(zip(parts, owned(domains))):
        assert part.places.dtype == torch.int32
        assert bool((part.places.diff() > 0).all())
        assert bool(((part.places >= 0) & (part.places < domains.sizes[owner])).all())
        there = domains.flat(owner, part.places)
        assert torch.equal(there, every_place[part.places.long()])
        assert torch.equal(part.values, there.float() + 0.5), "values come with their places"
        back += there.tolist()
    assert sorted(back) == sorted(places)


@pytest.mark.parametrize("world", WORLDS)
def test_all_ranks_draw_alike_and_seeds_do_not(world: int) -> None:
    one, other = (owned(chunks(5003, world, seed=7)) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(one, other))
    torch.manual_seed(1)  # torch's global dice do not matter
    assert all(torch.equal(a, b) for a, b in zip(one, owned(chunks(5003, world, seed=7))))
    if world > 1:
        parts = zip(one, owned(chunks(5003, world, seed=8)))
        assert not all(torch.equal(a, b) for a, b in parts)


def test_few_chunks_are_ranges() -> None:
    assert isinstance(chunks_or_ranges(3 * 1024 - 1, 3, 0), Ranges)
    assert isinstance(chunks_or_ranges(3 * 1024, 3, 0), Chunks)


# -- balance -------------------------------------------------------------------------------------

ROWS, WIDTH, TOKENS, WORLD = 2000, 32, 300, 8
DELTA = 1e-9 / 400
"""The chance that one push or pull exceeds the bound; 200 seeds have a push and a pull each."""


def zipf_rows(ranks: int, seed: int) -> list[Tensor]:
    """The rows that each rank's tokens touch, frequent words first: (rows,) each, ascending."""
    dice = torch.Generator().manual_seed(seed)
    weights = 1.0 / (torch.arange(ROWS) + 2.7)
    return [
        torch.multinomial(weights, TOKENS, replacement=True, generator=dice).unique()
        for _ in range(ranks)
    ]


def places_of(rows: Tensor) -> Tensor:
    return (rows.unsqueeze(1) * WIDTH + torch.arange(WIDTH)).flatten()


def imbalance(domains: Domains, rows: Tensor) -> float:
    """The fullest owner's number of entries over the mean."""
    counts = [part.count for part in domains.split(stream(places_of(rows)))]
    return max(counts) * len(counts) / sum(counts)


def bound(rows: Tensor) -> float:
    """Bernstein's bound for any of the owners. The balls are chunks with non-zeros, all full."""
    mu = len(rows) * WIDTH / CHUNK / WORLD
    log = math.log(WORLD / DELTA)
    return 1 + (log / 3 + math.sqrt(log**2 / 9 + 2 * mu * log)) / mu


def test_chunks_are_balanced_and_ranges_are_not() -> None:
    pushes, pulls, skewed = [], [], []
    even = ranges(ROWS * WIDTH, WORLD)
    for seed in range(200):
        given_rows = zipf_rows(2, seed)
        union, own = torch.cat(given_rows).unique(), given_rows[0]
        dealt = chunks(ROWS * WIDTH, WORLD, seed)
        pushes.append(imbalance(dealt, own) / bound(own))
        pulls.append(imbalance(dealt, union) / bound(union))
        skewed.append(imbalance(even, own) / bound(own))
    assert max(pushes) <= 1
    assert max(pulls) <= 1
    assert min(skewed) > 1, "a bound that ranges of Zipf rows keep says nothing"


@pytest.mark.parametrize("stride", [8 * CHUNK, 64 * CHUNK])
def test_no_pattern_burdens_one_owner(stride: int) -> None:
    """Chunks at even distances, as hot columns make them, would all be one owner's if chunks were
    dealt in turn."""
    n = 1024 * CHUNK * WORLD
    hot = stream((torch.arange(0, n, stride).unsqueeze(1) + torch.arange(CHUNK)).flatten())
    for seed in range(20):
        counts = [part.count for part in chunks(n, WORLD, seed).split(hot)]
        assert max(counts) < 3 * sum(counts) / WORLD

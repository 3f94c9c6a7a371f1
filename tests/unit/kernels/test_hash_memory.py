"""hash_partition: the plain partition in another order; the published collisions; nothing lost."""

import random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from in_torch import in_torch
from samples import NATIVE
from torch import Tensor

from gradwire.errors import KernelError
from gradwire.kernels import hash_partition, owners_of
from gradwire.kernels.hash_memory import slots_for
from suites import first

pytestmark = pytest.mark.usefixtures("instruction_set")

hash_partition_twin = in_torch(hash_partition)
SEEDS = (0x9E3779B9, 0, 2**32 - 1, 12345)
PUBLISHED = {
    1: (0.369, 0.239, 0.178, 0.141, 0.118),
    1.5: (0.267, 0.127, 0.066, 0.035, 0.021),
    2: (0.212, 0.076, 0.030, 0.011, 0.004),
    3: (0.148, 0.036, 0.009, 0.002, 0.001),
    4: (0.115, 0.020, 0.004, 0.001, 0.001),
}
"""Published share of entries in serial memory, by parallel slots per entry and tries 1 to 5."""


def drawn(n: int, k: int, seed: int = 0) -> Tensor:
    """Distinct indices in no order, at odd addresses, with the first and the last one."""
    picked = torch.randperm(n, generator=torch.Generator().manual_seed(seed))[:k].int()
    if k > 1:
        missing = [i for i in (0, n - 1) if i not in picked.tolist()]
        picked[: len(missing)] = torch.tensor(missing, dtype=torch.int32)
    return torch.empty(k + 1, dtype=torch.int32)[1:].copy_(picked)


def parts(out: Tensor, counts: list[int]) -> list[list[int]]:
    return [sorted(part.tolist()) for part in out.split(counts)]


def plain(indices: Tensor, owners: int, seed: int) -> list[list[int]]:
    """The partition owner by owner, with the hash as it is published."""
    owned: list[list[int]] = [[] for _ in range(owners)]
    for index in sorted(indices.tolist()):
        h = index ^ seed
        h = (h ^ (h >> 16)) * 0x85EBCA6B % 2**32
        h = (h ^ (h >> 13)) * 0xC2B2AE35 % 2**32
        owned[((h ^ (h >> 16)) * owners) >> 32].append(index)
    return owned


def seeds_of(tries: int, seed: int) -> list[int]:
    dice = random.Random(seed)
    return [dice.getrandbits(32) for _ in range(tries + 1)]


@given(
    st.integers(1, 3000), st.floats(0, 1), st.sampled_from([1, 2, 3, 16, 100]),
    st.integers(1, 4), st.sampled_from([None, (1, 0), (7, 3), (64, 6)]), st.integers(0, 99),
)  # fmt: skip
def test_owners_have_what_the_plain_partition_gives_them(
    n: int, density: float, owners: int, tries: int, slots: tuple[int, int] | None, seed: int
) -> None:
    indices, seeds = drawn(n, int(n * density), seed), seeds_of(tries, seed)
    out, again = torch.empty_like(indices), torch.empty_like(indices)
    found = hash_partition(indices, owners, seeds, out, slots)
    assert parts(out, found.counts) == plain(indices, owners, seeds[0])
    assert found == hash_partition_twin(indices, owners, seeds, again, slots)
    assert torch.equal(out, again), "one thread, another order"
    wanted = torch.tensor([p for p, own in enumerate(found.counts) for _ in range(own)])
    assert torch.equal(owners_of(out, owners, seeds[0]), wanted.long())


def test_a_hash_that_is_known() -> None:
    """MurmurHash3's finalizer of 1 is 0x514e28b7."""
    assert owners_of(torch.tensor([1, 0]), 2**31, 0).tolist() == [0x514E28B7 >> 1, 0]


def test_first_and_last_index_are_kept() -> None:
    indices = torch.tensor([0, 2**31 - 2, 2**31 - 1], dtype=torch.int32)
    out = torch.empty_like(indices)
    counts = hash_partition(indices, 5, SEEDS, out).counts
    assert sum(counts) == 3
    assert sorted(out.tolist()) == indices.tolist()


def test_nothing_at_all() -> None:
    none = torch.empty(0, dtype=torch.int32)
    assert hash_partition(none, 3, SEEDS, none.clone()) == ([0, 0, 0], 0, 0)


@pytest.mark.once
@pytest.mark.parametrize("ratio", PUBLISHED)
def test_collisions_are_those_of_the_table(ratio: float) -> None:
    """60,000 random indices in one table collide as published: within a tenth, or 0.01."""
    k, rows = 60_000, PUBLISHED[ratio]
    indices = drawn(1 << 22, k, seed=1)
    for tries, share in enumerate(rows, 1):
        out, slots = torch.empty_like(indices), (int(ratio * k), k)
        found = hash_partition(indices, 1, seeds_of(tries, tries), out, slots)
        assert abs(found.serial / k - share) <= max(0.1 * share, 0.01), (ratio, tries)
        assert found.growths == 0


def test_published_slots_are_enough_and_three_per_cent_are_serial() -> None:
    k, owners = 100_000, 16
    assert slots_for(k, owners) == (12_500, 1250)
    assert slots_for(10, owners) == (64, 64)
    indices = drawn(1 << 22, k, seed=2)
    found = hash_partition(indices, owners, SEEDS, torch.empty_like(indices))
    assert found.growths == 0
    assert abs(found.serial / k - 0.03) < 0.003


@pytest.mark.parametrize("slots", [(1, 0), (1, 1), (8, 0), (500, 2)], ids=str)
@pytest.mark.parametrize("threads", [1, 4])
def test_small_tables_grow_and_drop_nothing(slots: tuple[int, int], threads: int) -> None:
    indices = drawn(20_000, 3000, seed=3)
    out = torch.empty_like(indices)
    found = hash_partition(indices, 3, SEEDS, out, slots, threads)
    assert found.growths >= 1
    assert parts(out, found.counts) == plain(indices, 3, SEEDS[0])


def test_all_in_one_owner_s_table() -> None:
    """If an adversary knows the seed, one owner's table has all, and the others' stay empty."""
    known = torch.arange(200_000)[owners_of(torch.arange(200_000), 16, SEEDS[0]) == 11].int()
    out = torch.empty_like(known)
    found = hash_partition(known, 16, SEEDS, out)
    assert found.counts == [0] * 11 + [known.numel()] + [0] * 4
    assert found.growths > 0, "sixteen times what its table holds"
    assert torch.equal(out.sort().values, known)


@NATIVE
@pytest.mark.parametrize("threads", first([3, 2, 8]))
def test_threads_at_once_lose_nothing(threads: int, instruction_set: str) -> None:
    """Neighbouring threads share every table, also tables of a single slot."""
    indices = drawn(1 << 20, 200_000, seed=4)
    out, wanted = torch.empty_like(indices), torch.empty_like(indices)
    counts = hash_partition(indices, 4, SEEDS, wanted).counts
    owned = [part.sort().values for part in wanted.split(counts)]
    for round_ in range(2 if instruction_set == "twin" else 20):
        slots = (1, 60_000) if round_ == 0 else (25_000, 100) if round_ % 2 else None
        found = hash_partition(indices, 4, SEEDS, out.fill_(-1), slots, threads)
        assert found.counts == counts
        for part, own in zip(out.split(counts), owned):
            assert torch.equal(part.sort().values, own)


def test_refuses() -> None:
    indices = torch.tensor([3, 5], dtype=torch.int32)
    out = torch.full_like(indices, 7)
    with pytest.raises(KernelError, match=r"indices must be int32 with one dimension"):
        hash_partition(indices.long(), 2, SEEDS, out)
    with pytest.raises(KernelError, match=r"indices must be 0 or more, but one is -5"):
        hash_partition(-indices, 2, SEEDS, out)
    with pytest.raises(KernelError, match=r"indices_out must have shape \(2,\)"):
        hash_partition(indices, 2, SEEDS, out[:1])
    with pytest.raises(KernelError, match=r"seeds must be two or more numbers of 32 bits"):
        hash_partition(indices, 2, SEEDS[:1], out)
    with pytest.raises(KernelError, match=r"seeds must be two or more numbers of 32 bits"):
        hash_partition(indices, 2, (1, 2**32), out)
    with pytest.raises(KernelError, match=r"1 to 65536 and threads 1 to 256, not 0 and 1"):
        hash_partition(indices, 0, SEEDS, out)
    with pytest.raises(KernelError, match=r"1 to 65536 and threads 1 to 256, not 2 and 0"):
        hash_partition(indices, 2, SEEDS, out, threads=0)
    with pytest.raises(KernelError, match=r"at least 1 parallel and 0 serial"):
        hash_partition(indices, 2, SEEDS, out, slots=(0, 4))
    assert out.tolist() == [7, 7]

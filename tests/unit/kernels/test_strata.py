"""strata draws one place in each of k runs, every element of a run with equal chance."""

import pytest
import torch

from gradwire.errors import KernelError
from gradwire.kernels import Noise, random_bits, strata
from gradwire.kernels.torch import strata as strata_twin

NOISE = Noise.of("0/0/weight")
SIZES = [1, 2, 7, 8, 15, 16, 17, 31, 33, 64, 100, 255, 1000, 1023, 4097]


def drawn(noise: Noise, n: int, k: int) -> torch.Tensor:
    places = torch.full((k + 1,), -7, dtype=torch.int32)[1:]  # at an unaligned address
    strata(noise, n, places)
    return places


def shares(n: int) -> list[int]:
    return sorted({k for k in (1, 2, 3, n // 3, n // 2, n - 1, n) if 0 < k <= n})


@pytest.mark.usefixtures("instruction_set")
@pytest.mark.parametrize("n", SIZES)
def test_same_as_twin(n: int) -> None:
    for k in shares(n):
        for noise in (NOISE, Noise(0, 0), Noise(2**32 - 1, 2**32 - 1, 2**32 - 1)):
            wanted = torch.empty(k, dtype=torch.int32)
            strata_twin(noise, n, wanted)
            assert torch.equal(drawn(noise, n, k), wanted), f"k = {k}"


@pytest.mark.usefixtures("instruction_set")
@pytest.mark.parametrize("n", [2**20 + 3, 2**31 - 1])
def test_same_as_twin_where_products_are_large(n: int) -> None:
    for k in (1, 3, 1000, 70_001):
        wanted = torch.empty(k, dtype=torch.int32)
        strata_twin(NOISE, n, wanted)
        assert torch.equal(drawn(NOISE, n, k), wanted)
        assert int(wanted.min()) >= 0


@pytest.mark.usefixtures("instruction_set")
@pytest.mark.parametrize("n", SIZES)
def test_by_hand(n: int) -> None:
    """The places, in Python's integers: floor(i·n/k), plus the die times the length over 2^32."""
    for k in shares(n):
        dice = random_bits(NOISE, k).tolist()
        wanted = []
        for i in range(k):
            begin, end = i * n // k, (i + 1) * n // k
            wanted.append(begin + (dice[i] * (end - begin) >> 32))
        assert drawn(NOISE, n, k).tolist() == wanted


@pytest.mark.usefixtures("instruction_set")
@pytest.mark.parametrize("n", SIZES)
def test_one_place_in_every_run_ascending(n: int) -> None:
    for k in shares(n):
        for seed in range(20):
            places = drawn(Noise.of(f"{seed}"), n, k).tolist()
            for i, place in enumerate(places):
                assert i * n // k <= place < (i + 1) * n // k
            assert places == sorted(set(places))


@pytest.mark.usefixtures("instruction_set")
def test_none_and_all() -> None:
    assert drawn(NOISE, 0, 0).tolist() == []
    assert drawn(NOISE, 50, 0).tolist() == []
    for n in SIZES:
        assert drawn(NOISE, n, n).tolist() == list(range(n))


@pytest.mark.parametrize(("n", "k"), [(10, 1), (100, 10), (37, 5), (64, 16), (50, 49)])
def test_every_element_has_the_chance_of_one_in_its_run(n: int, k: int) -> None:
    """χ² over many steps is within about five standard deviations."""
    draws = 4000
    counts = torch.zeros(n, dtype=torch.float64)
    for step in range(draws):
        counts[drawn(Noise.of(f"0/{step}/weight"), n, k).long()] += 1
    begin = torch.arange(k + 1) * n // k
    sizes = begin[1:] - begin[:-1]
    expected = (draws / sizes.double()).repeat_interleave(sizes)
    degrees = n - k
    chi_square = float(((counts - expected).square() / expected).sum())
    assert abs(chi_square - degrees) < 5 * (2 * degrees) ** 0.5


def test_runs_are_drawn_on_their_own() -> None:
    """Two neighbours fall into the same half of their runs in half of the steps."""
    halves = torch.stack(
        [
            (drawn(Noise.of(f"0/{step}/w"), 2000, 100) - 20 * torch.arange(100)) >= 10
            for step in range(200)
        ]
    )
    alike = (halves[:, 1:] == halves[:, :-1]).double().mean()
    assert abs(float(alike) - 0.5) < 5 * 0.5 / (200 * 99) ** 0.5


def test_buffers_that_do_not_fit_are_refused() -> None:
    for places, n in (
        (torch.empty(3), 5), (torch.empty(6, dtype=torch.int32), 5),
        (torch.empty(6, dtype=torch.int32)[::2], 50), (torch.empty(1, dtype=torch.int32), 2**31),
    ):  # fmt: skip
        with pytest.raises(KernelError):
            strata(NOISE, n, places)

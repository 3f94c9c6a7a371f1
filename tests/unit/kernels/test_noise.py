"""Random numbers: by hand, equal to the twin's, and as random as they have to be.

Thresholds are at about five standard deviations; seeds are fixed.
"""

import pytest
import torch

from gradwire.kernels import Noise, random_bits
from gradwire.kernels.torch.noise import random_bits as random_bits_twin
from gradwire.kernels.torch.noise import unit as unit_twin

N = 1 << 20
GOLDEN = 0x9E3779B9
BYTES = pytest.mark.parametrize("shift", [24, 16, 8, 0])


def mixed(element: int, noise: Noise) -> int:
    """One number, in Python's integers."""
    h = (element + noise.first) % 2**32
    h = (h ^ (h >> 16)) * 0x7FEB352D % 2**32
    h = ((h ^ (h >> 15)) + noise.second) % 2**32 * 0x846CA68B % 2**32
    return ((h ^ (h >> 16)) + noise.shift) % 2**32


def correlation(a: torch.Tensor, b: torch.Tensor) -> float:
    """The correlation of uniform numbers, in standard deviations of that of independent ones."""
    x, y = (unit_twin(t).double() - 0.5 for t in (a, b))
    return float((x * y).mean() * 12 * x.numel() ** 0.5)


def chi_square(values: torch.Tensor) -> float:
    """The χ² of bytes against a uniform distribution, in standard deviations from its mean."""
    expected = values.numel() / 256
    counts = torch.bincount(values, minlength=256).double()
    return float(((counts - expected).square().sum() / expected - 255) / (2 * 255) ** 0.5)


@pytest.mark.usefixtures("instruction_set")
def test_numbers_by_hand() -> None:
    assert random_bits(Noise(0, 0), 3).tolist() == [0, 1753845952, 3507691905]  # as published
    assert random_bits(Noise(0, 0, 5), 3).tolist() == [5, 1753845957, 3507691910]
    noise = Noise(0xFFFFFFF0, 0x89ABCDEF, 0xFEDCBA98)
    assert random_bits(noise, 40).tolist() == [mixed(i, noise) for i in range(40)]


@pytest.mark.usefixtures("instruction_set")
@pytest.mark.parametrize("n", [0, 1, 7, 8, 15, 16, 17, 255, 256, 257, 511, 513, 1281, 70_001])
def test_same_as_twin(n: int) -> None:
    for first in (0, 1, 511, 2**31 - 1 - n, 2**32 - 3):
        for noise in (Noise(0, 0), Noise(2**32 - 1, 2**32 - 1, 2**32 - 1), Noise.of("w", 3)):
            out = random_bits(noise, n, first)
            assert out.dtype == torch.int64
            assert torch.equal(out, random_bits_twin(noise, n, first))


@pytest.mark.usefixtures("instruction_set")
def test_a_number_depends_on_its_element_alone() -> None:
    noise = Noise.of("w")
    assert torch.equal(random_bits(noise, 3000)[1234:], random_bits(noise, 3000 - 1234, 1234))


def test_keys_come_from_the_name_and_the_shift_from_the_rank() -> None:
    assert Noise.of("7/3/weight") == Noise(0x2510D1D6, 0x7A179255, 0)
    base = Noise.of("7/3/weight")
    for rank in (1, 2, 1000):
        assert Noise.of("7/3/weight", rank) == (*base[:2], rank * GOLDEN % 2**32)
    assert Noise.of("7/4/weight")[:2] != base[:2]


def test_ranks_differ_by_a_rotation() -> None:
    one, other = (random_bits(Noise.of("w", rank), 5000) for rank in (0, 3))
    assert ((other - one) % 2**32 == 3 * GOLDEN % 2**32).all()


def test_units_are_in_zero_to_one() -> None:
    ends = torch.tensor([0, 255, 256, 2**31, 2**32 - 1])
    assert unit_twin(ends).tolist() == [0.0, 0.0, 2.0**-24, 0.5, 1 - 2.0**-24]


@BYTES
@pytest.mark.parametrize("name", ["0/0/a", "0/1/a", "7/12345/layers.3.weight"])
@pytest.mark.parametrize("rank", [0, 5])
def test_every_byte_is_uniform(shift: int, name: str, rank: int) -> None:
    bits = random_bits(Noise.of(name, rank), N)
    assert abs(chi_square(bits >> shift & 255)) < 5


@BYTES
def test_the_same_element_over_steps_is_uniform(shift: int) -> None:
    bits = torch.cat([random_bits(Noise.of(f"0/{step}/a"), 2, 7) for step in range(10_000)])
    assert abs(chi_square(bits >> shift & 255)) < 5


@pytest.mark.parametrize("lag", [1, 2, 3, 16, 64, 256, 512, 1280, 65536])
def test_neighbours_are_uncorrelated(lag: int) -> None:
    bits = random_bits(Noise.of("0/0/a"), N)
    assert abs(correlation(bits[lag:], bits[:-lag])) < 5
    low = bits << 9 & 0xFFFFFFFF  # the lower bits are used as well
    assert abs(correlation(low[lag:], low[:-lag])) < 5


@pytest.mark.parametrize(
    ("one", "other"), [("0/0/a", "0/1/a"), ("0/0/a", "1/0/a"), ("0/0/a", "0/0/b")]
)
def test_steps_seeds_and_parameters_are_uncorrelated(one: str, other: str) -> None:
    a, b = (random_bits(Noise.of(name), N) for name in (one, other))
    assert abs(correlation(a, b)) < 5
    assert abs(chi_square((a ^ b) >> 24)) < 5


@pytest.mark.parametrize("world", [2, 3, 4, 8])
def test_the_mean_over_ranks_varies_less_than_of_independent_numbers(world: int) -> None:
    """Each rank rounds a value up where its random number is below the value."""
    ranks = [unit_twin(random_bits(Noise.of("0/0/a", rank), 1 << 16)) for rank in range(world)]
    for value in (0.1, 0.37, 0.5, 0.9):
        up = torch.stack([(numbers < value).double() for numbers in ranks]).mean(0)
        independent = value * (1 - value) / world
        assert float((up - value).square().mean()) < 0.95 * independent
        assert abs(float(up.mean()) - value) < 5 * (independent / (1 << 16)) ** 0.5

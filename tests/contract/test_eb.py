"""eb: the bound holds, the code is as short as it is said to be, and damage is told."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from inputs import NASTY
from several import EVERYBODY, Several, drawn
from torch import Tensor

from gradwire import lockstep
from gradwire.compressors import ErrorBounded
from gradwire.errors import PayloadError, StrategyError
from gradwire.kernels import new_status
from gradwire.strategy import Key

BOUNDS = [1e-4, 1e-3, 0.01, 0.05, 0.1, 1 / 6, 0.2, 0.25, 1 / 3, 0.4, 0.49]
KEY = Key(0, 0, "w")
SHAPES = {"a": (30, 70), "b": (129,), "c": (3,), "d": (0, 4)}


def encoded(eb: ErrorBounded, x: Tensor) -> Tensor:
    """The used part of the encoded section."""
    ((_, size),) = eb.claims(x.numel()).sections
    section = torch.full((size,), 0xAB, dtype=torch.uint8)
    eb.encode(x, [section], KEY, new_status())
    return section[: int(section[:8].view(torch.int64))]


def decoded(eb: ErrorBounded, section: Tensor, n: int) -> Tensor:
    x = torch.empty(n)
    eb.decode([section], x)
    return x


def check_bound(eb: ErrorBounded, x: Tensor) -> None:
    y = decoded(eb, encoded(eb, x), x.numel())
    most = x.abs().max().double() * eb.bound if x.numel() else 0.0
    assert bool(((x.double() - y.double()).abs() <= most).all()), eb


@pytest.mark.parametrize("bound", BOUNDS)
def test_every_element_is_within_the_bound(bound: float) -> None:
    g = torch.Generator().manual_seed(1)
    for n in (1, 2, 1000, 65536, 65537, 150_001):
        check_bound(ErrorBounded(bound), torch.randn(n, generator=g) ** 3)
    for x in NASTY.values():
        if bool(x.isfinite().all()) and x.numel() and float(x.abs().max()) >= 2.0**-96:
            check_bound(ErrorBounded(bound), x.float())


@pytest.mark.parametrize("bound", BOUNDS)
def test_ends_of_steps_are_within_the_bound(bound: float) -> None:
    """The bound holds where fp32 rounding would break it first: half-way between levels, up to the
    largest."""
    eb = ErrorBounded(bound)
    half = (torch.arange(eb.top) + 0.5) / eb.top
    x = torch.cat([half, torch.ones(1)])
    near = [x, torch.nextafter(x, torch.zeros(())), torch.nextafter(x, 2 * torch.ones(()))]
    for scale in (1.0, 1 / 3, 1e30, 1e-20):
        for y in near:
            check_bound(eb, torch.cat([y, -y]).clamp(-1, 1) * scale)


@given(st.floats(1e-4, 0.499), st.integers(0, 2**31), st.integers(1, 400))
def test_any_bound_holds(bound: float, seed: int, n: int) -> None:
    g = torch.Generator().manual_seed(seed)
    check_bound(ErrorBounded(bound), torch.randn(n, generator=g) * 10 ** (seed % 20 - 10))


def fano_bits(levels: Tensor) -> float:
    """Bits for numbers from 1 with mean m: floor(log2(m)) low bits each, a one, and as many zeros
    as their sum has units of what was cut off."""
    total = float((torch.where(levels < 0, -2 * levels, 2 * levels + 1)).sum())
    low = math.floor(math.log2(total / len(levels)))
    return len(levels) * (low + 1) + total / 2**low


@pytest.mark.parametrize("bound", [1e-4, 1e-3, 0.01, 0.1])
def test_it_is_as_short_as_it_is_said_to_be(bound: float) -> None:
    """The code is at most as long as stated, and within 0.95 bits per element of the entropy,
    which no code of single levels beats."""
    x = torch.randn(60_000, generator=torch.Generator().manual_seed(2))
    bits = 8 * encoded(ErrorBounded(bound), x).numel()
    levels = (x / x.abs().max() * ErrorBounded(bound).top).round().long()
    most = 1.002 * fano_bits(levels) + 500
    assert bits < most
    assert bound > 0.05 or bits > 0.99 * most  # where that is not the bitmap
    share = torch.unique(levels, return_counts=True)[1] / x.numel()
    entropy = float(-(share * share.log2()).sum())
    assert entropy < bits / x.numel() < entropy + 0.95


def test_zeros_take_a_bit_each() -> None:
    n = 100_000
    size = encoded(ErrorBounded(0.01), torch.zeros(n)).numel()
    assert math.ceil(n / 8) < size < n / 8 + 80


@pytest.mark.parametrize("bound", BOUNDS)
def test_no_payload_is_longer_than_it_says(bound: float) -> None:
    """Elements that are all at the levels which take most fit into the claimed bytes."""
    eb = ErrorBounded(bound)
    for n in (1, 7, 1000, 65_537):
        ((_, size),) = eb.claims(n).sections
        assert encoded(eb, -torch.ones(n)).numel() <= size
        for cut in range(1, 9):  # sums just below and above where a low bit more is cut off
            x = torch.where(torch.arange(n) % 8 < cut, -1.0, 0.5)
            assert encoded(eb, x).numel() <= size


def test_bytes_of_a_message_are_what_is_used() -> None:
    x = [torch.randn(5000, generator=torch.Generator().manual_seed(r)) for r in range(3)]
    _, trace = lockstep("eb(0.01) | allgather", x)
    longest = max(encoded(ErrorBounded(0.01), one).numel() for one in x)
    assert trace.bytes_sent == [2 * (16 + 32 + longest + -longest % 16)] * 3


@pytest.mark.parametrize("at", [0, 11, 17, 19])
def test_damage_is_told(at: int) -> None:
    """Damage to the length, the sign of the largest magnitude or a list's extent is an error."""

    def damaged(messages: Tensor) -> Tensor:
        messages[1, 32 + at] ^= 0xFF
        return messages

    run = Several("eb(0.01) | allgather", {"a": (30, 70)}, 2)
    run.step(drawn({"a": (30, 70)}, 2, 0))
    with pytest.raises(PayloadError):
        run.step(drawn({"a": (30, 70)}, 2, 1), damage=(1, EVERYBODY, damaged))


def test_any_bytes_are_a_list_or_refused() -> None:
    eb, x = ErrorBounded(0.05), torch.randn(700, generator=torch.Generator().manual_seed(3))
    whole = encoded(eb, x)
    for seed in range(300):
        g = torch.Generator().manual_seed(seed)
        section, place = whole.clone(), int(torch.randint(len(whole), (1,), generator=g))
        section[place] = int(torch.randint(256, (1,), generator=g))
        try:
            y = decoded(eb, section, 700)
        except PayloadError:
            continue
        assert bool(y.isfinite().all())


@pytest.mark.parametrize("bound", [0, 0.51, 1e-5, -1, "0.1", True, math.nan])
def test_what_it_does_not_take(bound: object) -> None:
    with pytest.raises(StrategyError, match=r"from 0\.0001 to 0\.5"):
        ErrorBounded(bound)  # type: ignore[arg-type]


def test_a_level_beyond_the_largest_is_refused() -> None:
    """A sender with a finer bound, few of whose codes are large, is refused."""
    x = torch.zeros(1000)
    x[7] = 1.0
    section = encoded(ErrorBounded(0.01), x)
    with pytest.raises(PayloadError, match="level must be at most 11 from 0"):
        decoded(ErrorBounded(0.05), section, 1000)

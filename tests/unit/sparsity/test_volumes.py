"""The formulas: by hand, against published ratios, and against counts of real supports."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from sparsity import (
    SCHEMES,
    WAITS,
    Sparsity,
    expected,
    measured,
    synthetic,
    times,
    volumes,
)
from sparsity.counted import SUMS
from sparsity.volumes import entropy

import gradwire

LAST = 4096


def uniform(p: float) -> Callable[[int], float]:
    return lambda k: (1 - (1 - p) ** k) / p


# -- by hand -----------------------------------------------------------------------------------

HAND = Sparsity(
    elements=6400, density=0.01, gamma=lambda k: k**0.5, columns=64, skewness=lambda n: 3.0
)
"""25,600 bytes dense; the union of 4 workers' 1 % is 2 %."""


def by_columns(one: float, single: float, union: float) -> float:
    """For 4 workers: shared rows to owners and back, single rows to all, one number a row."""
    shared = 0.75 * ((one - single) + (union - 4 * single))
    return 25_600 * (shared + 3 * single) + 3 * 1 * 4


def test_every_scheme_by_hand() -> None:
    bits = entropy(0.01) + entropy(0.02)
    assert volumes(HAND, 4) == pytest.approx(
        {
            "dense": 1.5 * 25_600,
            "allgather": 6 * 256,
            "sparcml": 512 * (1 + 2**0.5),
            "sparse_ps": 1.5 * 3 * 0.03 * 25_600,
            "balanced_coo": 1.5 * 0.03 * 25_600,
            "zen_paper": 0.75 * (0.02 + 0.02 + 1 / 32) * 25_600,
            "union": 1.5 * (0.02 * 25_600 + 100 / 8),
            "zen": 0.75 * (0.03 * 25_600 + 6400 / 16 * bits / 8),
            "columns": by_columns(0.01, 0.02 - 0.01 * 3**0.5, 0.02),
            "reference": 25_600 * (0.01 + 0.5 * 0.02) + 100 * 0.75 * bits / 8,
        }
    )


def test_of_columns_that_cannot_be_divided_the_widest_stripe_counts() -> None:
    """64 columns over 3: stripes of 22, 21, 21; over 100: 64 stripes of 1, 36 empty ones."""
    single = 256 * (3**0.5 - 2**0.5)
    one, all_ = 256.0 - single, 256 * 3**0.5 - 3 * single
    by_hand = 2 * 22 / 64 * one + 42 / 64 * all_ + 2 * single + 8
    assert volumes(HAND, 3)["columns"] == pytest.approx(by_hand)
    single = 256 * (10 - 99**0.5)
    one, all_ = 256.0 - single, 2560 - 100 * single
    by_hand = 99 / 64 * one + 63 / 64 * all_ + 99 * single + 99 * 4
    assert volumes(HAND, 100)["columns"] == pytest.approx(by_hand)


def test_two_workers_swap_their_rows() -> None:
    assert volumes(HAND, 2)["columns"] == 256 + 4


def test_what_cannot_be_said_is_left_out() -> None:
    assert set(volumes(HAND, 3)) == set(SCHEMES) - {"sparcml"}
    flat = Sparsity(100, 0.1, lambda k: 1.0)
    assert set(volumes(flat, 4)) == set(SCHEMES) - {"columns"}


def test_one_worker_receives_nothing() -> None:
    assert set(volumes(HAND, 1).values()) == {0.0}


def test_density_has_its_limits() -> None:
    """No union or range of it exceeds full, and no stream costs more than dense."""
    full = Sparsity(1000, 0.4, float, skewness=lambda n: 2.5)
    assert full.union(2) == 0.8
    assert full.union(3) == 1
    found = volumes(full, 4)
    assert found["sparcml"] == pytest.approx(4000 * (0.8 + 1))
    assert found["sparse_ps"] == pytest.approx(1.5 * (1 + 1) * 4000)


def test_entropy() -> None:
    assert entropy(0.5) == 1
    assert entropy(0) == entropy(1) == 0
    assert entropy(0.01) / 0.01 == pytest.approx(8.1, abs=0.05)
    assert entropy(0.001) / 0.001 == pytest.approx(11.4, abs=0.05)


# -- published ---------------------------------------------------------------------------------

SCHEMES_OF_TABLE = ("allgather", "sparcml", "balanced_coo", "zen_paper", "columns", "union")
TABLE = {
    ("lstm", 4): (0.045, 0.039, 0.039, 0.041, 0.019, 0.028),
    ("lstm", 16): (0.181, 0.106, 0.077, 0.060, 0.039, 0.066),
    ("lstm", 128): (1.45, 0.422, 0.238, 0.140, 0.119, 0.227),
    ("nmt", 4): (0.099, 0.090, 0.097, 0.076, 0.048, 0.072),
    ("nmt", 16): (0.395, 0.276, 0.219, 0.137, 0.110, 0.194),
    ("nmt", 128): (3.16, 1.22, 0.661, 0.359, 0.331, 0.637),
    ("bert", 4): (0.042, 0.039, 0.044, 0.043, 0.022, 0.034),
    ("bert", 16): (0.170, 0.130, 0.110, 0.076, 0.055, 0.100),
    ("bert", 128): (1.36, 0.658, 0.419, 0.231, 0.210, 0.409),
}
"""Bytes relative to a dense all-reduce, computed once from the model by other code."""


@pytest.mark.parametrize(("preset", "n"), TABLE, ids=str)
def test_ratios_to_dense(preset: str, n: int) -> None:
    found = volumes(expected(preset), n)
    for scheme, ratio in zip(SCHEMES_OF_TABLE, TABLE[preset, n], strict=True):
        if scheme == "columns":  # in the table every row has an owner
            assert 0.8 * ratio < found[scheme] / found["dense"] < 1.02 * ratio + 0.0006
            continue
        assert found[scheme] / found["dense"] == pytest.approx(ratio, rel=0.02, abs=0.0006), scheme


def test_nmt_at_128_saves_what_the_paper_says() -> None:
    """With COO it sends 36 % less than dense; indices double the bytes of values."""
    found = volumes(expected("nmt"), 128)
    assert found["balanced_coo"] / found["dense"] == pytest.approx(0.64, abs=0.03)


@pytest.mark.parametrize(("n", "overlap"), [(4, 0.274), (8, 0.058), (16, 0.013)])
def test_owners_beat_doubling_above_some_overlap(n: int, overlap: float) -> None:
    def saved(p: float) -> float:
        found = volumes(Sparsity(10**6, 1e-6, uniform(p)), n)
        return found["sparcml"] - found["balanced_coo"]

    assert saved(0.9 * overlap) < 0 < saved(1.1 * overlap)


@pytest.mark.parametrize("overlap", [1e-3, 0.1, 0.5, 1.0])
def test_two_workers_never_need_owners(overlap: float) -> None:
    found = volumes(Sparsity(10**6, 1e-6, uniform(overlap)), 2)
    assert found["sparcml"] <= found["balanced_coo"] * (1 + 1e-9)
    assert found["allgather"] == pytest.approx(found["sparcml"])


def test_the_paper_s_bitmap_does_not_depend_on_n() -> None:
    empty = Sparsity(3200, 0.0, lambda k: 1.0)
    assert volumes(empty, LAST)["zen_paper"] == pytest.approx(400, rel=1e-3)


# -- against counts ----------------------------------------------------------------------------


def test_formulas_count_what_would_be_sent() -> None:
    """On real supports the formulas equal what the mean node receives, entry by entry."""
    tensors = synthetic("adversarial", 8, scale=1 / 32)
    found = volumes(measured(tensors), 8)
    masks = [x != 0 for x in tensors]
    counts = [int(mask.sum()) for mask in masks]
    everything, union = sum(counts), int(torch.stack(masks).any(0).sum())
    assert found["allgather"] == pytest.approx(8 * 7 * everything / 8)
    assert found["balanced_coo"] == pytest.approx(8 * 7 / 8 * (everything / 8 + union))
    doubling = [
        int(torch.stack(masks[:k]).any(0).sum()) for k in (1, 2, 4)
    ]  # fmt: skip
    scale = everything / 8 / counts[0]  # the formula begins with a mean worker
    assert found["sparcml"] == pytest.approx(8 * sum(doubling), rel=abs(1 - scale) + 0.01)


def test_the_formula_of_columns_counts_what_is_sent() -> None:
    """Lockstep agrees, whose ids take fewer than 4 bytes."""
    tensors = synthetic("bert", 8, scale=1 / 64)
    sent = gradwire.lockstep("none | columns", tensors)[1].bytes_sent
    found = volumes(measured(tensors), 8)["columns"]
    assert sum(sent) / 8 == pytest.approx(found, rel=0.03)


# -- up to 4,096 -------------------------------------------------------------------------------


@pytest.mark.parametrize("preset", ["lstm", "nmt", "bert", "topk"])
def test_everything_is_finite_and_nothing_below_the_reference(preset: str) -> None:
    sparsity = expected(preset, scale=1 / 16)
    before = 0.0
    for n in (2**i for i in range(1, 13)):
        found = volumes(sparsity, n)
        least = found["reference"]
        assert all(math.isfinite(count) for count in found.values())
        assert min(found.values()) > least * 0.999
        assert least > before
        before = least
    assert n == LAST


# -- time --------------------------------------------------------------------------------------


def test_times_by_hand() -> None:
    """A second is 25,600 bytes, and each wait half a second."""
    found = times(HAND, 4, 25_600, 0.5)
    assert found.keys() == volumes(HAND, 4).keys()
    assert found["dense"] == pytest.approx(1.5 + 6 * 0.5)
    assert found["sparcml"] == pytest.approx(0.02 * (1 + 2**0.5) + 4 * 0.5)
    assert found["zen_paper"] == pytest.approx(0.75 * (0.04 + 1 / 32) + 4 * 0.5)
    assert set(times(HAND, 1, 25_600, 0.5).values()) == {0.0}


@pytest.mark.parametrize("workers", [2, 4, 8])
@pytest.mark.parametrize("scheme", ["allgather", "sparcml", "sparse_ps", "zen", "columns"])
def test_waits_are_those_of_members(scheme: str, workers: int) -> None:
    """The number of waits is that of the moves in which a rank sends anything."""
    trace = gradwire.lockstep(SUMS[scheme], synthetic("nmt", workers, scale=0.01))[1]
    moves = [span for span in trace.of("wire") if span.rank == 0 and span.bytes > 0]
    assert len(moves) == WAITS[scheme](workers)

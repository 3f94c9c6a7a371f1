"""The chooser's prices: estimated unions, and which member is cheapest where."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from gradwire.collectives._prices import SAMPLE, Facts, _place_bytes, prices, sampled
from gradwire.kernels.index_codes import code_bytes, smallest

N = 2_000_000


def places(k: int, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randperm(N, generator=generator)[:k].sort().values


def facts(ranks: list[torch.Tensor], **more: object) -> Facts:
    """The facts of ranks with these places, on 1 Gbit/s with 0.3 ms of latency."""
    samples = [sampled(x, N) for x in ranks]
    counts = [x.numel() for x in ranks]
    given = Facts(
        len(ranks), N, 0, 0, 4, 4, counts, [0] * len(ranks), 3e-4, 125e6, samples, samples
    )
    return replace(given, **more)  # type: ignore[arg-type]


def cheapest(given: Facts) -> str:
    by_member = prices(given)
    return min(by_member, key=by_member.__getitem__)


@pytest.mark.parametrize("k", [0, 1, 900, SAMPLE - 1, SAMPLE, 5_000, 400_000])
def test_a_sample_fits_and_is_of_the_list(k: int) -> None:
    whole = places(k, 0)
    shift, *kept = sampled(whole, N)
    assert len(kept) == SAMPLE - 1
    known = {p - 1 for p in kept if p}
    assert known <= set(whole.tolist())
    assert shift == 0 if k < SAMPLE else len(known) << shift == pytest.approx(k, rel=0.15)


@pytest.mark.parametrize("k", [N * 9 // 10, N // 2, N // 10, N // 1000])
def test_a_place_costs_what_the_smallest_list_has(k: int) -> None:
    assert _place_bytes(N, k) == pytest.approx(code_bytes(smallest(N, k), N, k) / k, rel=0.02)


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_unions_are_estimated_to_a_tenth(share: float) -> None:
    """zen's price includes the union."""
    common, k = places(int(share * 40_000), 1), 40_000
    ranks = [torch.cat([common, places(k - common.numel(), 10 + r)]).unique() for r in range(8)]
    true = torch.cat(ranks).unique().numel()
    exact = facts(ranks, entry_samples=[sampled(torch.cat(ranks).unique(), N)] * 8)
    assert prices(facts(ranks))["zen"] == pytest.approx(prices(exact)["zen"], rel=0.1)
    assert 0.9 * k < true <= 8 * k


def test_few_ranks_tell_everybody() -> None:
    assert cheapest(facts([places(20_000, r) for r in range(2)])) == "allgather"


def test_many_ranks_with_much_in_common_have_owners() -> None:
    common = places(60_000, 0)
    assert cheapest(facts([common] * 32, bytes_per_second=1e7)) == "zen"


def test_full_tensors_travel_dense() -> None:
    assert cheapest(facts([torch.arange(N)] * 8)) == "dense"


def test_rows_go_by_columns() -> None:
    rows = [(places(40, r) % 4000).unique() for r in range(16)]
    entries = [(r.view(-1, 1) * 500 + torch.arange(500)).flatten() for r in rows]
    given = facts(
        entries, rows=4000, width=500, full_rows=[r.numel() for r in rows],
        row_samples=[sampled(r, 4000) for r in rows], latency_seconds=1e-5, bytes_per_second=1e7,
    )  # fmt: skip
    assert cheapest(given) == "columns"


def test_whole_rows_share_places() -> None:
    """A place takes 6 of 38 bits, and a sixteenth of that if rows are whole."""
    rows = [places(2000, r) // 100 for r in range(8)]
    entries = [(r.unique().view(-1, 1) * 100 + torch.arange(100)).flatten() for r in rows]
    given = facts(
        entries, rows=N // 100, width=100, full_rows=[r.unique().numel() for r in rows],
        row_samples=[sampled(r.unique(), N // 100) for r in rows], bytes_per_second=1e6,
    )  # fmt: skip
    scattered = prices(replace(given, full_rows=[2 * r for r in given.full_rows]))
    for member in ("zen", "sparcml"):
        assert 1.05 < scattered[member] / prices(given)[member] < 1.2


def test_one_rank_has_a_price_for_everything() -> None:
    assert all(seconds >= 0 for seconds in prices(facts([places(100, 0)])).values())


def test_nobody_has_anything() -> None:
    none = torch.empty(0, dtype=torch.int64)
    assert all(seconds >= 0 for seconds in prices(facts([none] * 4, rows=10, width=3)).values())

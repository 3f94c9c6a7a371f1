"""The measures, compared with slow twins that follow the definitions, and by hand."""

from __future__ import annotations

import json
import math
from itertools import combinations
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sparsity import imbalances, measure, measured, reference_bytes, synthetic, volumes
from sparsity.measures import PAIRS, even_ranges
from torch import Tensor

from gradwire.errors import UsageError

Supports = list[set[int]]


def places(x: Tensor) -> set[int]:
    return {i for i, value in enumerate(x.reshape(-1).tolist()) if value != 0}


def mean(numbers: list[float]) -> float:
    return sum(numbers) / len(numbers) if numbers else 0.0


def ends(m: int, n: int) -> list[set[int]]:
    return [set(range(j * m // n, (j + 1) * m // n)) for j in range(n)]


def slow(tensors: list[Tensor]) -> dict[str, Any]:
    """The measures by their definitions, with sets."""
    supports, m, n = [places(x) for x in tensors], tensors[0].numel(), len(tensors)
    union = set.union(*supports)
    density = mean([len(s) / m for s in supports])
    pairs = [(a, b) for a, b in combinations(supports, 2)]
    return {
        "workers": n,
        "elements": m,
        "density": density,
        "overlap": mean([len(a & b) / min(len(a), len(b)) if a and b else 0.0 for a, b in pairs]),
        "densification": len(union) / m / density if density else 1.0,
        "skewness": mean([slow_skewness(s, m, n) for s in supports]),
        "even_push_imbalance": max(slow_imbalance(s, ends(m, n)) for s in supports),
        "even_pull_imbalance": slow_imbalance(union, ends(m, n)),
        "rows_density": slow_rows(tensors)[0],
        "whole_rows": slow_rows(tensors)[1],
    }


def slow_skewness(support: set[int], m: int, n: int) -> float:
    if not support:
        return 1.0
    return max(len(support & r) / len(r) for r in ends(m, n) if r) / (len(support) / m)


def slow_imbalance(support: set[int], owned: list[set[int]]) -> float:
    return max(len(owned) * len(support & o) / len(support) for o in owned) if support else 1.0


def slow_rows(tensors: list[Tensor]) -> tuple[float | None, bool]:
    if tensors[0].dim() != 2:
        return None, False
    rows = [[[value != 0 for value in row] for row in x.tolist()] for x in tensors]
    densities = [mean([float(any(row)) for row in matrix]) for matrix in rows]
    return mean(densities), all(any(r) == all(r) for matrix in rows for r in matrix)


@st.composite
def drawn(draw: st.DrawFn) -> list[Tensor]:
    shape = draw(st.one_of(st.tuples(st.integers(1, 30)),
                           st.tuples(st.integers(1, 6), st.integers(1, 5))))  # fmt: skip
    n, whole = draw(st.integers(1, 6)), draw(st.booleans()) and len(shape) == 2
    count = shape[0] if whole else math.prod(shape)
    bits = st.lists(st.sampled_from([0.0, 0.0, 1.5]), min_size=count, max_size=count)
    tensors = [torch.tensor(draw(bits)) for _ in range(n)]
    return [x[:, None].expand(shape) if whole else x.view(shape) for x in tensors]


@given(drawn())
def test_measures_are_those_defined(tensors: list[Tensor]) -> None:
    found, wanted = measure(tensors), slow(tensors)
    assert found.keys() == wanted.keys()
    for key, value in wanted.items():
        assert found[key] == (pytest.approx(value) if isinstance(value, float) else value), key


@given(drawn())
def test_measures_are_one_json_document(tensors: list[Tensor]) -> None:
    found = measure(tensors)
    assert json.loads(json.dumps(found, allow_nan=False)) == found


def test_by_hand() -> None:
    a = torch.tensor([1.0, 2, 0, 0, 0, 0, 0, 0])
    b = torch.tensor([1.0, 0, 0, 0, 3, 4, 5, 0])
    assert measure([a, b]) == {
        "workers": 2,
        "elements": 8,
        "density": 3 / 8,
        "overlap": 1 / 2,
        "densification": (5 / 8) / (3 / 8),
        "skewness": (2 + 1.5) / 2,
        "even_push_imbalance": 2.0,
        "even_pull_imbalance": 2 * 3 / 5,
        "rows_density": None,
        "whole_rows": False,
    }


def test_nan_is_not_zero_and_minus_zero_is() -> None:
    found = measure([torch.tensor([float("nan"), -0.0, float("inf"), 0.0])])
    assert found["density"] == 0.5


def test_other_dtypes_layouts_and_views() -> None:
    x = torch.zeros(6, 8)
    x[2] = 1
    for other in (x.half(), x.bool(), x.T.contiguous().T, x.repeat(1, 2)[:, :8]):
        assert measure([other, other]) == measure([x, x])


def test_of_many_pairs_some_are_drawn() -> None:
    tensors = synthetic("uniform", 13, scale=1 / 64)  # 78 pairs
    assert len(list(combinations(tensors, 2))) > PAIRS
    all_pairs = mean([measure([a, b])["overlap"] for a, b in combinations(tensors, 2)])
    found = measure(tensors)["overlap"]
    assert found == pytest.approx(all_pairs, rel=0.05)
    assert found == measure(tensors)["overlap"]


# -- owners ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("m", "n"), [(8, 2), (7, 3), (3, 5), (1, 4), (100, 7)])
def test_even_ranges_are_those_of_skewness(m: int, n: int) -> None:
    owner = even_ranges(m, n)(torch.arange(m)).tolist()
    assert [{i for i in range(m) if owner[i] == j} for j in range(n)] == ends(m, n)


@given(drawn(), st.integers(0, 100))
def test_imbalances_with_any_map(tensors: list[Tensor], seed: int) -> None:
    m, n = tensors[0].numel(), len(tensors)
    owners = torch.randint(n, (m,), generator=torch.Generator().manual_seed(seed))
    owned = [{i for i in range(m) if owners[i] == j} for j in range(n)]
    supports = [places(x) for x in tensors]
    found = imbalances(tensors, lambda at: owners[at])
    assert found.push == pytest.approx(max(slow_imbalance(s, owned) for s in supports))
    assert found.pull == pytest.approx(slow_imbalance(set.union(*supports), owned))


def test_an_owner_that_is_not_there() -> None:
    with pytest.raises(UsageError, match=r"0 to 1; got 2\. Make the map for 2 workers"):
        imbalances([torch.ones(3), torch.ones(3)], lambda at: at)


# -- the reference -----------------------------------------------------------------------------


def bits(p: float) -> float:
    return -p * math.log2(p) - (1 - p) * math.log2(1 - p)


def test_reference_bytes_of_three_workers_by_hand() -> None:
    tensors = [torch.zeros(16) for _ in range(3)]
    tensors[0][:2] = 1
    tensors[1][1:3] = 1
    tensors[2][[1, 9]] = 1
    values = 4 * 16 * (2 / 16 + 1 / 3 * 4 / 16)
    places_ = 16 * 2 / 3 * (bits(1 / 8) + bits(1 / 4)) / 8
    assert values == pytest.approx(4 * (2 + 4 / 3))
    assert reference_bytes(tensors) == pytest.approx(values + places_, rel=1e-12)


def test_whole_rows_are_counted_as_rows() -> None:
    tensors = [torch.zeros(16, 5) for _ in range(3)]
    tensors[0][:2] = 1
    tensors[1][1:3] = 1
    tensors[2][[1, 9]] = 1
    values = 5 * 4 * (2 + 4 / 3)
    places_ = 16 * 2 / 3 * (bits(1 / 8) + bits(1 / 4)) / 8
    assert reference_bytes(tensors) == pytest.approx(values + places_, rel=1e-12)
    tensors[0][0, 0] = 0  # no longer whole
    d, all_ = (9 + 10 + 10) / 3 / 80, 19 / 80
    split = 4 * 80 * (d + all_ / 3) + 80 * 2 / 3 * (bits(d) + bits(all_)) / 8
    assert reference_bytes(tensors) == pytest.approx(split, rel=1e-12)


def test_reference_bytes_at_the_ends() -> None:
    assert reference_bytes([torch.ones(10)]) == 0
    assert reference_bytes([torch.zeros(10), torch.zeros(10)]) == 0
    assert reference_bytes([torch.ones(10)] * 4) == pytest.approx(40 * (1 + 2 / 4))


@pytest.mark.parametrize("preset", ["nmt", "topk", "adversarial", "disjoint", "uniform"])
def test_no_scheme_is_below_the_reference(preset: str) -> None:
    tensors = synthetic(preset, 8, scale=1 / 64)
    least = reference_bytes(tensors)
    found = volumes(measured(tensors), 8)
    assert found.pop("reference") == least
    assert min(found.values()) > least * 0.999


# -- for the formulas --------------------------------------------------------------------------


def test_measured_is_what_was_measured() -> None:
    tensors = synthetic("bert", 6, scale=1 / 16)
    sparsity, found = measured(tensors), measure(tensors)
    assert sparsity.density == found["density"]
    assert sparsity.gamma(6) == found["densification"]
    assert sparsity.gamma(1) == measure(tensors[:1])["density"] / found["density"]
    assert sparsity.skewness(6) == found["skewness"]
    assert sparsity.columns == 768
    assert measured([x.view(-1) for x in tensors]).columns is None


def test_gamma_of_more_than_was_measured() -> None:
    sparsity = measured([torch.ones(3)] * 2)
    for k in (0, 3):
        with pytest.raises(UsageError, match=rf"1 to 2 workers; got {k}\. Measure more tensors"):
            sparsity.gamma(k)


# -- errors ------------------------------------------------------------------------------------


@pytest.mark.parametrize("call", [measure, measured, reference_bytes])
def test_tensors_that_cannot_be_summed(call: Any) -> None:
    with pytest.raises(UsageError, match=r"one tensor per worker; got none"):
        call([])
    with pytest.raises(UsageError, match=r"one shape.*got \[2\], \[3\]\. Give each"):
        call([torch.ones(2), torch.ones(3)])
    with pytest.raises(UsageError, match=r"at least one element; got \[0\]"):
        call([torch.ones(0)])

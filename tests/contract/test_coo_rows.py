"""Gradients that come as rows and their ids: sums, layouts, bytes, and tables of any size."""

from __future__ import annotations

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import Tensor

import gradwire
from gradwire import Strategy
from gradwire.buckets import Bucket, Parameter
from gradwire.errors import KernelError, UsageError
from gradwire.kernels import fill_nan, no_rows, rows_of, write_rows
from gradwire.runtime.contexts import make_context
from gradwire.runtime.lockstep import drive
from gradwire.strategy import StepInfo
from gradwire.trace import Trace

COLUMNS = "none | columns"
BY_ENTRIES = [
    "nonzero | zen", 'nonzero | zen(variant="paper")', "nonzero | sparse_ps", "nonzero | sparcml",
    "nonzero | sparcml_split", "nonzero | omnireduce", "none | allgather",
    "nonzero | sparse_auto(every=2)",
]  # fmt: skip
every = pytest.mark.parametrize("strategy", [COLUMNS, *BY_ENTRIES])
DTYPES = st.sampled_from([torch.float32, torch.bfloat16, torch.float16])


def coo(
    ids: list[int], shape: tuple[int, ...], seed: int = 0, dtype: torch.dtype = torch.float32
) -> Tensor:
    """A COO tensor of small whole numbers, so that every sum is exact."""
    g = torch.Generator().manual_seed(seed)
    rows = torch.randint(-4, 5, (len(ids), *shape[1:]), generator=g).to(dtype)
    return torch.sparse_coo_tensor(
        torch.tensor([ids], dtype=torch.int64), rows, shape, check_invariants=True
    )


@st.composite
def gradients(draw: st.DrawFn) -> list[Tensor]:
    """Draws one gradient per rank, of any number of rows, some of them repeated."""
    count, world = draw(st.integers(1, 40)), draw(st.integers(1, 6))
    shape = (count, *draw(st.lists(st.integers(0, 9), min_size=1, max_size=2)))
    dtype, seed = draw(DTYPES), draw(st.integers(0, 99))
    lists = [draw(st.lists(st.integers(0, count - 1), max_size=12)) for _ in range(world)]
    xs = [coo(ids, shape, seed + r, dtype) for r, ids in enumerate(lists)]
    return [x.coalesce() if draw(st.booleans()) else x for x in xs]


@every
@given(xs=gradients(), dense=st.booleans())
def test_the_mean_is_exact_and_stays_in_its_layout(
    strategy: str, xs: list[Tensor], dense: bool
) -> None:
    xs = [x.to_dense() if dense else x for x in xs]
    before = [x.clone() for x in xs]
    results, _ = gradwire.lockstep(strategy, xs)
    total = sum(x.to_dense().float() for x in xs)
    wanted = (total / torch.tensor(float(len(xs)))).to(xs[0].dtype)  # type: ignore[operator]
    for x, old, result in zip(xs, before, results):
        assert result.layout == x.layout
        assert result.dtype == x.dtype
        assert torch.equal(result.to_dense(), wanted)
        assert torch.equal(x.to_dense(), old.to_dense())
    rows = [r.indices() for r in results if r.is_sparse]
    assert all(torch.equal(ids, rows[0]) for ids in rows)


@every
@given(xs=gradients())
def test_the_union_holds_each_row_once(strategy: str, xs: list[Tensor]) -> None:
    assume(strategy == COLUMNS or xs[0].numel() > 0)  # others support no row without columns
    results, _ = gradwire.lockstep(strategy, xs)
    union = sorted({int(i) for x in xs for i in x._indices()[0]})
    for result in results:
        assert result.is_coalesced()
        assert result.indices()[0].tolist() == union


def test_as_many_bytes_as_dense_tensors_with_the_same_rows() -> None:
    xs = [coo([1, 5, 5, 30 + r], (40, 16), r) for r in range(4)]
    _, sparse = gradwire.lockstep(COLUMNS, xs)
    _, dense = gradwire.lockstep(COLUMNS, [x.to_dense() for x in xs])
    assert sparse.bytes_sent == dense.bytes_sent


@every
def test_a_table_that_no_machine_could_hold(strategy: str) -> None:
    """2^31 - 1 rows of 512 bytes, a terabyte, are summed: nothing of that size is ever made."""
    shape = (2**31 - 1, 128)
    if "paper" in strategy:
        pytest.skip("it lists who owns what")
    xs = [coo([7, shape[0] - 1, 7, 10**9 + r], shape, r) for r in range(3)]
    results, trace = gradwire.lockstep(strategy, xs)
    for result in results:
        assert result.indices()[0].tolist() == [7, 10**9, 10**9 + 1, 10**9 + 2, shape[0] - 1]
        repeated = sum(x._values()[0] + x._values()[2] for x in xs) / 3
        assert torch.equal(result.values()[0], repeated)
    assert max(trace.bytes_sent) < 40_000, "a sample included"


@every
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_is_not_finite_is_nan_in_one_row_everywhere(strategy: str, value: float) -> None:
    xs = [coo([1, 3], (9, 2, 2)), coo([3], (9, 2, 2)), coo([], (9, 2, 2))]
    xs[1]._values()[0, 1, 1] = value
    for result in gradwire.lockstep(strategy, xs)[0]:
        assert result.indices().tolist() == [[0]]
        assert result.values().isnan().all()


@every
def test_clipping_scales_rows(strategy: str) -> None:
    xs = [coo([1, 1, 3], (9, 4), r, torch.bfloat16) for r in range(2)]
    results, _ = gradwire.lockstep(strategy, xs, clip_scale=0.5)
    whole, _ = gradwire.lockstep(strategy, xs)
    assert torch.equal(results[0].to_dense(), (whole[0].to_dense().float() * 0.5).bfloat16())


@every
def test_a_layout_is_the_same_on_all_ranks(strategy: str) -> None:
    """A gradient that is sparse on some ranks alone is refused: optimizers step rows and dense
    gradients differently, so replicas would drift apart."""
    xs = [coo([1], (4, 2)), coo([2], (4, 2)).to_dense(), coo([1], (4, 2))]
    with pytest.raises(
        UsageError, match=r"gradient of 'x' must .* sparse on ranks \[0, 2\] only, of 3"
    ):
        by_hand(strategy, [xs])


def test_rows_need_not_be_contiguous() -> None:
    rows = torch.arange(12.0).view(4, 3).t()
    where = torch.tensor([[0, 2, 5]])
    x = torch.sparse_coo_tensor(where, rows, (6, 4), is_coalesced=True, check_invariants=True)
    result = gradwire.lockstep(COLUMNS, [x, x])[0][0]
    assert torch.equal(result.values(), rows)


@pytest.mark.parametrize("world", [3, 8])
def test_one_rank_with_all_the_rows_is_not_the_busiest_by_much(world: int) -> None:
    """A rank that has all rows sends (n-1)/n of them to owners, and as many averages to all."""
    shape, count = (2000, 64), 1000
    xs = [coo(list(range(count)), shape), *[coo([], shape) for _ in range(world - 1)]]
    results, trace = gradwire.lockstep(COLUMNS, xs)
    assert torch.equal(results[-1].to_dense(), (xs[0].to_dense() / world))
    assert max(trace.bytes_sent) < 1.05 * 2 * (world - 1) / world * count * 64 * 4


def test_single_rows_beyond_what_most_ranks_have_get_owners() -> None:
    shape = (6000, 16)
    xs = [coo(list(range(4000)), shape)]
    xs += [coo(list(range(4000 + 100 * r, 4100 + 100 * r)), shape) for r in range(7)]
    results, trace = gradwire.lockstep(COLUMNS, xs)
    wanted = sum(x.to_dense() for x in xs) / 8
    assert all(torch.equal(result.to_dense(), wanted) for result in results)
    owners = 7 / 8 * (4000 - 100) * (1 + 1) + 7 * 100  # rows of the busiest
    assert max(trace.bytes_sent) == pytest.approx(owners * 64, rel=0.03)


def test_common_rows_are_dealt_out_one_by_one() -> None:
    """A table of few rows, of which all ranks have the first, as of a text's common words: no
    owner receives, or averages, more of them than others."""
    world, shape, count = 8, (8000, 64), 800
    xs = [coo(list(range(count)), shape, seed) for seed in range(world)]
    results, trace = gradwire.lockstep("nonzero | zen", xs)
    assert torch.equal(results[-1].to_dense(), sum(x.to_dense() for x in xs) / world)
    assert max(trace.bytes_sent) < 1.05 * 2 * (world - 1) / world * count * 64 * 4


def test_other_collectives_refuse_rows() -> None:
    xs = [coo([1], (4, 2)), coo([2], (4, 2))]
    for text in ("none | allreduce", "topk(0.5)+ef | zen", "topk(0.5)+ef | allgather"):
        with pytest.raises(UsageError, match=r"got '.*'\. Use 'none \| columns', or dense tens"):
            gradwire.lockstep(text, xs)


def by_hand(strategy: str, tables: list[list[Tensor]]) -> list[list[Tensor]]:
    """The averages of several tables in one bucket, by rank: those of each table, by rank."""
    world = len(tables[0])
    bucket = Bucket(tuple(
        Parameter(f"x{i}" if i else "x", tuple(own[0].shape), sparse=True)
        for i, own in enumerate(tables)
    ))  # fmt: skip
    made, results = [], []
    for rank in range(world):
        context = make_context(Strategy.parse(strategy), bucket, rank, world, {})
        own = [x[rank] if x[rank].is_sparse else x[rank].view(-1) for x in tables]
        results.append([no_rows(x) if x.is_sparse else torch.empty_like(x) for x in own])
        context.begin(own, results[-1], StepInfo(0))
        made.append(context)
    drive([context.rounds() for context in made], Trace(world))
    for context in made:
        context.end(skipped=False)
    return results


@pytest.mark.parametrize("strategy", BY_ENTRIES)
@given(seed=st.integers(0, 999), world=st.integers(1, 5))
def test_tables_of_several_widths_travel_as_one(strategy: str, seed: int, world: int) -> None:
    """Rows of 8, 4 and 12 columns travel as two, one and three rows of 4."""
    dice = torch.Generator().manual_seed(seed)
    shapes, lists = [(70, 8), (9, 2, 2), (500, 12)], list[list[Tensor]]()
    for i, shape in enumerate(shapes):
        counts = torch.randint(0, 40, (world,), generator=dice).tolist()
        ids = [torch.randint(shape[0], (n,), generator=dice).tolist() for n in counts]
        lists.append([coo(own, shape, seed + 7 * i + r) for r, own in enumerate(ids)])
    found = by_hand(strategy, lists)
    for i, own in enumerate(lists):
        wanted = sum(x.to_dense() for x in own) / torch.tensor(float(world))
        for rank in range(world):
            assert torch.equal(found[rank][i].to_dense(), wanted)
            assert torch.equal(found[rank][i].indices(), found[0][i].indices())


def test_other_sparse_layouts_are_refused() -> None:
    elements = torch.eye(3).to_sparse()  # an id of each element, not of each row
    with pytest.raises(UsageError, match="rows with their ids"):
        gradwire.lockstep(COLUMNS, [elements, elements])
    with pytest.raises(KernelError, match="with 2 sparse of 2 dimensions"):
        rows_of(elements, torch.float32)


def test_rows_are_read_written_and_spoiled_in_place() -> None:
    x = coo([5, 2, 5], (6, 3), 1)
    ids, rows = rows_of(x, torch.float16)
    assert ids.tolist() == [2, 5]
    assert ids.dtype == torch.int32
    assert rows.dtype == torch.float16
    assert torch.equal(rows[1].float(), x._values()[0] + x._values()[2])
    write_rows(x, torch.tensor([0, 4]), torch.ones(2, 3))
    assert x.coalesce().to_dense().sum(1).tolist() == [3.0, 0.0, 0.0, 0.0, 3.0, 0.0]
    fill_nan(x)
    assert x.indices().tolist() == [[0]]
    assert x.values().isnan().all()
    assert no_rows(x)._nnz() == 0
    assert no_rows(torch.ones(6, 3)).shape == (6, 3)
    nothing = no_rows(torch.ones(0, 3))
    fill_nan(nothing)
    assert nothing._nnz() == 0
    dense = torch.ones(3)
    fill_nan(dense)
    assert dense.isnan().all()

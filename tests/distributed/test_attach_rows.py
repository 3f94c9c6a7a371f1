"""Sparse gradients, which are rows and their ids: nn.Embedding and EmbeddingBag with
sparse=True."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from ranks import Ranks
from small import attached, entry, fingerprint, from_all, mean, raised
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import gradwire
from gradwire import Plan, Strategy
from gradwire.beside import takes_rows
from suites import first

STRATEGIES = (
    "none | allreduce",
    "topk(0.5)+ef | allgather",
    "nonzero | columns",
    "dgc(0.5) | zen",
    "nonzero | zen",
)
FRONTENDS = pytest.mark.parametrize("ddp", [False, True], ids=["plain", "ddp"])
WORDS, WIDTH = 50, 7


class Words(nn.Module):
    """Two tables that are neighbours, one that is not, and a dense layer."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Embedding(WORDS, WIDTH, sparse=True)
        self.second = nn.EmbeddingBag(WORDS, WIDTH, sparse=True, mode="sum")
        self.top = nn.Linear(WIDTH, 3)
        self.last = nn.Embedding(WORDS, 3, sparse=True)

    def forward(self, words: Tensor) -> Tensor:
        y = self.first(words).sum(1) + self.second(words)
        return (torch.tanh(self.top(y)) * self.last(words[:, 0])).square().sum()


def words(seed: int = 0) -> Words:
    torch.manual_seed(seed)
    return Words()


def batch(step: int, rank: int | None = None) -> Tensor:
    """Words that repeat; each rank has another number of them."""
    rank = dist.get_rank() if rank is None else rank
    g = torch.Generator().manual_seed(100 * step + rank)
    return torch.randint(0, WORDS, (3 + 2 * rank, 4), generator=g)


def tables(model: nn.Module) -> dict[str, Tensor]:
    named = ((n.removeprefix("module."), p.grad) for n, p in model.named_parameters())
    return {n: g for n, g in named if g is not None and n != "top.weight" and n != "top.bias"}


def dense(g: Tensor) -> Tensor:
    """The dense form of a sparse gradient; rows of one id are added in their order."""
    return torch.zeros(g.shape).index_add_(0, g._indices()[0], g._values())


def wanted(step: int) -> dict[str, Tensor]:
    """The dense mean over ranks of the gradients without any exchange. Collective."""
    model = words()
    model(batch(step)).backward()
    return {name: mean(dense(g)) for name, g in tables(model).items()}


def wrapped(model: nn.Module, ddp: bool) -> nn.Module:
    return DistributedDataParallel(model) if ddp else model


def equal_mean(strategy: str, ddp: bool) -> None:
    model = wrapped(words(), ddp)
    with attached(model, strategy) as handle:
        for step in range(3):
            model.zero_grad()
            model(batch(step)).backward()
            expected = wanted(step)
            for name, g in tables(model).items():
                assert g.layout == torch.sparse_coo, name
                assert g.is_coalesced(), name
                rows = from_all(torch.tensor([g._nnz()]))
                assert all(torch.equal(x, rows[0]) for x in rows)
                assert int(rows[0]) < WORDS
                assert torch.equal(g.to_dense(), expected[name]), name
        assert handle.stats()["steps"] == 3
        state: Any = entry(handle)["state"]
        assert not any(state[name] for name in expected), "what travels exactly remembers nothing"


@pytest.mark.once
@FRONTENDS
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_rows_are_averaged_and_stay_rows(three: Ranks, strategy: str, ddp: bool) -> None:
    """Averages equal the dense mean to the bit, whatever the strategy of the rest."""
    three.run(equal_mean, strategy, ddp)


def near_mean(strategy: str) -> None:
    """Averages are summed in another order than the mean, and are the same on all ranks."""
    model = words()
    with attached(model, strategy):
        for step in range(3):
            model.zero_grad()
            model(batch(step)).backward()
            expected = wanted(step)
            for name, g in tables(model).items():
                assert g.is_coalesced(), name
                every = from_all(g.to_dense())
                assert all(torch.equal(x, every[0]) for x in every)
                assert torch.allclose(every[0], expected[name], rtol=1e-5, atol=1e-6), name


@pytest.mark.once
@pytest.mark.parametrize("outer", first(["zen", "columns", "sparcml"]))
def test_machines_sum_rows_first(four: Ranks, outer: str) -> None:
    text = f"nonzero | hierarchical(outer={outer!r}, per_node=2)"
    assert takes_rows(Strategy.parse(text))
    four.run(near_mean, text)


def training(kind: str, ddp: bool) -> str:
    model = wrapped(words(), ddp)
    torch.sparse.check_sparse_tensor_invariants.disable()  # what optimizers make is not checked
    with attached(model, "none | allreduce"):
        if kind == "SparseAdam":
            sparse = [p for n, p in model.named_parameters() if "top" not in n]
            dense = [p for n, p in model.named_parameters() if "top" in n]
            optimizers: list[Any] = [
                torch.optim.SparseAdam(sparse, lr=0.01),
                torch.optim.Adam(dense, lr=0.01),
            ]
        else:
            optimizers = [getattr(torch.optim, kind)(model.parameters(), lr=0.1)]
        for step in range(4):
            loss = model(batch(step))
            for optimizer in optimizers:
                optimizer.zero_grad()
            loss.backward()
            for optimizer in optimizers:
                optimizer.step()
    return fingerprint(model.parameters())


@pytest.mark.once
@FRONTENDS
@pytest.mark.parametrize("kind", ["SGD", "Adagrad", "SparseAdam"])
def test_optimizers_take_them(three: Ranks, kind: str, ddp: bool) -> None:
    prints = three.run(training, kind, ddp)
    assert len(set(prints)) == 1


def absent_and_empty() -> None:
    """Rank 0 looks up no words in one table and leaves out the other; rank 2 has no words."""
    model, rank = words(), dist.get_rank()
    ids = torch.tensor([[3, 3]]) if rank == 1 else torch.empty(0, 2, dtype=torch.int64)
    with attached(model, "topk(0.5)+ef | allgather"):
        y = model.first(ids).sum()
        if rank > 0:
            y = y + model.second(ids).sum()
        y.backward()
        for g in (model.first.weight.grad, model.second.weight.grad):
            assert g is not None
            assert g.is_coalesced()
            assert g.indices().tolist() == [[3]]
            assert torch.equal(g.values(), torch.full((1, WIDTH), 2 / dist.get_world_size()))
        for g in (model.last.weight.grad, model.top.weight.grad):
            assert g is not None
            assert not g.to_dense().any()
        assert model.last.weight.grad.layout == torch.sparse_coo


def test_a_rank_without_rows(three: Ranks) -> None:
    three.run(absent_and_empty)


def accumulated() -> None:
    model = words()
    with attached(model, "none | allreduce") as handle:
        with handle.no_sync():
            model(batch(0)).backward()
        model(batch(1)).backward()
        one, two = wanted(0), wanted(1)
        for name, g in tables(model).items():
            torch.testing.assert_close(g.to_dense(), one[name] + two[name])
        before = {name: g.to_dense() for name, g in tables(model).items()}
        handle.synchronize()  # the average of what is equal everywhere is the same
        for name, g in tables(model).items():
            torch.testing.assert_close(g.to_dense(), before[name])


def test_accumulation_and_synchronize(three: Ranks) -> None:
    three.run(accumulated)


def not_a_number(ddp: bool, in_table: bool) -> None:
    """One rank's NaN is in every rank's average of that bucket, and not in other buckets."""
    model = wrapped(words(), ddp)
    with attached(model, "topk(0.5)+ef | allgather"):
        loss = model(batch(0))
        if dist.get_rank() == 1:
            inner = model.module if ddp else model
            table: Any = inner.first.weight  # type: ignore[union-attr]
            target = table if in_table else inner.top.weight  # type: ignore[union-attr]
            target.register_hook(lambda g: g * float("nan"))
        loss.backward()
        for name, p in model.named_parameters():
            g = p.grad
            assert g is not None
            if in_table and "last" in name:
                assert not g.to_dense().isnan().any()
            if name.endswith(("top.weight", "top.bias")):
                continue
            rows = g.coalesce()
            values = rows.values()
            if "first" in name and in_table:
                assert rows.indices().tolist() == [[0]]
                assert values.isnan().all()


@FRONTENDS
@pytest.mark.parametrize("in_table", [True, False], ids=["rows", "dense"])
def test_nan_on_one_rank(three: Ranks, ddp: bool, in_table: bool) -> None:
    three.run(not_a_number, ddp, in_table)


def clipped() -> None:
    """Each rank's whole gradient is clipped at √N · c; rows of the same id are summed first."""
    model, limit = words(), 0.01
    local = words()
    local(batch(0)).backward()
    norm = torch.stack([p.grad.coalesce().to_dense().norm() if p.grad.is_sparse else p.grad.norm()
                        for p in local.parameters()]).norm()  # type: ignore[union-attr]  # fmt: skip
    scale = limit * dist.get_world_size() ** 0.5 / float(norm)
    expected = {n: mean(g.coalesce().to_dense() * scale) for n, g in tables(local).items()}
    with attached(model, "none | allreduce", clip_norm=limit):
        model(batch(0)).backward()
        for name, g in tables(model).items():
            torch.testing.assert_close(g.to_dense(), expected[name])


def test_clipping_counts_rows(three: Ranks) -> None:
    three.run(clipped)


class Tied(nn.Module):
    """The table is also the output matrix, so autograd makes its gradient dense."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(WORDS, WIDTH, sparse=True)

    def forward(self, words: Tensor) -> Tensor:
        return (self.table(words) @ self.table.weight.t()).square().sum()


def tied(ddp: bool) -> None:
    torch.manual_seed(0)
    model, local = Tied(), Tied()
    local.load_state_dict(model.state_dict())
    local(batch(0)).backward()
    assert local.table.weight.grad is not None
    expected = mean(local.table.weight.grad)
    with attached(model, "topk(0.5)+ef | allgather"):
        model(batch(0)).backward()
        assert model.table.weight.grad is not None
        assert torch.equal(model.table.weight.grad, expected)


def test_a_tied_table_has_a_dense_gradient(three: Ranks) -> None:
    three.run(tied, False)


class Functional(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(WORDS, WIDTH))

    def forward(self, words: Tensor) -> Tensor:
        return nn.functional.embedding(words, self.weight, sparse=True).sum()


def not_announced() -> str:
    model = Functional()
    with attached(model, "topk(0.5)+ef | allgather", timeout_seconds=5.0):
        return raised(lambda: model(batch(0)).backward())


def test_rows_that_no_module_announces_are_refused(three: Ranks) -> None:
    for text in three.run(not_announced):
        assert "nn.Embedding" in text
        assert "weight float32[50, 7]" in text


def counted() -> None:
    model = words()
    with attached(model, "none | allreduce") as handle:
        plan = handle.plan
        assert [b.names for b in plan.buckets] == [
            ("last.weight",), ("top.bias", "top.weight"), ("first.weight", "second.weight"),
        ]  # fmt: skip
        assert str(plan.strategies[2]) == "none | columns"
        assert Plan.from_json(plan.to_json()) == plan
        model(batch(0)).backward()
        ids = batch(0)
        rows = 4 * (2 * WIDTH * ids.numel() + 3 * len(ids))
        assert handle.stats()["bytes_given"] == rows + 4 * (3 * WIDTH + 3)
        state = handle.state_dict()
        handle.load_state_dict(state)


def test_plan_stats_and_state(three: Ranks) -> None:
    three.run(counted)


def resumed_plan(directory: str) -> None:
    """A saved plan says that a table is sparse; it does not fit a model whose table is dense."""
    model = words()
    path = f"{directory}/plan{dist.get_rank()}.json"
    with attached(model, "topk(0.5)+ef | allgather") as handle:
        handle.plan.save(path)
    with attached(model, Plan.load(path)):
        model(batch(0)).backward()
    dense = words()
    dense.first.sparse = False
    text = raised(lambda: gradwire.attach(dense, Plan.load(path)), gradwire.errors.PlanError)
    assert "first.weight sparse float32[50, 7] (the model has float32[50, 7])" in text


def test_a_saved_plan_knows_sparse_tables(three: Ranks, tmp_path: Any) -> None:
    three.run(resumed_plan, str(tmp_path))


def detached() -> None:
    """After detach, DDP averages sparse gradients itself."""
    model = DistributedDataParallel(words())
    with attached(model, "none | allreduce"):
        model(batch(0)).backward()
    model.zero_grad()
    model(batch(0)).backward()
    for name, g in tables(model).items():
        torch.testing.assert_close(g.to_dense(), wanted(0)[name])


def test_after_detach_ddp_sums_rows(three: Ranks) -> None:
    three.run(detached)


def short_floats(name: str) -> None:
    """Rows are summed in fp32 and rounded once; rows that repeat on one rank are rounded once
    before."""
    dtype = getattr(torch, name)
    model = nn.Embedding(WORDS, WIDTH, sparse=True).to(dtype)
    with attached(model, "none | allreduce"):
        ids = torch.tensor([dist.get_rank(), 9, 9])
        (model(ids) * 3.0).sum().backward()
        g = model.weight.grad
        assert g is not None
        assert g.dtype == dtype
        world = dist.get_world_size()
        assert g.indices().tolist() == [[*range(world), 9]]
        one_row = torch.tensor([3 / world] * world + [6.0]).to(dtype)
        assert torch.equal(g.values(), one_row[:, None].expand(-1, WIDTH))


@pytest.mark.parametrize("name", ["bfloat16", "float16"])
def test_short_floats(three: Ranks, name: str) -> None:
    three.run(short_floats, name)


def under_ddp(options: dict[str, Any]) -> None:
    """In the first step of a static graph all of DDP's buckets have number 0, and none is last."""
    inner = words()
    model = DistributedDataParallel(inner, **options)
    with attached(model, "topk(0.5)+ef | allgather"):
        for step in range(3):
            model.zero_grad()
            model(batch(step)).backward()
            first = inner.first.weight.grad
            assert first is not None
            rows = from_all(first.to_dense())
            assert all(torch.equal(x, rows[0]) for x in rows)


@pytest.mark.parametrize(
    "option", ["static_graph", "gradient_as_bucket_view", "find_unused_parameters"]
)
def test_modes_of_ddp(three: Ranks, option: str) -> None:
    three.run(under_ddp, {option: True})

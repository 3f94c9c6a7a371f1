"""The members on real processes: as in lockstep, through DDP, resumed, with spoiled gradients."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from ranks import Ranks
from small import attached, entry, fingerprint, from_all, gradients, loss_of, small
from small import local_gradients as local
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from gradwire import Strategy
from gradwire.buckets import Bucket
from gradwire.local import OWNERS_RESIDUAL, RIGHT_FACTOR
from gradwire.plan import Plan
from gradwire.runtime.codec import Memory
from gradwire.runtime.contexts import make_context
from gradwire.runtime.lockstep import drive
from gradwire.strategy import StepInfo
from gradwire.trace import Trace
from suites import first

STRATEGIES = (
    "int8 | alltoall",
    "efsignsgd | alltoall",
    "onebit+ef | allgather",
    "signsgd | vote",
    "signum | vote",
    "powersgd(2)",
    "thc(4)",
    "recode('qsgd(4)')",
    "mx+ef | alltoall",
    "threshold(0.01)+ef | allgather",
    "nonzero | allgather",
    "qsgd(4)+ef | alltoall",
    "randk(0.1)+ef | allreduce",
    "dgc(0.05, values='bf16') | allgather",
    "topk(0.1)+ef21 | allgather",
    "onebit+shared_momentum | alltoall",
    "topk(0.1)+shared_momentum | gtopk",
    "topk(0.1)+ef | gtopk",
    "dgc(0.1, values='bf16') | gtopk(variant='tree')",
    "topk(0.1)+ef | zen",
    "topk(0.1)+ef | zen(variant='paper')",
    "topk(0.1)+ef | oktopk",
    "nonzero | zen",
    "nonzero | columns",
    "nonzero | omnireduce",
    "threshold(0.01)+ef | sparse_ps",
    "topk(0.1)+ef | sparcml",
    "topk(0.1)+ef21 | sparcml_split",
    "nonzero | dsar",
    "topk(0.1)+ef | union",
    "topk(0.1)+ef | sparse_auto(every=2)",
    "nonzero | sparse_auto",
)
KINDS = (
    "int8 | alltoall", "signum | vote", "powersgd(2)", "topk(0.1)+ef | gtopk",
    "topk(0.1)+ef | zen", "topk(0.1)+ef | oktopk", "nonzero | columns",
    "topk(0.1)+ef21 | sparcml_split", "topk(0.1)+ef | sparse_auto(every=2)",
    "onebit+shared_momentum | alltoall",
)  # fmt: skip
"""One of each kind of moves; tests/contract checks the laws themselves."""
ORDERED = sorted(STRATEGIES, key=lambda text: text not in KINDS)
every = pytest.mark.parametrize("strategy", first(ORDERED, len(KINDS)))
some = pytest.mark.parametrize("strategy", first(ORDERED, 4))
few_or_odd = pytest.mark.parametrize("world", [3, 2])
STEPS = 3


@pytest.fixture
def ranks(request: pytest.FixtureRequest, world: int) -> Ranks:
    """Two or three ranks."""
    pool: Ranks = request.getfixturevalue({2: "two", 3: "three"}[world])
    return pool


def train(model: nn.Module, steps: range) -> list[dict[str, Tensor]]:
    """Trains, and returns the averaged gradients of every step."""
    optimizer, seen = torch.optim.SGD(model.parameters(), lr=0.02), []
    for step in steps:
        optimizer.zero_grad()
        loss_of(model, step).backward()
        seen.append(gradients(model))
        optimizer.step()
    return seen


def state_of(handle: Any) -> dict[str, dict[str, Tensor]]:
    """A copy of this rank's state."""
    state = entry(handle)["state"]
    return {n: {key: v.clone() for key, v in values.items()} for n, values in state.items()}


def same_state(one: dict[str, dict[str, Tensor]], other: dict[str, dict[str, Tensor]]) -> bool:
    return one.keys() == other.keys() and all(
        values.keys() == other[n].keys() and all(torch.equal(v, other[n][k]) for k, v in items)
        for n, values in one.items()
        for items in [values.items()]
    )


# -- as in lockstep ------------------------------------------------------------------------------


class Simulated:
    """The whole job in this process: every rank's contexts, on every rank's gradients. Of some
    buckets: ranks share the work."""

    def __init__(self, plan: Plan, rank: int, world: int) -> None:
        self.memories: list[Memory] = [{} for _ in range(world)]
        self.contexts = [
            [make_context(strategy, bucket, r, world, self.memories[r]) for r in range(world)]
            for bucket, strategy in [*zip(plan.buckets, plan.strategies)][rank::world]
        ]

    def step(self, given: dict[str, list[Tensor]], step: int) -> dict[str, Tensor]:
        results: dict[str, Tensor] = {}
        for contexts in self.contexts:
            bucket: Bucket = contexts[0].bucket
            for r, context in enumerate(contexts):
                flat = [given[n][r].reshape(-1).clone() for n in bucket.names]
                context.begin(flat, flat, StepInfo(step))
                results.update(zip(bucket.names, flat))
            drive([c.strategy.collective.rounds(c) for c in contexts], Trace(len(contexts)))
        for contexts in self.contexts:
            for context in contexts:
                context.end(skipped=False)
        return {n: x.view_as(given[n][0]) for n, x in results.items()}


def as_in_lockstep(strategy: str) -> list[str]:
    """Results are those of lockstep, bit for bit except where the backend's own order of summing
    is part of them."""
    model, world = small(), dist.get_world_size()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    bitwise = not any(word in strategy for word in ("powersgd", "allreduce", "union", "auto"))
    with attached(model, strategy, bucket_bytes=700, lanes=2) as handle:
        simulated = Simulated(handle.plan, dist.get_rank(), world)
        for step in range(STEPS):
            given = {n: from_all(g) for n, g in local(model, step).items()}
            wanted = simulated.step(given, step)
            optimizer.zero_grad()
            loss_of(model, step).backward()
            found = gradients(model)
            for name in wanted:
                g = found[name]
                if bitwise and handle.plan.strategy_of(name) == Strategy.parse(strategy):
                    assert torch.equal(g, wanted[name]), f"step {step}: {name}"
                else:
                    torch.testing.assert_close(g, wanted[name], rtol=1e-4, atol=1e-5, msg=name)
            optimizer.step()
        kept: list[Any] = [None] * world
        dist.all_gather_object(kept, state_of(handle))
        for memory, of_rank in zip(simulated.memories, kept):
            for name in wanted:
                for key, value in of_rank[name].items():
                    expected = memory[name][key].view_as(value)
                    torch.testing.assert_close(value, expected, rtol=1e-3, atol=1e-4)
    return [fingerprint(model.parameters()), fingerprint(gradients(model).values())]


@pytest.mark.once
@every
@few_or_odd
def test_ranks_end_equal_and_as_in_lockstep(ranks: Ranks, strategy: str) -> None:
    first, *others = ranks.run(as_in_lockstep, strategy)
    assert all(other == first for other in others)


# -- through DDP ---------------------------------------------------------------------------------


def plain_and_ddp(strategy: str) -> list[str]:
    ends = []
    for ddp in (False, True):
        model = small()
        module = DistributedDataParallel(model) if ddp else model
        with attached(module, strategy, bucket_bytes=700):
            seen = train(module, range(STEPS))
        ends.append(fingerprint(g for found in seen for _, g in sorted(found.items())))
        ends.append(fingerprint(model.parameters()))
    return ends


@pytest.mark.once
@some
@few_or_odd
def test_the_same_through_ddp(ranks: Ranks, strategy: str) -> None:
    first, *others = ranks.run(plain_and_ddp, strategy)
    assert first[:2] == first[2:]
    assert all(other == first for other in others)


# -- resumed -------------------------------------------------------------------------------------


def resumed(strategy: str, directory: str) -> set[str]:
    """Three steps, a checkpoint and three more in other buckets give the bits of six."""
    whole = small()
    with attached(whole, strategy, bucket_bytes=500) as handle:
        wanted = train(whole, range(6))[3:]
        kept = state_of(handle)
    path = Path(directory) / f"{dist.get_world_size()}-{dist.get_rank()}.pt"
    model = small()
    with attached(model, strategy, lanes=2, bucket_bytes=300) as handle:
        train(model, range(3))
        torch.save({"model": model.state_dict(), "gradwire": handle.state_dict()}, path)
    saved = torch.load(path, weights_only=True)
    model = small(seed=9)
    model.load_state_dict(saved["model"])
    with attached(model, strategy, lanes=1, bucket_bytes=4000) as handle:
        handle.load_state_dict(saved["gradwire"])
        for step, (found, want) in enumerate(zip(train(model, range(3, 6)), wanted)):
            for name, g in found.items():
                assert torch.equal(g, want[name]), f"step {3 + step}: {name}"
        assert same_state(state_of(handle), kept)
        assert handle.state_dict()["step"] == 6
    assert fingerprint(model.parameters()) == fingerprint(whole.parameters())
    return {key for values in kept.values() for key in values}


@pytest.mark.once
@some
@few_or_odd
def test_resume_is_the_uninterrupted_run(ranks: Ranks, strategy: str, tmp_path: Path) -> None:
    for keys in ranks.run(resumed, strategy, str(tmp_path)):
        assert (OWNERS_RESIDUAL in keys) == (
            strategy.endswith("alltoall") and ("ef" in strategy or "shared" in strategy)
        )
        assert (RIGHT_FACTOR in keys) == ("powersgd" in strategy)


# -- spoiled -------------------------------------------------------------------------------------


class Told(nn.Module):
    """A model whose gradients are the given tensors."""

    def __init__(self) -> None:
        super().__init__()
        for name, side in (("a", 12), ("b", 9), ("c", 15)):
            self.register_parameter(name, nn.Parameter(torch.zeros(side, side)))

    def forward(self, slopes: dict[str, Tensor]) -> Tensor:
        return torch.stack([(p * slopes[n]).sum() for n, p in self.named_parameters()]).sum()


def slopes(step: int) -> dict[str, Tensor]:
    dice = torch.Generator().manual_seed(100 * step + dist.get_rank())
    return {n: torch.randn(s, s, generator=dice) for n, s in (("a", 12), ("b", 9), ("c", 15))}


def spoiled(strategy: str, where: str) -> str:
    """One bad number in a bucket of several parameters: all of it is NaN, and states stay as they
    were."""
    model = Told()
    with attached(model, strategy) as handle:
        assert len(handle.plan.buckets) == 1
        for step in range(3):
            model.zero_grad()
            model(slopes(step)).backward()
            before, bad = state_of(handle), slopes(50 + step)
            if dist.get_rank() == 1:
                bad[where][2, 3] = float("nan") if step % 2 else float("inf")
            model.zero_grad()
            model(bad).backward()
            assert all(bool(g.isnan().all()) for g in gradients(model).values())
            after = state_of(handle)
            for name, values in before.items():
                assert values.keys() == after[name].keys(), name
                for key, value in values.items():
                    torch.testing.assert_close(after[name][key], value, rtol=1e-5, atol=1e-5)
        model.zero_grad()
        model(slopes(4)).backward()
        assert all(bool(g.isfinite().all()) for g in gradients(model).values())
    return fingerprint(gradients(model).values())


@pytest.mark.once
@every
@few_or_odd
@pytest.mark.parametrize("where", ["a", "c"])
def test_one_bad_number_spoils_all_and_leaves_states(
    ranks: Ranks, strategy: str, where: str
) -> None:
    assert len(set(ranks.run(spoiled, strategy, where))) == 1


def around_a_bad_bucket(model: Told, handle: Any) -> tuple[Any, dict[str, Tensor], Any]:
    """States before and after a step that is skipped because of b, and the gradients of that
    step."""
    for step in range(3):
        model.zero_grad()
        model(slopes(step)).backward()
    before, given = state_of(handle), slopes(9)
    bad = {n: g.clone() for n, g in given.items()}
    if dist.get_rank() == 0:
        bad["b"][0, 0] = float("nan")
    model.zero_grad()
    model(bad).backward()
    return before, given, state_of(handle)


def beside_a_bad_bucket(strategy: str) -> str:
    """What good buckets sent in a skipped step is given back, and senders and receivers still
    agree."""
    model, world = Told(), dist.get_world_size()
    with attached(model, strategy, bucket_bytes=8) as handle:
        before, given, after = around_a_bad_bucket(model, handle)
        for name, values in before.items():
            for key in values.keys() & {OWNERS_RESIDUAL, "estimate", "mean"}:
                torch.testing.assert_close(after[name][key], values[key], rtol=1e-5, atol=1e-5)
            if "residual" in values and "velocity" not in values:
                waits = values["residual"] + (given[name] if name != "b" else 0.0)
                torch.testing.assert_close(after[name]["residual"], waits, rtol=1e-5, atol=1e-5)
            if "estimate" in values:  # the receivers' knowledge is the mean of the senders'
                known = torch.stack(from_all(after[name]["estimate"])).sum(0) / world
                torch.testing.assert_close(after[name]["mean"], known, rtol=1e-5, atol=1e-5)
        model.zero_grad()
        model(slopes(4)).backward()
    return fingerprint(gradients(model).values())


@pytest.mark.once
@some
@few_or_odd
def test_beside_a_bad_bucket(ranks: Ranks, strategy: str) -> None:
    assert len(set(ranks.run(beside_a_bad_bucket, strategy))) == 1

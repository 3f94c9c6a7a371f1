"""fully_shard over the fast dimension of a 2×2 mesh, gradwire over the slow one.

Replica 0 is ranks 0 and 1; replica 1 is ranks 2 and 3. Ranks 0 and 2 keep the same shards, so do 1
and 3.
"""

from __future__ import annotations

import functools
import gc
import os
import subprocess
import sys
import time
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from ranks import Ranks
from small import attached, close, entry, fingerprint, raised, residuals
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.utils.checkpoint import checkpoint

import gradwire
from gradwire import Handle, Warmup
from gradwire.errors import GradwireError, PlanError, UsageError
from gradwire.report.run import Run
from gradwire.training.trainable import shard_of
from suites import first

TOPK = "topk(0.1)+ef | allgather"
LOSSLESS = "topk(1.0)+ef | allgather"
WORDS, WIDTH = 11, 6


class Block(nn.Module):
    """Attention and a perceptron, with odd sizes, and one parameter too small for two shards."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.mix = nn.Linear(WIDTH, 3 * WIDTH)
        self.up = nn.Linear(WIDTH, 13)
        self.down = nn.Linear(13, WIDTH)
        self.gain = nn.Parameter(torch.ones(1))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.mix(self.norm(x)).chunk(3, -1)
        x = x + nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return x + self.gain * self.down(torch.tanh(self.up(x)))


class Head(nn.Module):
    """A linear layer with a bias as buffer; returns logarithms of probabilities."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(WORDS, WIDTH))
        self.register_buffer("bias", torch.randn(WORDS))

    def forward(self, x: Tensor) -> Tensor:
        return (nn.functional.linear(x, self.weight) + self.bias).log_softmax(-1)


class Tiny(nn.Module):
    """A language model."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.head = Head()

    def forward(
        self, words: Tensor, skip: int | None = None, recompute: bool = False,
        reentrant: bool = False,
    ) -> Tensor:  # fmt: skip
        x = self.embedding(words)
        for i, block in enumerate(self.blocks):
            if recompute:
                x = checkpoint(block, x, use_reentrant=reentrant)
            elif i != skip:
                x = block(x)
        return self.head(x)


@functools.cache
def mesh() -> DeviceMesh:
    return init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))


def replicas() -> dist.ProcessGroup:
    return mesh()["replicate"].get_group()


def tiny(seed: int = 0) -> Tiny:
    torch.manual_seed(seed)
    return Tiny()


def sharded(seed: int = 0, dtype: torch.dtype = torch.float32, **options: Any) -> Tiny:
    """A model whose blocks are sharded each, and then the rest."""
    model = tiny(seed).to(dtype)
    for part in (*model.blocks, model):
        fully_shard(part, **{"mesh": mesh()["shard"], **options})
    return model


def joined(model: nn.Module, plan: str, **options: Any) -> Any:
    return attached(model, plan, process_group=replicas(), **options)


def words(step: int = 0, rank: int | None = None) -> Tensor:
    """Runs of the alphabet that differ for every rank and step."""
    rank = dist.get_rank() if rank is None else rank
    dice = torch.Generator().manual_seed(9 * step + rank)
    return (torch.randint(0, WORDS, (3, 1), generator=dice) + torch.arange(5)) % WORDS


def loss_of(model: nn.Module, step: int = 0, **options: Any) -> Tensor:
    return of_batch(model, words(step), **options)


def of_batch(model: nn.Module, batch: Tensor, **options: Any) -> Tensor:
    found = model(batch[:, :-1], **options)
    return -found.gather(-1, batch[:, 1:, None]).float().mean()


def shards(model: nn.Module) -> dict[str, Tensor]:
    """Copies of this rank's shards of the gradients; zeros if there is none."""
    return {
        name: shard_of(torch.zeros_like(p) if p.grad is None else p.grad).clone()
        for name, p in model.named_parameters()
        if p.requires_grad
    }


def parts(model: nn.Module) -> list[Tensor]:
    return [shard_of(p) for p in model.parameters()]


def given(model: nn.Module, *steps: int, twin: Tiny | None = None, **options: Any) -> Any:
    """This rank's shards of its replica's gradients after these backwards, as torch alone leaves
    them."""
    twin = twin or sharded()
    with torch.no_grad():
        for mine, its in zip(parts(model), parts(twin)):
            its.copy_(mine)
    for step in steps:
        loss_of(twin, step, **options).backward()
    return shards(twin)


def mean(x: Tensor) -> Tensor:
    """The mean over the replicas. Collective."""
    both = [torch.empty_like(x) for _ in range(2)]
    dist.all_gather(both, x.contiguous(), group=replicas())
    return ((both[0].float() + both[1].float()) / 2).to(x.dtype)


def means(of: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: mean(x) for name, x in of.items()}


def same(found: list[Any]) -> None:
    """Ranks 0 and 2 returned the same, and so did 1 and 3. The two pairs differ, or nothing was
    tested."""
    assert found[0] == found[2]
    assert found[1] == found[3]
    assert found[0] != found[1]


# -- the average ---------------------------------------------------------------------------


def averages(strategy: str, **options: Any) -> str:
    """The average is that of all four ranks, as if one process had had the whole batch."""
    model, whole = sharded(), tiny()
    with joined(model, strategy, **options):
        loss_of(model).backward()
        of_batch(whole, torch.cat([words(0, rank) for rank in range(4)])).backward()
        found = {n: p.grad.full_tensor() for n, p in model.named_parameters()}
        close(found, {n: p.grad for n, p in whole.named_parameters()})
        return fingerprint(shards(model).values())


@pytest.mark.parametrize("strategy", ["none | allreduce", LOSSLESS])
def test_the_average_of_all_ranks(four: Ranks, strategy: str) -> None:
    same(four.run(averages, strategy))


def changed_by_hooks() -> None:
    model, share = sharded(), dist.get_rank() // 2 + 1.0

    def weighted(p: Tensor) -> None:
        assert p.grad is not None
        shard_of(p.grad).mul_(share)

    with joined(model, LOSSLESS):
        for p in model.parameters():
            p.register_post_accumulate_grad_hook(weighted)  # type: ignore[no-untyped-call]
        for step in range(3):
            expected = means({name: x * share for name, x in given(model, step).items()})
            model.zero_grad()
            loss_of(model, step).backward()
            close(shards(model), expected)


def test_hooks_that_come_later_change_what_is_sent(four: Ranks) -> None:
    four.run(changed_by_hooks)


def as_grouped(lanes: int, bucket_bytes: int) -> str:
    model = sharded()
    with joined(model, TOPK, lanes=lanes, bucket_bytes=bucket_bytes) as handle:
        train(model, range(3))
        assert (len(handle.plan.buckets) > 3) == (bucket_bytes < 1000)
        return fingerprint(parts(model))


def test_buckets_do_not_change_the_result(four: Ranks) -> None:
    assert four.run(as_grouped, 2, 300) == four.run(as_grouped, 1, 1 << 20)


def small_parts() -> list[str]:
    """A parameter of one row is on only one of two ranks."""
    model = sharded()
    with joined(model, TOPK) as handle:
        loss_of(model).backward()
        planned = {p.name: p.shape for b in handle.plan.buckets for p in b.parameters}
        for name, p in model.named_parameters():
            part = shard_of(p)
            assert planned.get(name) == (tuple(part.shape) if part.numel() else None)
            assert shard_of(p.grad).shape == part.shape
        return list(planned)


def test_an_empty_shard_takes_no_part(four: Ranks) -> None:
    found = four.run(small_parts)
    same(found)
    assert set(found[0]) - set(found[1]) == {"blocks.0.gain", "blocks.1.gain"}


def averaged_meanwhile(patience_seconds: float) -> list[Any]:
    """The buckets that were decoded while the embedding's backward, which is the last, waited for
    them."""
    model, back = sharded(), list[Any]()
    wanted = means(given(model, 0))

    def hold(gradient: Tensor) -> None:
        end = time.monotonic() + patience_seconds
        while time.monotonic() < end and not back:
            time.sleep(0.005)  # leaves the processor to the lanes
            back.extend(s.label for s in list(handle.trace.spans) if s.kind == "decode")

    with joined(model, LOSSLESS, bucket_bytes=300) as handle:
        model.embedding.register_forward_hook(lambda m, i, out: out.register_hook(hold) and None)
        loss_of(model).backward()
    close(shards(model), wanted)
    return back


def test_the_exchange_overlaps_with_backward(four: Ranks) -> None:
    assert all(four.run(averaged_meanwhile, 60.0))


def offloaded() -> list[Any]:
    """The same, as if these shards had been offloaded from an accelerator."""
    there = torch.accelerator.is_available
    torch.accelerator.is_available = lambda: True
    try:
        return averaged_meanwhile(0.1)
    finally:
        torch.accelerator.is_available = there


def test_offloaded_shards_are_handed_over_after_backward(four: Ranks) -> None:
    assert not any(four.run(offloaded))


def called_twice(recompute: bool) -> str:
    """Two forwards and one backward: torch reduces each parameter once."""
    model = sharded()
    wanted = means(given(model, 0, 1))
    with joined(model, LOSSLESS, bucket_bytes=300):
        losses = [loss_of(model, step, recompute=recompute) for step in (0, 1)]
        torch.stack(losses).sum().backward()
        close(shards(model), wanted)
    return fingerprint(shards(model).values())


def reentrant() -> str:
    """Each block's backward ends by itself, and fully_shard's backward with it."""
    with joined(model := sharded(), TOPK):
        return raised(lambda: loss_of(model, recompute=True, reentrant=True).backward())


def test_reentrant_checkpointing_is_refused(four: Ranks) -> None:
    assert all("set use_reentrant=False" in said for said in four.run(reentrant))


@pytest.mark.parametrize("recompute", [False, True])
def test_a_model_that_is_called_twice(four: Ranks, recompute: bool) -> None:
    same(four.run(called_twice, recompute))


def two_roots() -> str:
    """Parts of a plain module are sharded: each ends its backward by itself."""
    model = tiny()
    for part in (model.embedding, *model.blocks, model.head):
        fully_shard(part, mesh=mesh()["shard"])
    wanted = means(given(model, 0))
    with joined(model, LOSSLESS):
        for _ in range(2):
            model.zero_grad()
            loss_of(model).backward()
            close(shards(model), wanted)
    return fingerprint(shards(model).values())


def test_several_roots(four: Ranks) -> None:
    same(four.run(two_roots))


@functools.cache
def other_mesh() -> DeviceMesh:
    return init_device_mesh("cpu", (2, 1, 2), mesh_dim_names=("replicate", "one", "shard"))


def groups_of_parameters() -> str:
    """The parameters of one module are sharded over two meshes, as those of experts are."""
    from torch.distributed.fsdp._fully_shard._fsdp_common import FSDPMeshInfo, ShardPlacementResult
    from torch.distributed.tensor import Shard

    model = tiny()
    others = {p for n, p in model.named_parameters() if "up" in n or "gain" in n}
    one, other = (
        ShardPlacementResult(Shard(0), FSDPMeshInfo(m["shard"], shard_mesh_dim=0))
        for m in (mesh(), other_mesh())
    )
    for part in (*model.blocks, model):
        fully_shard(
            part, mesh=mesh()["shard"],
            shard_placement_fn=lambda p: other if p in others else one,
        )  # fmt: skip
    with pytest.raises(ValueError, match="multiple param groups"):
        model.blocks[0].set_all_reduce_hook(print)
    wanted = means(given(model, 0))
    with joined(model, LOSSLESS):
        loss_of(model).backward()
        close(shards(model), wanted)
    return fingerprint(shards(model).values())


def test_several_groups_of_parameters_to_a_module(four: Ranks) -> None:
    same(four.run(groups_of_parameters))


# -- mixed precision -----------------------------------------------------------------------

BF16, FP32 = torch.bfloat16, torch.float32
POLICIES = {
    "computes in bf16": (FP32, {"param_dtype": BF16}),
    "reduces in bf16": (FP32, {"reduce_dtype": BF16}),
    "computes in bf16, reduces in fp32": (FP32, {"param_dtype": BF16, "reduce_dtype": FP32}),
    "is bf16, reduces in fp32": (BF16, {"reduce_dtype": FP32}),
}


def mixed(policy: str, strategy: str) -> str:
    dtype, options = POLICIES[policy]
    settings: Any = {"dtype": dtype, "mp_policy": MixedPrecisionPolicy(**options)}
    model = sharded(**settings)
    wanted = means(given(model, 0, twin=sharded(**settings)))
    with joined(model, strategy) as handle:
        loss_of(model).backward()
        found = shards(model)
        assert {x.dtype for x in found.values()} == {dtype}
        assert {p.dtype for b in handle.plan.buckets for p in b.parameters} == {
            str(dtype).removeprefix("torch.")
        }
        for name, x in wanted.items():
            assert torch.equal(found[name], x), name
    return fingerprint(found.values())


@pytest.mark.parametrize("policy", POLICIES)
def test_mixed_precision(four: Ranks, policy: str) -> None:
    same(four.run(mixed, policy, "none | allreduce"))


# -- memory --------------------------------------------------------------------------------


def train(model: nn.Module, steps: range, lr: float = 0.5) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    for step in steps:
        optimizer.zero_grad()
        loss_of(model, step).backward()
        optimizer.step()


def conserved(steps: int) -> list[Any]:
    """On every replica, what was sent and what the residual keeps add up to the gradients."""
    model, twin, losses = sharded(), sharded(), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    with joined(model, TOPK) as handle:
        for step in range(steps):
            before = residuals(handle)
            optimizer.zero_grad()
            twin.zero_grad()
            came = given(model, step, twin=twin)
            loss = loss_of(model, step)
            loss.backward()
            found, after = shards(model), residuals(handle)
            assert any(x.count_nonzero() for x in after.values())
            for name, x in came.items():
                kept = after[name] - before.get(name, 0.0) if name in after else 0.0
                torch.testing.assert_close(found[name], mean(x - kept), rtol=1e-5, atol=1e-6)
            optimizer.step()
            losses.append(float(loss.detach()))
        assert sum(losses[-4:]) < 0.8 * sum(losses[:4])
        return [fingerprint(parts(model)), fingerprint(found.values())]


@pytest.mark.parametrize("steps", first([10, 20]))
def test_nothing_is_lost_and_replicas_stay_equal(four: Ranks, steps: int) -> None:
    same(four.run(conserved, steps))


def key() -> str:
    """The key of this rank's state in a checkpoint, where all shards have one: ranks of a shard
    share the plan."""
    return f"gradwire-{mesh().get_local_rank('shard')}"


def save(model: nn.Module, handle: Handle, folder: Path, by_dcp: bool) -> None:
    if by_dcp:
        states = {"model": model.state_dict(), key(): handle.state_dict()}
        dcp.save(states, checkpoint_id=folder)
        return
    own = [x.clone() for x in (*parts(model), *model.buffers())]
    torch.save((own, handle.state_dict()), folder / f"{dist.get_rank()}.pt")


def restore(model: nn.Module, handle: Handle, folder: Path, by_dcp: bool) -> None:
    if by_dcp:
        dcp.load({"model": model.state_dict()}, checkpoint_id=folder)
        handle.load_checkpoint(folder, key())
        return
    own, state = torch.load(folder / f"{dist.get_rank()}.pt", weights_only=True)
    for mine, its in zip((*parts(model), *model.buffers()), own):
        mine.copy_(its)
    handle.load_state_dict(state)


def resumed(strategy: str, directory: str, by_dcp: bool) -> str:
    """Four steps, a checkpoint and four more give the bits of eight."""
    whole, folder = sharded(), Path(directory)
    with joined(whole, strategy) as handle:
        train(whole, range(8), 0.1)
        wanted, kept = fingerprint(parts(whole)), residuals(handle)
    model = sharded()
    with joined(model, strategy, bucket_bytes=300) as handle:
        train(model, range(4), 0.1)
        own = entry(handle)["state"]
        for name, p in model.named_parameters():
            assert all(x.shape == shard_of(p).shape for x in own.get(name, {}).values())
        save(model, handle, folder, by_dcp)
    model = sharded(seed=9)
    with joined(model, strategy) as handle:
        restore(model, handle, folder, by_dcp)
        train(model, range(4, 8), 0.1)
        assert fingerprint(parts(model)) == wanted
        found = residuals(handle)
        assert found.keys() == kept.keys()
        assert all(torch.equal(x, kept[name]) for name, x in found.items())
    return wanted


@pytest.mark.once
@pytest.mark.parametrize("by_dcp", [False, True], ids=["torch.save", "dcp"])
@pytest.mark.parametrize("strategy", [TOPK, "dgc(0.1) | allgather"])
def test_resume_is_the_uninterrupted_run(
    four: Ranks, strategy: str, by_dcp: bool, tmp_path: Path
) -> None:
    same(four.run(resumed, strategy, str(tmp_path), by_dcp))


def of_another_shard(directory: str) -> None:
    """A state of the other shard is refused, though its ranks have the same numbers in their
    groups."""
    path, rank, model = Path(directory), dist.get_rank(), sharded()
    for block in model.blocks:
        block.gain.requires_grad_(False)  # all ranks have a shard of the other parameters
    with joined(model, TOPK) as handle:
        torch.save(handle.state_dict(), path / f"{rank}.pt")
        dist.barrier()
        state = torch.load(path / f"{rank ^ 1}.pt", weights_only=True)
        text = raised(lambda: handle.load_state_dict(state), PlanError)
        assert f"rank {rank // 2} of shard {rank % 2} needs" in text


def test_the_state_of_another_shard_is_refused(four: Ranks, tmp_path: Path) -> None:
    four.run(of_another_shard, str(tmp_path))


def flushed() -> str:
    """One dense sum brings all residuals."""
    model = sharded()
    with joined(model, TOPK) as handle:
        train(model, range(2))
        wanted = {name: mean(x) for name, x in residuals(handle).items()}
        model.zero_grad()
        handle.flush()
        assert wanted
        close({name: shards(model)[name] for name in wanted}, wanted)
        assert not any(x.count_nonzero() for x in residuals(handle).values())
    return fingerprint(shards(model).values())


def test_flush(four: Ranks) -> None:
    same(four.run(flushed))


def clipped_after_flush() -> float:
    """The norm that torch's clipping finds in what flush has added; a rank without a part of a
    parameter sums as many norms as others do."""
    model = sharded()
    with joined(model, TOPK) as handle:
        train(model, range(2))
        model.zero_grad()
        handle.flush()
        assert all(p.grad is not None for p in model.parameters())
        norm: Any = nn.utils.clip_grad_norm_(model.parameters(), 1e9)
        return float(norm.full_tensor())


def test_what_is_flushed_can_be_clipped(four: Ranks) -> None:
    outcomes = four.outcomes(clipped_after_flush, timeout_seconds=60.0)
    assert all(o.ok for o in outcomes), [o.story for o in outcomes]
    found = [o.value for o in outcomes]
    assert found == [found[0]] * 4
    assert found[0] > 0


def non_finite() -> None:
    """One bad number on rank 3: NaN on both replicas, and no residual changes."""
    model = sharded()
    with joined(model, TOPK) as handle:
        train(model, range(3))
        before = residuals(handle)
        model.zero_grad()
        bad = torch.nan if dist.get_rank() == 3 else 1.0
        (loss_of(model, 3) * bad).backward()
        assert all(x.isnan().all() for x in shards(model).values())
        after = residuals(handle)
        assert before.keys() == after.keys()
        for name, x in before.items():
            torch.testing.assert_close(after[name], x, rtol=1e-5, atol=1e-6)
        model.zero_grad()
        loss_of(model, 4).backward()
        assert all(x.isfinite().all() for x in shards(model).values())


def test_one_bad_number(four: Ranks) -> None:
    four.run(non_finite)


# -- accumulation, and gradients that do not come ------------------------------------------


def accumulated(strategy: str, how: str) -> str:
    """Three backwards are one exchange, of their sum."""
    model = sharded()
    wanted = given(model, 0, 1, 2)
    with joined(model, strategy) as handle:
        with handle.no_sync():
            for step in (0, 1):
                model.set_requires_gradient_sync(how == "shards")
                loss_of(model, step).backward()
        if how == "shards":
            alone = given(model, 0, 1)
            assert all(torch.equal(x, alone[name]) for name, x in shards(model).items())
        assert handle.stats()["steps"] == 0
        model.set_requires_gradient_sync(True)
        loss_of(model, 2).backward()
        assert handle.stats()["steps"] == 1
        kept = residuals(handle)
        sent = {name: x - kept.get(name, 0.0) for name, x in wanted.items()}
        close(shards(model), means(sent), 1e-5)
    return fingerprint(shards(model).values())


@pytest.mark.once
@pytest.mark.parametrize("how", ["shards", "whole"])
@pytest.mark.parametrize("strategy", ["none | allreduce", TOPK])
def test_accumulated_gradients_are_exchanged_once(four: Ranks, strategy: str, how: str) -> None:
    same(four.run(accumulated, strategy, how))


def twice() -> str:
    """A second backward on top of an average is refused; after that training works."""
    model = sharded()
    with joined(model, TOPK) as handle:
        loss_of(model, 0).backward()
        kept = residuals(handle)
        text = raised(lambda: loss_of(model, 1).backward())
        assert "no_sync" in text
        assert "zero_grad" in text
        assert all(torch.equal(x, kept[name]) for name, x in residuals(handle).items())
        train(model, range(2))
        for zeroed in (model, torch.optim.SGD(model.parameters())):
            zeroed.zero_grad(set_to_none=False)  # keeps the memory of the averages
            loss_of(model, 2).backward()
        assert handle.stats()["steps"] == 5
    return fingerprint(parts(model))


def test_a_second_backward_is_refused(four: Ranks) -> None:
    same(four.run(twice))


def unused(skipping: tuple[int, ...]) -> str:
    """Some replicas leave out a block: it takes part with zeros, and its residual is sent."""
    model = sharded()
    with joined(model, TOPK) as handle:
        train(model, range(2))
        before = residuals(handle)
        skip = 1 if dist.get_rank() // 2 in skipping else None
        came = given(model, 2, skip=skip)
        model.zero_grad()
        loss_of(model, 2, skip=skip).backward()
        found, after = shards(model), residuals(handle)
        for name, x in came.items():
            kept = after[name] - before[name] if name in after else 0.0
            torch.testing.assert_close(found[name], mean(x - kept), rtol=1e-5, atol=1e-6)
        assert (found["blocks.1.up.weight"] != 0).any()
        assert all(p.grad is not None for p in model.parameters())
        train(model, range(3, 5))
    return fingerprint(parts(model))


@pytest.mark.parametrize("skipping", [(1,), (0, 1)])
def test_an_unused_module(four: Ranks, skipping: tuple[int, ...]) -> None:
    same(four.run(unused, skipping))


def without_backward() -> str:
    """A replica that runs no backward calls synchronize."""
    model = sharded()
    with joined(model, LOSSLESS) as handle:
        if dist.get_rank() < 2:
            loss_of(model).backward()
        else:
            handle.synchronize()
        return fingerprint(shards(model).values())


def test_synchronize_without_a_backward(four: Ranks) -> None:
    same(four.run(without_backward))


# -- what is around ------------------------------------------------------------------------


def different_beginnings() -> str:
    """All replicas get replica 0's parameters and buffers, frozen ones too, though each has run a
    forward."""
    model = sharded(seed=dist.get_rank() // 2)
    model.embedding.requires_grad_(False)
    wanted = sharded(seed=0)
    loss_of(model)  # leaves the root's parameters unsharded
    with joined(model, TOPK) as handle:
        assert all(torch.equal(x, y) for x, y in zip(parts(model), parts(wanted)))
        assert torch.equal(model.head.bias, wanted.head.bias)
        loss_of(model).backward()
        assert model.embedding.weight.grad is None
        assert all("embedding" not in n for b in handle.plan.buckets for n in b.names)
    return fingerprint(shards(model).values())


def test_replicas_begin_equal(four: Ranks) -> None:
    same(four.run(different_beginnings))


def clipped() -> str:
    model, whole = sharded(), tiny()
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9) for m in (model, whole)]
    with joined(model, LOSSLESS):
        for step in range(3):
            for optimizer in optimizers:
                optimizer.zero_grad()
            loss_of(model, step).backward()
            everybody = [words(step, rank) for rank in range(4)]
            of_batch(whole, torch.cat(everybody)).backward()
            norm, wanted = (nn.utils.clip_grad_norm_(m.parameters(), 0.1) for m in (model, whole))
            torch.testing.assert_close(norm.full_tensor(), wanted)
            for optimizer in optimizers:
                optimizer.step()
    for p, q in zip(model.parameters(), whole.parameters()):
        torch.testing.assert_close(p.full_tensor(), q, rtol=1e-5, atol=1e-6)
    return fingerprint(parts(model))


def test_clipping_and_stepping(four: Ranks) -> None:
    same(four.run(clipped))


def momenta_clipped() -> str:
    model = sharded()
    with joined(model, "onebit+shared_momentum | alltoall", warmup=Warmup(9, (1.0,))):
        adam = gradwire.optim.OneBitAdam(model.parameters(), 1e-3, freeze_step=9)
        for step, norm in enumerate((1e9, 1e9, 1e-3)):
            adam.zero_grad()
            loss_of(model, step).backward()
            nn.utils.clip_grad_norm_(model.parameters(), norm)
            try:
                adam.step()
            except UsageError as error:
                return f"{step}: {error}"
    return "stepped"


def test_one_bit_adam_is_told_of_clipped_momenta(four: Ranks) -> None:
    assert all(s.startswith("2: while OneBitAdam learns") for s in four.run(momenta_clipped))


def watched() -> None:
    """The optimizer is found, though it holds sharded parameters."""
    model = sharded()
    with joined(model, "dgc(0.1) | allgather"):
        with pytest.warns(UserWarning, match="seen no gradients"):
            torch.optim.SGD(model.parameters(), lr=0.1).step()
        loss_of(model).backward()
        assert "optim.SGD(" in raised(torch.optim.Adam(model.parameters()).step)
        text = raised(lambda: gradwire.attach(model, TOPK, process_group=replicas()))
        assert "detach" in text


def test_the_optimizer_is_watched(four: Ranks) -> None:
    four.run(watched)


def detached() -> str:
    """Detached replicas go on averaging, densely; attached again, they average by a plan, once."""
    model = sharded()
    handle: Handle = gradwire.attach(model, TOPK, replicas(), timeout_seconds=20.0)
    train(model, range(2))
    handle.detach()
    handle.detach()  # a second call does no harm
    for step, skip in ((2, None), (3, dist.get_rank() // 2 or None)):
        wanted = means(given(model, step, skip=skip))
        model.zero_grad()
        loss_of(model, step, skip=skip).backward()
        assert all(torch.equal(x, wanted[name]) for name, x in shards(model).items())
    wanted = means(given(model, 4))
    model.zero_grad()
    with joined(model, TOPK) as handle:
        loss_of(model, 4).backward()
        kept = residuals(handle)
        sent = {n: x - kept.get(n, 0.0) for n, x in given(model, 4).items()}
        close(shards(model), means(sent), 1e-5)
        assert (wanted["head.weight"] != shards(model)["head.weight"]).any()
    return fingerprint(shards(model).values())


def test_detached_replicas_average_densely(four: Ranks) -> None:
    same(four.run(detached))


def forgotten() -> None:
    model = sharded()
    with joined(model, TOPK):
        train(model, range(2))
    gone = weakref.ref(model.head.weight), weakref.ref(model)
    del model
    gc.collect()
    assert [ref() for ref in gone] == [None, None]


def test_a_detached_model_is_freed(four: Ranks) -> None:
    four.run(forgotten)


def refused() -> None:
    """Each is refused on all ranks."""
    whole, model = sharded(mesh=mesh()), sharded()
    ignoring = tiny()
    fully_shard(ignoring, mesh=mesh()["shard"], ignored_params={ignoring.head.weight})
    wrong: list[tuple[nn.Module, dict[str, Any], str]] = [
        (whole, {"process_group": replicas()}, "uncompressed"),
        (whole, {}, "uncompressed"),
        (model, {}, "process_group=mesh['replicate']"),
        (model, {"process_group": mesh()["shard"].get_group()}, "the same shards"),
        (model, {"process_group": replicas(), "clip_norm": 1.0}, "clip_grad_norm_"),
        (ignoring, {"process_group": replicas()}, "'head.weight' is not"),
        (whole, {"process_group": replicas(), "plan": "auto"}, "uncompressed"),
        (model, {"plan": "auto"}, "process_group=mesh['replicate']"),
        (model, {"process_group": replicas(), "plan": "auto", "clip_norm": 1.0}, "clip_grad"),
    ]
    table = nn.Sequential(nn.Embedding(8, 4, sparse=True), nn.Linear(4, 4))
    fully_shard(table, mesh=mesh()["shard"])
    wrong += [
        (table, {"process_group": replicas()}, "those of '0' are sparse"),
        (table, {"process_group": replicas(), "plan": "auto"}, "sparse=False"),
    ]
    for module, options, part in wrong:
        text = raised(lambda m=module, o=options: gradwire.attach(m, **{"plan": TOPK, **o}))
        assert part in text, text
    with joined(model, TOPK):
        loss_of(model).backward()


def test_what_cannot_be_attached(four: Ranks) -> None:
    four.run(refused)


def refused_at_first() -> str:
    """Three rows over four ranks leave one rank without parts; the replicas of another mesh are
    pairs of ranks, of which only one may have made groups for lanes by then."""
    whole = init_device_mesh("cpu", (1, 4), mesh_dim_names=("replicate", "shard"))
    few = nn.Linear(WIDTH, 3)
    fully_shard(few, mesh=whole["shard"])
    with pytest.raises(GradwireError, match="trainable parameters on every rank"):
        gradwire.attach(few, TOPK, process_group=whole["replicate"].get_group(), lanes=2)
    model = sharded()
    with joined(model, TOPK, timeout_seconds=5.0):
        loss_of(model).backward()
    return fingerprint(shards(model).values())


class Uneven(nn.Module):
    """Of its two buckets the second shard has one: it makes fewer groups for lanes."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.gain = nn.Parameter(torch.ones(2, 3)), nn.Parameter(torch.ones(1))

    def forward(self) -> Tensor:
        return (self.weight * self.gain).sum()


def two_stages() -> list[int]:
    """Two pairs of ranks, each with a sharded model of its own, attach again and again."""
    stages = init_device_mesh("cpu", (2, 1, 2), mesh_dim_names=("stage", "replicate", "shard"))
    lanes = []
    for _ in range(2):
        model = Uneven()
        fully_shard(model, mesh=stages["shard"])
        group = stages["replicate"].get_group()
        with attached(model, TOPK, process_group=group, lanes=2, timeout_seconds=5.0) as handle:
            model().backward()
            lanes.append(len(handle._session.performers))
    return lanes


def test_after_a_refusal_another_mesh_can_be_attached(tmp_path: Path) -> None:
    with Ranks(4, tmp_path) as ranks:  # of its own: they count the groups that were ever made
        same(ranks.run(refused_at_first))


def test_ranks_that_made_fewer_groups_attach_again(tmp_path: Path) -> None:
    with Ranks(4, tmp_path) as ranks:
        assert ranks.run(two_stages) == [[2, 2], [1, 1], [2, 2], [1, 1]]


@pytest.mark.full
def test_the_example() -> None:
    example = Path(__file__).parents[2] / "examples" / "fsdp2.py"
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "4"]
    ran = subprocess.run(
        [sys.executable, *launcher, str(example), "--steps", "3"],
        env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    assert "bytes a step to the other replica" in ran.stdout.splitlines()[-1]


def recorded(folder: Path) -> str:
    """A folder that one rank cannot write: the ranks of the other replicate group learn of it,
    and all can record elsewhere."""
    with joined(model := sharded(), TOPK) as handle:
        nowhere = Path(os.devnull) if dist.get_rank() == 3 else folder
        said = raised(lambda: gradwire.record(handle, nowhere), GradwireError)
        with gradwire.record(handle, folder):
            loss_of(model).backward()
    dist.barrier()
    run = Run(folder)
    assert (sorted(run.ranks), run.world, run.averaged_over) == ([0, 1, 2, 3], 4, 2)
    assert run.steps_with_spans() == [0], "of one start"
    return said


def test_a_recording_begins_on_all_ranks_or_none(four: Ranks, tmp_path: Path) -> None:
    assert all("rank must be able to write" in said for said in four.run(recorded, tmp_path))

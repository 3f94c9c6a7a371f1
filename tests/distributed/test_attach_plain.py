"""attach on plain modules: all that autograd can do to a gradient before gradwire sees it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from ranks import Ranks
from small import (
    attached,
    batch,
    close,
    fingerprint,
    gradients,
    loss_of,
    mean,
    raised,
    small,
)
from small import local_gradients as local
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from gradwire.errors import UsageError
from gradwire.training.copies import Hook

TOPK = "topk(0.1)+ef | allgather"
LOSSLESS = "topk(1.0)+ef | allgather"


# -- accumulation ----------------------------------------------------------------------------


def accumulation(strategy: str) -> None:
    model, reference = small(), small()
    with attached(model, strategy) as handle:
        for step in range(3):
            model.zero_grad()
            with handle.no_sync():
                for micro in range(3):
                    (loss_of(model, 10 * step + micro) / 4).backward()
                mine = gradients(model)
                assert handle.stats()["steps"] == step  # nothing was exchanged
                assert any(not torch.equal(mean(g), g) for g in mine.values())
            (loss_of(model, 10 * step + 3) / 4).backward()
            reference.zero_grad()
            for rank in range(dist.get_world_size()):
                whole = torch.cat([batch(10 * step + micro, rank) for micro in range(4)])
                (reference(whole).square().mean() / dist.get_world_size()).backward()
            close(gradients(model), gradients(reference))
        assert handle.stats()["steps"] == 3


@pytest.mark.parametrize("strategy", ["none | allreduce", LOSSLESS])
def test_accumulation_equals_one_big_batch(three: Ranks, strategy: str) -> None:
    three.run(accumulation, strategy)


def accumulated_earlier_only() -> None:
    """A parameter that got its gradient only inside no_sync is exchanged with the others."""
    model = nn.ModuleList([nn.Linear(3, 2, bias=False), nn.Linear(3, 2, bias=False)])
    x = torch.ones(1, 3) * (dist.get_rank() + 1)
    with attached(model, LOSSLESS) as handle:
        with handle.no_sync():
            model[0](x).sum().backward()
        model[1](x).sum().backward()
        for p in model.parameters():
            assert p.grad is not None
            assert torch.equal(p.grad, torch.full((2, 3), 2.0))


def test_what_accumulated_earlier_is_exchanged(three: Ranks) -> None:
    three.run(accumulated_earlier_only)


def fresh_accumulation_is_no_second_backward() -> None:
    """set_to_none may reuse the address of the old gradient; a new one there is not the old
    one."""
    model = nn.Linear(4, 4, bias=False)
    with attached(model, LOSSLESS) as handle:
        for step in range(30):
            model.zero_grad(set_to_none=True)
            for _ in range(step % 4):
                with handle.no_sync():
                    model(torch.ones(1, 4)).sum().backward()
            model(torch.ones(1, 4)).sum().backward()
            assert model.weight.grad is not None
            assert torch.equal(model.weight.grad, torch.full((4, 4), 1.0 + step % 4)), step


def test_fresh_accumulation_is_no_second_backward(three: Ranks) -> None:
    three.run(fresh_accumulation_is_no_second_backward)


def two_backwards() -> None:
    model = small()
    with attached(model, "none | allreduce"):  # no residual: the sum, as without gradwire
        first, second = local(model, 0), local(model, 1)
        loss_of(model, 0).backward()
        loss_of(model, 1).backward()
        close(gradients(model), {n: mean(first[n]) + mean(second[n]) for n in first})
    for strategy in (TOPK, "dgc(0.1) | allgather", "none+server_momentum | allreduce"):
        model = small()
        with attached(model, strategy) as handle:
            for zero_to_none in (True, False):
                loss_of(model, 0).backward()
                text = raised(lambda model=model: loss_of(model, 1).backward())
                assert "one backward() per step" in text
                assert "no_sync" in text
                model.zero_grad(set_to_none=zero_to_none)  # the stated remedy helps
                loss_of(model, 1).backward()
                model.zero_grad(set_to_none=zero_to_none)
            assert handle.stats()["steps"] == 4


def test_two_backwards_before_a_step(three: Ranks) -> None:
    three.run(two_backwards)


def zeroing(strategy: str) -> list[str]:
    ends = []
    for to_none in (True, False):
        model = small()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with attached(model, strategy):
            for step in range(6):
                optimizer.zero_grad(set_to_none=to_none)
                loss_of(model, step).backward()
                optimizer.step()
        ends.append(fingerprint(model.parameters()))
    return ends


@pytest.mark.parametrize("strategy", ["none | allreduce", "dgc(0.1) | allgather"])
def test_zero_grad_to_none_or_not_is_the_same(three: Ranks, strategy: str) -> None:
    ends = three.run(zeroing, strategy)
    assert len({end for pair in ends for end in pair}) == 1


# -- parameters ------------------------------------------------------------------------------


def unused(who: str) -> None:
    """A branch that some ranks (or all) leave out counts as zero on these."""
    model = nn.ModuleDict({"used": nn.Linear(3, 2), "other": nn.Linear(3, 2)})
    rank = dist.get_rank()
    leaves_out = rank == 1 if who == "one" else True
    for lanes in (1, 3):
        with attached(model, LOSSLESS, bucket_bytes=8, lanes=lanes):
            for _ in range(3):
                model.zero_grad()
                x = torch.ones(1, 3)
                loss = model["used"](x).sum()
                if not leaves_out:
                    loss = loss + model["other"](x).sum()
                loss.backward()
                grads = gradients(model)
                share = 2 / 3 if who == "one" else 0.0
                torch.testing.assert_close(grads["used.weight"], torch.ones(2, 3))
                torch.testing.assert_close(grads["other.weight"], torch.full((2, 3), share))
                torch.testing.assert_close(grads["other.bias"], torch.full((2,), share))


@pytest.mark.parametrize("who", ["one", "all"])
def test_unused_parameters_are_zeros(three: Ranks, who: str) -> None:
    three.run(unused, who)


def frozen_and_shared() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4))
    torch.manual_seed(0)
    for p in model.parameters():
        nn.init.normal_(p)
    model[0].requires_grad_(False)
    model[2].weight = model[1].weight
    x = torch.randn(3, 4, generator=torch.Generator().manual_seed(dist.get_rank()))
    expected = torch.autograd.grad(model(x).square().sum(), [model[1].weight, model[2].bias])
    with attached(model, LOSSLESS) as handle:
        planned = {n for bucket in handle.plan.buckets for n in bucket.names}
        assert planned == {"1.weight", "1.bias", "2.bias"}
        model(x).square().sum().backward()
        assert model[0].weight.grad is None
        torch.testing.assert_close(model[1].weight.grad, mean(expected[0]))
        torch.testing.assert_close(model[2].bias.grad, mean(expected[1]))


def test_frozen_and_shared_parameters(three: Ranks) -> None:
    three.run(frozen_and_shared)


class Mixed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Linear(6, 5)
        self.two = nn.Linear(5, 4).bfloat16()
        self.scale = nn.Parameter(torch.tensor(2.0))
        self.nothing = nn.Parameter(torch.zeros(0, 3))

    def forward(self, x: Tensor) -> Tensor:
        y = self.two(self.one(x).bfloat16()).float() * self.scale
        return y.square().sum() + self.nothing.sum()


def mixed(strategy: str) -> None:
    """Parameters in fp32 and bf16, one of no dimension, and one without elements."""
    torch.manual_seed(0)
    model, reference = Mixed(), Mixed()
    reference.load_state_dict(model.state_dict())
    with attached(model, strategy, bucket_bytes=50, lanes=2) as handle:
        assert all(len({p.dtype for p in b.parameters}) == 1 for b in handle.plan.buckets)
        for step in range(3):
            x = torch.randn(
                2, 6, generator=torch.Generator().manual_seed(9 * step + dist.get_rank())
            )
            for module in (model, reference):
                module.zero_grad()
                module(x).backward()
            for (name, p), q in zip(model.named_parameters(), reference.parameters()):
                assert p.grad is not None
                assert q.grad is not None
                assert p.grad.dtype == p.dtype
                wanted, bits = mean(q.grad), 1e-2 if p.dtype == torch.bfloat16 else 1e-6
                torch.testing.assert_close(p.grad, wanted, rtol=bits, atol=bits, msg=name)


@pytest.mark.parametrize("strategy", ["none | allreduce", LOSSLESS, "none | allgather"])
def test_mixed_dtypes_and_odd_shapes(three: Ranks, strategy: str) -> None:
    three.run(mixed, strategy)


def channels_last(strategy: str, clip: float | None) -> None:
    torch.manual_seed(0)
    model = nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)
    reference = nn.Conv2d(3, 4, 3)
    reference.load_state_dict(model.state_dict())
    with attached(model, strategy, clip_norm=clip):
        for step in range(3):
            x = torch.randn(2, 3, 6, 6, generator=torch.Generator().manual_seed(step))
            x = x * (1 + dist.get_rank())
            for module in (model, reference):
                module.zero_grad()
            model(x.to(memory_format=torch.channels_last)).square().sum().backward()
            reference(x).square().sum().backward()
            assert model.weight.grad is not None
            assert not model.weight.grad.is_contiguous()
            close(gradients(model), {n: mean(g) for n, g in gradients(reference).items()}, 1e-4)


@pytest.mark.parametrize("strategy", ["none | allreduce", LOSSLESS])
def test_gradients_that_are_not_contiguous(three: Ranks, strategy: str) -> None:
    three.run(channels_last, strategy, None)
    three.run(channels_last, strategy, 1e9)


# -- backward --------------------------------------------------------------------------------


class Explosive(torch.autograd.Function):
    """Identity, whose backward fails when armed."""

    armed = False

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        if Explosive.armed:
            raise ArithmeticError("armed")
        return g


def aborted() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    x = torch.ones(2, 3)
    Explosive.armed = False

    def run(inside: bool) -> None:
        model.zero_grad()
        y = model[1](Explosive.apply(model[0](x))) if inside else Explosive.apply(model(x))
        y.sum().backward()

    with attached(model, LOSSLESS, bucket_bytes=8) as handle:
        run(True)
        Explosive.armed = True
        raised(lambda: run(False), ArithmeticError)  # before any gradient: nothing has happened
        Explosive.armed = False
        run(True)
        Explosive.armed = True
        raised(lambda: run(True), ArithmeticError)  # after half the gradients came
        Explosive.armed = False
        assert "attach again" in raised(lambda: run(True))
        assert "attach again" in raised(lambda: run(False))
        assert handle.stats()["steps"] == 2
    with attached(model, LOSSLESS, bucket_bytes=8):
        run(True)
        assert model[1].bias.grad is not None
        assert torch.equal(model[1].bias.grad, torch.full((3,), 2.0))


def test_backward_aborted_by_an_exception(three: Ranks) -> None:
    three.run(aborted)


def reaches_nothing() -> None:
    """A rank whose backward calls no hook takes part by synchronize()."""
    model = nn.Linear(3, 2)
    with attached(model, LOSSLESS) as handle:
        for step in range(3):
            model.zero_grad()
            if dist.get_rank() == step:
                handle.synchronize()
            else:
                model(torch.ones(1, 3)).sum().backward()
            assert model.weight.grad is not None
            torch.testing.assert_close(model.weight.grad, torch.full((2, 3), 2 / 3))
        with handle.no_sync():
            model.zero_grad()
            (model(torch.ones(1, 3)).sum() * dist.get_rank()).backward()
        handle.synchronize()  # sends what accumulated
        torch.testing.assert_close(model.weight.grad, torch.ones(2, 3))
        assert handle.stats()["steps"] == 4


def test_a_rank_that_reaches_no_parameter(three: Ranks) -> None:
    three.run(reaches_nothing)


def changed_by_hooks(strategy: str) -> None:
    model, share = small(), dist.get_rank() + 1.0

    def weighted(p: Tensor) -> None:
        assert p.grad is not None
        p.grad = p.grad * share

    with attached(model, strategy, bucket_bytes=1) as handle:
        for p in model.parameters():
            p.register_post_accumulate_grad_hook(weighted)  # type: ignore[no-untyped-call]
        for step in range(3):
            expected = {n: mean(g * share) for n, g in local(model, step).items()}
            model.zero_grad()
            loss_of(model, step).backward()
            close(gradients(model), expected)
        hooks: Any = model.two.weight._post_accumulate_grad_hooks
        assert next(iter(hooks.values())) is weighted  # so buckets leave amid backward again
        noting = Hook(lambda *_: None)  # one of gradwire's own, as "auto" has: it changes nothing
        model.two.weight.register_post_accumulate_grad_hook(noting)  # type: ignore[no-untyped-call]
        model.zero_grad()
        loss_of(model).backward()
        assert list(hooks.values()).pop() is noting
        hooks.popitem()
    assert list(hooks.values()) == [weighted]
    assert not handle.attached


@pytest.mark.parametrize("strategy", ["none | allreduce", LOSSLESS])
def test_hooks_that_come_later_change_what_is_sent(three: Ranks, strategy: str) -> None:
    three.run(changed_by_hooks, strategy)


def autograd_tricks() -> None:
    model, x = small(), batch()
    with attached(model, LOSSLESS) as handle:
        loss = model(x).square().mean()
        expected = {n: mean(g) for n, g in local(model).items()}
        for _ in range(2):  # retain_graph
            model.zero_grad()
            loss.backward(retain_graph=True)
            close(gradients(model), expected)
        with torch.no_grad():  # evaluation in between
            model.eval()
            model(x)
            model.train()
        close(local(model), local(model))  # torch.autograd.grad exchanges nothing
        assert handle.stats()["steps"] == 2
        model.zero_grad()
        model(x).square().mean().backward(inputs=[model.one.weight])
        found = gradients(model)
        torch.testing.assert_close(found["one.weight"], expected["one.weight"])
        assert torch.equal(found["two.weight"], torch.zeros(3, 13))
        model.zero_grad()
        y = checkpoint(model.norm, model.conv(x).flatten(1), use_reentrant=False)
        y = checkpoint(lambda z: model.two(torch.tanh(model.one(z))), y, use_reentrant=False)
        y.square().mean().backward()
        close(gradients(model), expected)


def test_what_autograd_can_do(three: Ranks) -> None:
    three.run(autograd_tricks)


def reentrant(strategy: str) -> str:
    """Several backwards inside one are right or refused, never silently wrong."""
    model, x = small(), batch()
    expected = {n: mean(g) for n, g in local(model).items()}
    with attached(model, strategy):
        try:
            y = model.norm(model.conv(x).flatten(1))
            y = checkpoint(lambda z: torch.tanh(model.one(z)), y, use_reentrant=True)
            checkpoint(model.two, y, use_reentrant=True).square().mean().backward()
        except UsageError as error:
            return str(error)
        close(gradients(model), expected)
    return "right"


@pytest.mark.parametrize(
    ("strategy", "says"), [("none | allreduce", "right"), (LOSSLESS, "Reentrant checkpointing")]
)
def test_reentrant_checkpointing(three: Ranks, strategy: str, says: str) -> None:
    for text in three.run(reentrant, strategy):
        assert says in text


# -- clipping --------------------------------------------------------------------------------


def clipping(limit: float) -> None:
    """Each rank's gradient is scaled by √N·c / norm if that is below 1, and then averaged."""
    model = small()
    with attached(model, LOSSLESS, clip_norm=limit):
        for step in range(3):
            mine = local(model, step)
            norm = torch.linalg.vector_norm(
                torch.stack([torch.linalg.vector_norm(g) for g in mine.values()])
            )
            scale = min(1.0, limit * dist.get_world_size() ** 0.5 / float(norm))
            assert (scale < 1.0) == (limit < 1e-3)
            model.zero_grad()
            loss_of(model, step).backward()
            close(gradients(model), {n: mean(g * scale) for n, g in mine.items()}, 1e-7)


@pytest.mark.parametrize("limit", [1e-4, 1e4])
def test_clipping(three: Ranks, limit: float) -> None:
    three.run(clipping, limit)


# -- somebody else who averages --------------------------------------------------------------


def with_ddp(strategy: str, is_first: bool, views: bool) -> str:
    """The error of a backward of DDP around an attached module. Alone, the module goes on."""
    model = small()
    ddp = DistributedDataParallel(model, gradient_as_bucket_view=views) if is_first else None
    with attached(ddp.module if ddp else model, strategy):
        ddp = ddp or DistributedDataParallel(model, gradient_as_bucket_view=views)
        return raised(loss_of(ddp).backward)


@pytest.mark.parametrize("strategy", ["none | allreduce", TOPK])
@pytest.mark.parametrize("is_first", [True, False], ids=["inside", "around"])
@pytest.mark.parametrize("views", [True, False], ids=["views", "copies"])
def test_ddp_that_averages_too_is_refused(
    three: Ranks, strategy: str, is_first: bool, views: bool
) -> None:
    for text in three.run(with_ddp, strategy, is_first, views):
        assert "averages them, too" in text
        assert "attach(ddp, …), not attach(ddp.module, …)" in text


def with_others(views: bool) -> None:
    """Callbacks of others at the end of a backward, and gradients that are views, are no DDP."""
    model = small()
    flat = torch.zeros(sum(p.numel() for p in model.parameters()))
    parts = torch.split(flat, [p.numel() for p in model.parameters()])
    for p, part in zip(model.parameters(), parts):
        p.grad = part.view(p.shape) if views else None

    def doubled() -> None:
        for p in model.parameters():
            assert p.grad is not None
            p.grad *= 2.0

    queue = torch.autograd.Variable._execution_engine.queue_callback
    with attached(model, "none | allreduce"):
        first = next(model.parameters())
        hook = first.register_hook(lambda _: queue(lambda: queue(doubled)))  # type: ignore[no-untyped-call]
        loss_of(model).backward()
        hook.remove()
    wanted = {name: 2.0 * mean(g) for name, g in local(small()).items()}
    close(gradients(model), wanted)


@pytest.mark.parametrize("views", [True, False])
def test_others_than_ddp_may_write_gradients(three: Ranks, views: bool) -> None:
    three.run(with_others, views)

"""Traps of DistributedDataParallel and its communication hook, each with its story.

All occurred on torch 2.13 over Gloo. A test here fails when gradwire falls into the trap again.
"""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from ranks import Ranks
from small import (
    attached,
    batch,
    close,
    gradients,
    local_gradients,
    loss_of,
    mean,
    raised,
    residuals,
    small,
)
from torch import Tensor, nn
from torch._dynamo.backends.registry import lookup_backend
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel

import gradwire
from gradwire.errors import UsageError
from gradwire.training.session import describe

LOSSLESS = "topk(1.0)+ef | allgather"
TOPK = "topk(0.1)+ef | allgather"
PARAMETERS = inspect.signature(DistributedDataParallel).parameters


# -- buckets that move -----------------------------------------------------------------------

MODES: dict[str, dict[str, Any]] = {
    "plain": {},
    "static_graph": {"static_graph": True},
    "find_unused": {"find_unused_parameters": True},
    "view": {"gradient_as_bucket_view": True},
    "view-static": {"gradient_as_bucket_view": True, "static_graph": True},
    "tiny-buckets": {"bucket_cap_mb": 0.0003},
    "bucket_cap_mb_list": {"bucket_cap_mb_list": [0.0002, 0.001, 0.5]},
    "batched_grad_copy": {"batched_grad_copy": True},
}


def layouts(mode: str) -> None:
    """Checks that six steps with a memory, and residuals, are the plain module's to the bit."""
    model, plain = small(), small()
    ddp = DistributedDataParallel(model, **MODES[mode])
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.05) for m in (model, plain)]
    with (
        attached(ddp, TOPK, bucket_bytes=300, lanes=2) as one,
        attached(plain, TOPK, bucket_bytes=900) as two,
    ):
        for step in range(6):
            for module, optimizer in zip((ddp, plain), optimizers):
                optimizer.zero_grad(set_to_none=step != 3)
                loss_of(module, step).backward()
            for (name, p), q in zip(model.named_parameters(), plain.parameters()):
                assert p.grad is not None
                assert q.grad is not None
                assert torch.equal(p.grad, q.grad), (step, name)
            for optimizer in optimizers:
                optimizer.step()
        kept = residuals(two)
        for name, value in residuals(one).items():
            assert torch.equal(value, kept[name])


@pytest.mark.parametrize("mode", MODES)
def test_buckets_move_between_iterations(three: Ranks, mode: str) -> None:
    """DDP's first iteration has everything in one bucket; the real layout appears at iteration 1,
    with static_graph at iteration 2, and a resumed job begins with one bucket again. PyTorch's
    PowerSGD keys its residuals by bucket index, refuses to start before iteration 2 (#51427) and
    cannot resume. Ours are keyed by parameter name, so no mode makes a difference.
    """
    missing = [option for option in MODES[mode] if option not in PARAMETERS]
    if missing:
        pytest.skip(f"this torch's DDP has no {missing[0]}")
    three.run(layouts, mode)


class TwoDtypes(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(4, 3), nn.Linear(3, 2).bfloat16()

    def forward(self, x: Tensor) -> Tensor:
        return self.two(self.one(x).bfloat16()).float().sum()


def several_first_buckets() -> None:
    torch.manual_seed(0)
    model = TwoDtypes()
    ddp = DistributedDataParallel(model, static_graph=True)
    with attached(ddp, "none | allreduce", timeout_seconds=5.0) as handle:
        for step in range(3):
            ddp.zero_grad()
            ddp(torch.full((2, 4), 1.0 + dist.get_rank())).backward()
            bias = model.one.bias.grad
            assert bias is not None
            assert torch.equal(bias, mean(bias)), "all have the same"
            assert handle.stats()["steps"] == step + 1


def test_a_static_graph_whose_first_step_has_several_buckets(three: Ranks) -> None:
    """DDP then gives all buckets the number 0 and calls none the last. A hook that begins with
    bucket 0 and ends with the last begins again and again, and never ends.
    """
    three.run(several_first_buckets)


def planned_boundaries() -> None:
    plan = gradwire.Plan.make(
        describe(dict(small().named_parameters())),
        gradwire.Strategy.parse("none | allreduce"),
        bucket_bytes=500,
    )
    options = gradwire.ddp_kwargs(plan)
    assert bool(options) == ("bucket_cap_mb_list" in PARAMETERS)
    model = small()
    ddp = DistributedDataParallel(model, **options)
    with attached(ddp, plan) as handle:
        assert handle.plan == plan
        for step in range(3):
            model.zero_grad()
            expected = {n: mean(g) for n, g in local_gradients(model, step).items()}
            loss_of(ddp, step).backward()
            close(gradients(model), expected)


def test_the_plans_boundaries_for_ddp(three: Ranks) -> None:
    """torch 2.13 lets one choose bucket boundaries; before, gradwire regroups, to the same end."""
    three.run(planned_boundaries)


def unfrozen() -> str:
    model = small()
    ddp = DistributedDataParallel(model, find_unused_parameters=True)
    model.one.weight.requires_grad_(False)
    with attached(ddp, LOSSLESS, timeout_seconds=5.0):
        loss_of(ddp).backward()
        model.one.weight.requires_grad_(True)
        return raised(lambda: loss_of(ddp, 1).backward())


def test_a_parameter_unfrozen_after_attaching(three: Ranks) -> None:
    """The parameter would train on every rank's own gradient, without a warning."""
    for text in three.run(unfrozen):
        assert "[13, 45]" in text
        assert "Wrap the module again" in text


def unused_branch() -> None:
    model = nn.ModuleDict({"used": nn.Linear(3, 2), "other": nn.Linear(3, 2)})
    wrapped = DistributedDataParallel(Branches(model), find_unused_parameters=True)
    with attached(wrapped, LOSSLESS) as handle:
        for step in range(4):
            model.zero_grad()
            wrapped(torch.ones(1, 3), dist.get_rank() != step % 3).backward()
            share = 2 / 3
            torch.testing.assert_close(model["used"].weight.grad, torch.ones(2, 3))
            torch.testing.assert_close(model["other"].weight.grad, torch.full((2, 3), share))
        model.zero_grad()
        wrapped(torch.ones(1, 3), False).backward()  # by no rank
        assert model["other"].weight.grad is None or not model["other"].weight.grad.any()
        assert handle.stats()["steps"] == 5


def unused_while_it_waits(as_views: bool) -> None:
    """The residual of a branch is sent in steps in which no rank uses it; DDP keeps such averages
    to itself, and they would be lost."""
    model = nn.ModuleDict({name: nn.Linear(4, 4, bias=False) for name in ("used", "other")})
    wrapped = DistributedDataParallel(
        Branches(model), find_unused_parameters=True, gradient_as_bucket_view=as_views
    )
    weight = model["other"].weight
    optimizer, before = torch.optim.SGD(model.parameters(), 1.0), weight.detach().clone()
    with attached(wrapped, "topk(0.2)+ef | allgather") as handle:
        for step in range(5):
            optimizer.zero_grad(set_to_none=step < 3)
            wrapped(torch.eye(4), step == 0).backward()
            optimizer.step()
            moved = float((before - weight.detach()).sum())
            waits = float(residuals(handle)["parts.other.weight"].sum())
            assert moved + waits == pytest.approx(16)
            assert moved == pytest.approx(min(4 * (step + 1), 16))


@pytest.mark.parametrize("as_views", [False, True])
def test_unused_parameters_get_what_waited(three: Ranks, as_views: bool) -> None:
    three.run(unused_while_it_waits, as_views)


class Branches(nn.Module):
    def __init__(self, parts: nn.ModuleDict) -> None:
        super().__init__()
        self.parts = parts

    def forward(self, x: Tensor, both: bool) -> Tensor:
        y = self.parts["used"](x).sum()
        return y + self.parts["other"](x).sum() if both else y


def test_unused_parameters(three: Ranks) -> None:
    """DDP with find_unused_parameters hands over zeros for what a rank did not use."""
    three.run(unused_branch)


def ignored_parameters() -> None:
    model = small()
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(model, ["one.weight"])
    ddp = DistributedDataParallel(model)
    expected = local_gradients(model)
    with attached(ddp, LOSSLESS) as handle:
        assert "one.weight" not in {n for b in handle.plan.buckets for n in b.names}
        loss_of(ddp).backward()
        found = gradients(model)
        assert torch.equal(found["one.weight"], expected["one.weight"])  # stays local
        torch.testing.assert_close(found["two.weight"], mean(expected["two.weight"]))


def test_parameters_that_ddp_ignores(three: Ranks) -> None:
    """torchrec marks parameters for DDP to ignore; they are never in a bucket, so a plan that
    waited for them would wait for ever.
    """
    three.run(ignored_parameters)


def delayed_parameters() -> None:
    model = small()
    delayed = [("one.weight", model.one.weight)]
    ddp = DistributedDataParallel(
        model, delay_all_reduce_named_params=delayed, param_to_hook_all_reduce=model.one.bias
    )
    with attached(ddp, LOSSLESS) as handle:
        assert "one.weight" not in {n for b in handle.plan.buckets for n in b.names}
        loss_of(ddp).backward()


def test_parameters_that_ddp_averages_late(three: Ranks) -> None:
    """With delay_all_reduce_named_params DDP averages some by itself, and never hands them to the
    hook. gradwire exchanged what DDP was writing to meanwhile: ranks had other sums than their
    average.
    """
    three.run(delayed_parameters)


def frozen_later() -> str:
    """Returns the error, or "right", of a parameter frozen after wrapping: DDP still has it."""
    model = small()
    ddp = DistributedDataParallel(model, find_unused_parameters=True)
    model.one.weight.requires_grad_(False)
    expected = {n: mean(g) for n, g in local_gradients(model).items()}
    with attached(ddp, LOSSLESS) as handle:
        try:
            loss_of(ddp).backward()
        except UsageError as error:
            return str(error)
        found = gradients(model)
        for name, g in expected.items():
            torch.testing.assert_close(found[name], g)
        assert handle.stats()["steps"] == 1
    return "right"


def test_a_parameter_frozen_after_wrapping(three: Ranks) -> None:
    """DDP fixes its buckets when it wraps a model. A parameter that is frozen between that and
    attach is in DDP's buckets but not in the plan: the hook must not raise a bare KeyError.
    """
    for text in three.run(frozen_later):
        assert text == "right" or "one.weight" in text


# -- when the hook is called -----------------------------------------------------------------


def no_sync() -> None:
    model, reference = small(), small()
    ddp = DistributedDataParallel(model)
    with attached(ddp, LOSSLESS) as handle:
        for step in range(3):
            model.zero_grad()
            for part, context in ((1, ddp.no_sync), (0, handle.no_sync)):
                with context():
                    (ddp(batch(9 * step + part)).square().mean() / 3).backward()
            assert handle.stats()["steps"] == step
            (ddp(batch(9 * step + 5)).square().mean() / 3).backward()
            reference.load_state_dict(model.state_dict())
            reference.zero_grad()
            for part in (1, 0, 5):
                (reference(batch(9 * step + part)).square().mean() / 3).backward()
            close(gradients(model), {n: mean(g) for n, g in gradients(reference).items()})


def test_no_sync(three: Ranks) -> None:
    """The hook is not called at all inside no_sync; the next bucket holds the accumulated sum."""
    three.run(no_sync)


def uneven() -> None:
    """Rank r has 2 + 2r inputs. Its residual is still delivered after it has joined."""
    model = nn.Linear(6, 4, bias=False)
    nn.init.zeros_(model.weight)
    ddp = DistributedDataParallel(model)
    rank, total = dist.get_rank(), torch.zeros(4, 6)
    with attached(ddp, TOPK) as handle:
        with Join([ddp]):
            for step in range(2 + 2 * rank):
                model.zero_grad()
                ddp(torch.full((1, 6), 1.0 + step)).sum().backward()
                total += model.weight.grad  # type: ignore[operator]
        assert handle.stats()["steps"] == 6
    if rank == 2:  # it has seen every step: sent + kept = given, over all ranks
        given = sum(sum(1.0 + s for s in range(2 + 2 * r)) for r in range(3)) / 3
        assert total.sum() < 24 * given + 1e-3
        assert total.max() <= given + 1e-3
        assert total.any()


def test_join_with_uneven_inputs(three: Ranks) -> None:
    """DDP still calls the hook of a rank that has joined, with buckets of zeros (#61020), outside
    of any backward, where no callback can be queued for the end of backward. The rank goes on
    sending its residual.
    """
    three.run(uneven)


def uneven_and_scaled(strategy: str) -> str:
    """Rank r has 1 + r inputs; a rank without any more does not see the scale change."""
    model = small()
    ddp, scaler = DistributedDataParallel(model), torch.amp.GradScaler("cpu")
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with attached(ddp, strategy, scaler=scaler):
        try:
            with Join([ddp]):
                for step in range(1 + dist.get_rank()):
                    scaler.scale(loss_of(ddp, step)).backward()
                    scaler.step(optimizer)
                    scaler.update()
        except UsageError as error:
            return str(error)
    return "trained"


def test_join_with_a_scaler_is_refused_where_a_strategy_remembers(three: Ranks) -> None:
    assert all("a GradScaler inside a Join" in said for said in three.run(uneven_and_scaled, TOPK))
    assert three.run(uneven_and_scaled, "none | allreduce") == ["trained"] * 3


def divided_otherwise() -> str:
    ddp = DistributedDataParallel(small())

    def run() -> None:
        with ddp.join(divide_by_initial_world_size=False):
            loss_of(ddp).backward()

    with attached(ddp, "none | allreduce"):
        said = raised(run)
    ddp.zero_grad()
    wanted = {name: mean(g) for name, g in local_gradients(ddp.module).items()}
    loss_of(ddp).backward()  # DDP was done when it was refused, so DDP goes on
    close(gradients(ddp.module), wanted)
    return said


def test_an_average_is_that_of_all_ranks(three: Ranks) -> None:
    """join(divide_by_initial_world_size=False) divides by the ranks that are left, in DDP itself,
    and does not notify a communication hook."""
    assert all("got divide_by_initial" in said for said in three.run(divided_otherwise))


# -- one hook, for good ----------------------------------------------------------------------


def one_hook() -> None:
    model = small()
    ddp = DistributedDataParallel(model)
    with attached(ddp, TOPK):
        assert "detach" in raised(lambda: gradwire.attach(ddp, TOPK))
        assert "detach" in raised(lambda: gradwire.attach(model, TOPK))
        loss_of(ddp).backward()
    text = raised(lambda: gradwire.attach(ddp, TOPK))  # for good means for good
    assert "Wrap the module again" in text
    model.zero_grad()
    expected = {n: mean(g) for n, g in local_gradients(model).items()}
    loss_of(ddp).backward()  # after detach DDP reduces as it always did
    close(gradients(model), expected)
    taken = DistributedDataParallel(small())
    taken.register_comm_hook(None, somebody_elses)
    assert "has one already" in raised(lambda: gradwire.attach(taken, TOPK))
    with attached(DistributedDataParallel(model), LOSSLESS):
        pass


def somebody_elses(state, bucket):  # type: ignore[no-untyped-def]
    raise NotImplementedError


def test_one_hook_per_ddp(three: Ranks) -> None:
    """register_comm_hook can be called once and not undone; its bare error says neither who has
    registered a hook nor what to do. A failed attach leaves no thread and no group behind.
    """
    three.run(one_hook)


def hook_of(ddp: DistributedDataParallel) -> Any:
    """Returns the hook that attach registers."""
    caught: list[Any] = []
    ddp.register_comm_hook = lambda state, hook: caught.append(hook)  # type: ignore[method-assign]
    handle = gradwire.attach(ddp, TOPK, timeout_seconds=20.0)
    handle.detach()
    return caught[0]


def signature() -> None:
    hook = hook_of(DistributedDataParallel(small()))
    found = inspect.signature(hook)
    assert list(found.parameters)[1] == "bucket"
    for p in found.parameters.values():
        assert not isinstance(p.annotation, str)
    assert hook.__name__
    p = nn.Parameter(torch.zeros(2))
    text = raised(lambda: hook(None, (torch.zeros(2), p)))
    assert "python_reducer" in text
    assert "optimize_ddp" in text


def test_the_hooks_signature(three: Ranks) -> None:
    """DDP wants a plain function whose second parameter is called 'bucket' (KeyError otherwise),
    whose annotations are no strings (so no `from __future__ import annotations` beside it), with a
    __name__ (so no partial, no callable instance). torch.compile's python_reducer calls the very
    hook with a tuple (gradient, parameter) and ignores what it returns: refused, not ignored.
    """
    three.run(signature)


def reduced_in_python() -> str:
    with torch._dynamo.config.patch(optimize_ddp="python_reducer"):
        ddp = DistributedDataParallel(small())
        with attached(ddp, TOPK):
            compiled = torch.compile(ddp, backend="aot_eager")
            return raised(lambda: compiled(batch()).square().mean().backward())


def test_the_python_reducer_is_refused(tmp_path: Path) -> None:
    """A compiled model's run refuses that reducer, too. It has processes of its own, since what
    torch has compiled for the reducer outlives it."""
    with Ranks(2, tmp_path) as ranks:
        for text in ranks.run(reduced_in_python):
            assert "Set torch._dynamo.config.optimize_ddp = True" in text


def twice(strategy: str, between: str) -> str:
    ddp = DistributedDataParallel(small())
    with attached(ddp, strategy) as handle:
        for step in range(3):
            loss_of(ddp, step).backward()
            nn.utils.clip_grad_norm_(ddp.parameters(), 1e-3)
            ddp.zero_grad(set_to_none=between == "none") if between else None
            if between == "accumulates":
                with handle.no_sync():
                    loss_of(ddp, 9).backward()
        ddp.zero_grad()
        loss_of(ddp).backward()
        try:
            loss_of(ddp).backward()
        except UsageError as error:
            said = str(error)
        else:
            return "not refused"
        ddp.zero_grad()
        loss_of(ddp).backward()
    return said


@pytest.mark.parametrize("between", ["none", "zeros", "accumulates"])
def test_a_second_backward_is_refused(three: Ranks, between: str) -> None:
    """DDP hands over the last average and what was added to it if zero_grad() was not called."""
    for said in three.run(twice, TOPK, between):
        assert "one backward() per step" in said


def test_without_memory_backwards_accumulate(three: Ranks) -> None:
    assert three.run(twice, "none | allreduce", "none") == ["not refused"] * 3


# -- sparse, compiled, grouped ---------------------------------------------------------------


class Words(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(10, 4, sparse=True)
        self.top = nn.Linear(4, 2)

    def forward(self, words: Tensor) -> Tensor:
        return self.top(self.table(words)).sum()


def sparse_table() -> list[int]:
    ddp = DistributedDataParallel(Words())
    with attached(ddp, LOSSLESS, timeout_seconds=5.0):
        ddp(torch.tensor([dist.get_rank(), 7, 7])).backward()
        return ddp.module.table.weight.grad.indices()[0].tolist()


def test_a_sparse_bucket_is_not_skipped_silently(three: Ranks) -> None:
    """The gradient of nn.Embedding(sparse=True) has a bucket of its own, whose gradients() is an
    empty list. A hook that loops over it exchanges nothing, and replicas drift apart without an
    error.
    """
    for rows in three.run(sparse_table):
        assert rows == [0, 1, 2, 7]


def channels_last() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Conv2d(4, 2, 1))
    model.to(memory_format=torch.channels_last)
    plain = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Conv2d(4, 2, 1))
    plain.load_state_dict(model.state_dict())
    plain.to(memory_format=torch.channels_last)
    ddp = DistributedDataParallel(model)
    with attached(ddp, TOPK) as one, attached(plain, TOPK) as two:
        for step in range(5):
            generator = torch.Generator().manual_seed(10 * step + dist.get_rank())
            x = torch.randn(2, 3, 6, 6, generator=generator)
            x = x.to(memory_format=torch.channels_last)
            for module in (ddp, plain):
                module.zero_grad()
                module(x).square().mean().backward()
            close(gradients(model), gradients(plain))
        kept = residuals(two)
        for name, value in residuals(one).items():
            torch.testing.assert_close(value, kept[name], msg=name)


def test_channels_last_state_is_in_the_parameters_order(three: Ranks) -> None:
    """DDP's bucket holds a channels_last gradient in memory order and shows it as if it were in
    the order of its indices. State kept that way would be scrambled when a checkpoint moves
    between DDP and a plain module.
    """
    three.run(channels_last)


def subgroup() -> None:
    """Ranks 0 and 2 train together; rank 1 does not even attach."""
    rank = dist.get_rank()
    group = dist.new_group([0, 2])
    if rank != 1:
        for ddp in (False, True):
            model = small(seed=rank)
            wrapped = DistributedDataParallel(model, process_group=group) if ddp else model
            options = {} if ddp else {"process_group": group}
            with attached(wrapped, LOSSLESS, lanes=2, **options) as handle:
                for step in range(3):
                    wrapped.zero_grad()
                    expected = local_gradients(model, step)
                    loss_of(wrapped, step).backward()
                    for name, g in gradients(model).items():
                        parts = [torch.empty_like(g), torch.empty_like(g)]
                        dist.all_gather(parts, expected[name], group=group)
                        torch.testing.assert_close(g, (parts[0] + parts[1]) / 2)
                assert handle.stats()["steps"] == 3
    dist.barrier()
    model = small()  # and then all of them, again with plain new groups
    with attached(model, LOSSLESS, lanes=2):
        expected = {n: mean(g) for n, g in local_gradients(model).items()}
        loss_of(model).backward()
        close(gradients(model), expected)


def count_every_group() -> None:
    """Names groups as torch does from 2.15 on: those of some ranks by how many groups this rank
    has made, and these count like all others. A later torch does so by itself."""
    torchs = dist.distributed_c10d
    torchs._hash_ranks_to_str = lambda ranks: f"{ranks} {torchs._world.group_count}"

    def name(ranks: list[int], use_hashed_name: bool) -> str:
        count = torchs._world.group_count
        torchs._world.group_count += 1
        return torchs._hash_ranks_to_str(ranks) if use_hashed_name else str(count)

    torchs._process_group_name = name


@pytest.mark.parametrize("counts", [False, True])
def test_a_group_of_some_ranks(tmp_path: Path, counts: bool) -> None:
    """dist.new_group must by default be called by every rank of the world, or it hangs; only a
    group's own ranks need to attach to it.
    """
    with Ranks(3, tmp_path) as ranks:
        if counts:
            ranks.run(count_every_group)
        ranks.run(subgroup)


def halves() -> None:
    """Trains two groups side by side, and then one of all ranks."""
    rank = dist.get_rank()
    groups = [dist.new_group([0]), dist.new_group([1, 2])]
    mine = groups[0] if rank == 0 else groups[1]
    model = small()
    with attached(model, TOPK, process_group=mine):
        for step in range(2):
            model.zero_grad()
            loss_of(model, step).backward()
    dist.barrier()


def test_groups_side_by_side(tmp_path: Path) -> None:
    """Attaching works with every rank in some group, too."""
    with Ranks(3, tmp_path) as ranks:
        ranks.run(halves)


class Wide(nn.Module):
    """Three layers of 1 MB, so more than one of DDP's smallest buckets."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(512, 512) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return x


def compiled() -> str:
    torch.manual_seed(0)
    wide = Wide()
    mine = torch.randn(4, 512, generator=torch.Generator().manual_seed(dist.get_rank()))
    wide(mine).square().mean().backward()
    expected = {n: mean(p.grad) for n, p in wide.named_parameters()}
    ddp, graphs = DistributedDataParallel(wide, bucket_cap_mb=1), 0
    with attached(ddp, LOSSLESS):

        def backend(graph: Any, inputs: Any) -> Any:
            nonlocal graphs
            graphs += 1
            return lookup_backend("aot_eager")(graph, inputs)

        run = torch.compile(ddp, backend=backend)
        for _ in range(3):
            wide.zero_grad()
            run(mine).square().mean().backward()
            close(gradients(wide), expected)
    assert graphs == 3, "not cut"
    model = small()
    ddp = DistributedDataParallel(model)
    expected = {n: mean(g) for n, g in local_gradients(model).items()}
    with attached(ddp, LOSSLESS):
        run = torch.compile(ddp, backend="aot_eager")
        for _ in range(3):
            model.zero_grad()
            run(batch()).square().mean().backward()
            close(gradients(model), expected)
    plain = small()
    with attached(plain, LOSSLESS) as handle:
        run = torch.compile(plain, backend="aot_eager")
        plain.zero_grad()
        run(batch()).square().mean().backward()
        close(gradients(plain), expected)
        assert handle.stats()["steps"] == 1
    return "right"


@pytest.mark.full
def test_compiled_modules(three: Ranks) -> None:
    """DDPOptimizer cuts the graph at bucket borders and still calls the hook."""
    pytest.importorskip("torch._dynamo")
    three.run(compiled, timeout_seconds=120)


def fused() -> None:
    model = small()
    ddp = DistributedDataParallel(model)
    with attached(ddp, LOSSLESS, clip_norm=1e-3):
        for step in range(3):
            model.zero_grad()
            mine = local_gradients(model, step)
            norm = torch.stack([g.norm() for g in mine.values()]).norm()
            scale = 1e-3 * 3**0.5 / float(norm)
            assert scale < 1
            loss_of(ddp, step).backward()
            for name, g in gradients(model).items():
                torch.testing.assert_close(g, mean(mine[name] * scale), rtol=1e-5, atol=1e-9)


def test_clipping_under_ddp(three: Ranks) -> None:
    """Local clipping needs all gradients before the first is sent; DDP hands them over one bucket
    after the other, and waits for their futures only at the end.
    """
    three.run(fused)

"""adam beside AdamW, and muon beside Muon, in jobs: own views, shared weights at rest, resumes,
and what is refused."""

from __future__ import annotations

import io
import warnings
from typing import Any
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist
from ranks import Ranks
from small import attached, batch, entry, fingerprint, from_all, loss_of, raised, small
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import gradwire
from gradwire.errors import PlanError
from gradwire.training.module import Averages
from gradwire.training.trainable import shard_of

PLAN = "lloyd(2, turns=2)+adam(beta2=0.99) | alltoall"
MUON = "lloyd(1, turns=2)+muon(beta2=0.99) | alltoall"
REST = 'lloyd(1)+muon(beta2=0.99, rest="qsgd(4) | alltoall") | alltoall(means="lloyd(2)")'
FINER = "lloyd(2) | allgather"
PLANS: dict[str, dict[str, Any]] = {
    "adam": {"plan": PLAN}, "muon": {"plan": MUON},
    "warm adam": {"plan": PLAN, "warmup": gradwire.Warmup(6, [FINER])},
    "muon in turns": {"plan": "lloyd(2)+muon(beta2=0.99, turns=2) | alltoall"},
    "muon and rest": {"plan": REST, "warmup": gradwire.Warmup(3, [FINER])},
}  # fmt: skip
BETAS = (0.9, 0.99)

each = pytest.mark.parametrize("kind", PLANS)
"""With Muon, the first matrix is hidden. The second, which is the last, travels by adam or as the
rest does."""


class Wide(nn.Module):
    """Matrices that are large enough to be compressed."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(50, 64), nn.Linear(64, 40)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(torch.tanh(self.first(x.reshape(len(x), -1))))


def wide(seed: int = 0) -> Wide:
    torch.manual_seed(seed)
    return Wide()


def adamw(model: nn.Module, rate: float = 1e-2) -> torch.optim.Optimizer:
    return gradwire.optim.AdamW(model.parameters(), rate, betas=BETAS)


def made(kind: str, model: nn.Module) -> torch.optim.Optimizer:
    return adamw(model) if "adam" in kind else gradwire.optim.Muon.of(model, lr=1e-2, betas=BETAS)


def train(model: nn.Module, steps: range, optimizer: torch.optim.Optimizer | None = None) -> None:
    """Trains at a learning rate that falls."""
    optimizer = optimizer or adamw(model)
    for step in steps:
        for group in optimizer.param_groups:
            group["lr"] = 1e-2 * 0.9**step
        optimizer.zero_grad()
        loss_of(model, step).backward()
        optimizer.step()


def are_equal(model: nn.Module) -> bool:
    """Whether all ranks have the same weights. Collective."""
    whole = torch.cat([p.detach().view(-1) for p in model.parameters()])
    return all(torch.equal(whole, other) for other in from_all(whole))


def trained(kind: str, ddp: bool) -> tuple[str, bool, float]:
    model = wide()
    whole = DistributedDataParallel(model) if ddp else model
    with attached(whole, **PLANS[kind]) as handle:
        train(whole, range(7), made(kind, model))
        waits = float(handle.stats()["residual_norm"])
        return fingerprint(model.parameters()), are_equal(model), waits


@each
def test_weights_are_equal_on_all_ranks_and_frontends(two: Ranks, kind: str) -> None:
    found = [two.run(trained, kind, ddp) for ddp in (False, True)]
    prints = {rank[0] for ranks in found for rank in ranks}
    assert len(prints) == 1
    assert all(equal and waits > 0 for ranks in found for _, equal, waits in ranks)


def views(kind: str) -> dict[str, bool]:
    """Where the weights are at each moment of a step: at rest or at the rank's own view."""
    model, seen = wide(), dict[str, Tensor]()
    with attached(model, **PLANS[kind]) as handle:
        optimizer = made(kind, model)
        train(model, range(3), optimizer)
        memory = handle._session.ledger.memory["first.weight"]
        rest = model.first.weight.detach().clone()
        model.first.register_forward_pre_hook(
            lambda module, _: seen.update(view=module.weight.detach().clone())
        )
        model.eval()
        model(batch(0))
        evaluated = seen["view"]
        model.train()
        with torch.no_grad():
            model(batch(0))
        looked = seen["view"]
        optimizer.zero_grad()
        loss_of(model, 3)
        entered, kept = seen["view"], memory["residual"].view_as(rest).clone()
        saved = model.state_dict()["first.weight"].clone()
        loss_of(model, 3).backward()
        optimizer.step()
        equal = are_equal(model)
    after = model.first.weight.detach().clone()
    model.train()
    loss_of(model, 4)
    return {
        "evaluated at rest": torch.equal(evaluated, rest),
        "without gradients at rest": torch.equal(looked, rest),
        "trained elsewhere": not torch.equal(entered, rest),
        "each rank elsewhere": not torch.equal(*from_all(entered)),
        "no memory taken": torch.equal(kept, rest),
        "saved at rest": torch.equal(saved, rest),
        "equal after": equal,
        "detached it stays": torch.equal(seen["view"], after),
    }


@each
def test_a_rank_computes_at_its_own_view_and_shares_what_rests(two: Ranks, kind: str) -> None:
    for found in two.run(views, kind):
        assert all(found.values()), found


def evaluated_inside(amid: bool) -> str:
    """What a module that DDP wraps computes when it is evaluated by itself, also amid gradients
    that accumulate."""
    model = wide()
    whole = DistributedDataParallel(model)
    with attached(whole, PLAN) as handle:
        train(whole, range(3))
        if amid:
            with handle.no_sync():
                loss_of(whole, 3).backward()
        model.eval()
        with torch.no_grad():
            return fingerprint([whole(batch(0, 0)), model(batch(0, 0))])


def test_a_wrapped_module_is_evaluated_at_rest(two: Ranks) -> None:
    assert len({*two.run(evaluated_inside, False), *two.run(evaluated_inside, True)}) == 1


def resumed(kind: str) -> bool:
    """Whether four steps, a checkpoint and four more give the bits of eight."""
    model = wide()
    with attached(model, **PLANS[kind]) as handle:
        train(model, range(8), made(kind, model))
        wanted, kept = fingerprint(model.parameters()), entry(handle)["state"]
        kept = {n: {k: v.clone() for k, v in own.items()} for n, own in kept.items()}
    model, file = wide(), io.BytesIO()
    with attached(model, **PLANS[kind]) as handle:
        optimizer = made(kind, model)
        train(model, range(4), optimizer)
        parts = {"model": model.state_dict(), "gradwire": handle.state_dict(),
                 "optimizer": optimizer.state_dict()}  # fmt: skip
        torch.save(parts, file)
    file.seek(0)
    saved, model = torch.load(file, weights_only=True), wide(seed=9)
    model.load_state_dict(saved["model"])
    with attached(DistributedDataParallel(model), **PLANS[kind], bucket_bytes=6000) as handle:
        optimizer = made(kind, model)
        optimizer.load_state_dict(saved["optimizer"])
        handle.load_state_dict(saved["gradwire"])
        train(handle_of(model), range(4, 8), optimizer)
        same = entry(handle)["state"]
        assert all(torch.equal(same[n][k], v) for n, own in kept.items() for k, v in own.items())
    return fingerprint(model.parameters()) == wanted


def handle_of(model: nn.Module) -> nn.Module:
    """The module to call, so that the gradients of the model are exchanged."""
    (owner,) = {id(o): o for o in _owners(model)}.values()
    return owner._view._module  # type: ignore[no-any-return]


def _owners(model: nn.Module) -> list[Any]:
    from gradwire.training.attached import _ATTACHED

    return [_ATTACHED[p].detach.__self__ for p in model.parameters()]


@each
def test_a_resume_goes_on_bit_by_bit(two: Ranks, kind: str) -> None:
    assert two.run(resumed, kind) == [True, True]


def sent() -> tuple[bool, bool, bool]:
    """Whether, during a backward, a matrix whose gradient was sent is at rest and another is not,
    and all are at rest after it."""
    model, seen = wide(), dict[str, Tensor]()
    with attached(model, PLAN, bucket_bytes=6000):
        optimizer = adamw(model)
        train(model, range(3), optimizer)
        rest = {name: p.detach().clone() for name, p in model.named_parameters()}

        def look(_: object) -> None:
            seen.update({name: p.detach().clone() for name, p in model.named_parameters()})

        def watch(module: object, _: object, output: Tensor) -> None:
            output.register_hook(look)

        model.first.register_forward_hook(watch)
        optimizer.zero_grad()
        loss_of(model, 3).backward()
        amid = torch.equal(seen["second.weight"], rest["second.weight"])
        still = torch.equal(seen["first.weight"], rest["first.weight"])
        after = all(torch.equal(p, rest[name]) for name, p in model.named_parameters())
    return amid, not still, after


def test_what_is_sent_is_at_rest_while_others_are_not(two: Ranks) -> None:
    assert two.run(sent) == [(True, True, True)] * 2


def changed(amid: bool) -> str:
    """Weights after the plan changed at the third step, as a backward begins (by a warm-up) or
    between two steps."""
    model = wide()
    finer, warmup = "lloyd(2)+adam(beta2=0.99) | allgather", gradwire.Warmup(3, [FINER])
    with attached(model, PLAN) as handle:
        plan = handle.plan
    with attached(
        model, **{"plan": PLAN, "warmup": warmup} if amid else {"plan": finer}
    ) as handle:
        optimizer = adamw(model)
        train(model, range(3), optimizer)
        if not amid:
            handle.adopt(plan)
        train(model, range(3, 6), optimizer)
        assert handle.plan == plan
    return fingerprint(model.parameters())


def test_a_plan_that_changes_amid_the_own_view_is_told_what_waits(two: Ranks) -> None:
    assert two.run(changed, True) == two.run(changed, False)


def looked_at(amid: bool) -> Tensor:
    """Weights after training with or without statistics, a state and an evaluation between each
    forward and its backward."""
    model = wide()
    with attached(model, PLAN) as handle:
        optimizer = adamw(model)
        for step in range(4):
            waits = handle.stats()["residual_norm"]
            optimizer.zero_grad()
            loss = loss_of(model, step)
            if amid:
                memory = handle._session.ledger.memory["first.weight"].get("residual")
                kept = None if memory is None else memory.clone()
                assert handle.stats()["residual_norm"] == pytest.approx(waits, rel=1e-4)
                assert kept is None or torch.equal(kept, memory), "who looks writes nothing"
                handle.state_dict()
                model.eval()
                model(batch(0))
                model.train()
            loss.backward()
            optimizer.step()
        own = entry(handle)["state"]["first.weight"]["residual"].clone()
        loss_of(model, 4)
        saved = entry(handle)["state"]["first.weight"]["residual"]
        torch.testing.assert_close(saved, own, atol=1e-4, rtol=1e-4)
    return torch.cat([p.detach().view(-1) for p in model.parameters()])


def test_looking_amid_the_own_view_changes_nothing(two: Ranks) -> None:
    for ours, theirs in zip(two.run(looked_at, True), two.run(looked_at, False)):
        torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=0)


def evaluated_between() -> bool:
    """Whether an evaluation is the same after a forward in training mode that has no backward."""
    model, seen = wide(), list[Tensor]()
    with attached(model, PLAN):
        optimizer = adamw(model)
        train(model, range(3), optimizer)
        model.eval()
        seen.append(model(batch(0, 0)).detach())
        model.train()
        model(batch(1))
        model.eval()
        seen.append(model(batch(0, 0)).detach())
    return torch.equal(*seen)


def test_an_evaluation_is_of_the_shared_weights(two: Ranks) -> None:
    assert two.run(evaluated_between) == [True, True]


def needed_later(how: str) -> str:
    """The error of a backward that needs a weight at the own view after its gradient has come, or
    after all weights have left it."""
    model = wide()
    with attached(model, PLAN):
        optimizer = adamw(model)
        train(model, range(3), optimizer)
        optimizer.zero_grad()
        x = batch(3).reshape(4, -1).requires_grad_()
        loss = model(x).square().mean()
        if how == "two graphs":
            loss.backward(retain_graph=True)
            return raised(lambda: torch.autograd.grad(loss, [x]), RuntimeError)
        if how == "saved between":
            model.state_dict()
            return raised(loss.backward, RuntimeError)
        earlier = x[:, :40] @ model.second.weight.detach()
        loss = model.second(torch.tanh(model.first(x) + earlier)).square().mean()
        return raised(loss.backward, RuntimeError)


@pytest.mark.parametrize("how", ["two graphs", "saved between", "detached"])
def test_what_wants_weights_after_their_gradient_is_told(two: Ranks, how: str) -> None:
    for said in two.run(needed_later, how):
        assert "modified by an inplace operation" in said


def copied() -> bool:
    """Copies a model for a moving average of its weights, and pickles it."""
    model = wide()
    with attached(model, PLAN):
        train(model, range(2))
        average = torch.optim.swa_utils.AveragedModel(model)
        train(model, range(2, 3))
        average.update_parameters(model)
        average(batch(0))
        pickled = io.BytesIO()
        torch.save(model, pickled)
        return are_equal(average)


def test_a_model_is_copied_and_pickled(two: Ranks) -> None:
    assert two.run(copied) == [True, True]


def first_spoiled(kind: str) -> bool:
    """Whether training recovers from a first step that is not finite, as with the usual first
    scale of a GradScaler; with turns a matrix rests in it."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Flatten(), nn.Linear(50, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 40)
    )
    with attached(model, **PLANS[kind]):
        optimizer = made(kind, model)
        (loss_of(model, 0) * torch.inf).backward()
        optimizer.zero_grad()
        train(model, range(1, 6), optimizer)
        whole = torch.cat([p.detach().view(-1) for p in model.parameters()])
        return are_equal(model) and bool(whole.isfinite().all())


@each
def test_a_first_step_may_be_spoiled(two: Ranks, kind: str) -> None:
    assert two.run(first_spoiled, kind) == [True, True]


def saved_by(kind: str) -> bytes:
    model, file = wide(), io.BytesIO()
    with attached(model, **PLANS[kind]) as handle:
        train(model, range(5), made(kind, model))
        torch.save((model.state_dict(), handle.state_dict()), file)
    return file.getvalue()


def loaded_from(kind: str, files: list[bytes]) -> dict[str, float]:
    saved = [torch.load(io.BytesIO(file), weights_only=True) for file in files]
    model = wide(seed=3)
    model.load_state_dict(saved[0][0])
    with attached(model, **PLANS[kind]) as handle:
        handle.load_state_dict([state for _, state in saved])
        state = entry(handle)["state"]["first.weight"]
        sums = {key: float(x.double().sum()) for key, x in state.items()}
        train(model, range(5, 8), made(kind, model))
        assert are_equal(model)
    return sums


@each
def test_moments_are_averaged_where_ranks_are_fewer(two: Ranks, three: Ranks, kind: str) -> None:
    files = three.run(saved_by, kind)
    own = [next(iter(torch.load(io.BytesIO(f), weights_only=True)[1]["ranks"].values()))
           for f in files]  # fmt: skip
    state = [ranks["state"]["first.weight"] for ranks in own]
    first, _ = two.run(loaded_from, kind, files)
    for key in ("exp_avg", "exp_avg_sq") if "adam" in kind else ("exp_avg",):
        # Rank 0 takes up the states of ranks 0 and 2.
        wanted = (state[0][key].double().sum() + state[2][key].double().sum()) / 2
        assert first[key] == pytest.approx(float(wanted), rel=1e-4)
    assert "noise" not in first, "it is measured anew, among so many as there are"


def by_closures() -> bool:
    """Whether steps with a closure give the bits of steps without, though the view is entered
    inside the step."""
    prints = []
    for closes in (False, True):
        model = wide()
        with attached(model, PLAN):
            optimizer = adamw(model)
            for step in range(5):

                def closure(model: nn.Module = model, step: int = step) -> float:
                    model.zero_grad()
                    loss = loss_of(model, step)
                    loss.backward()
                    return float(loss.detach())

                if closes:
                    optimizer.step(closure)
                else:
                    closure()
                    optimizer.step()
            prints.append(fingerprint(model.parameters()))
            assert are_equal(model)
    return prints[0] == prints[1]


def test_a_closure_may_do_the_backward(two: Ranks) -> None:
    assert two.run(by_closures) == [True, True]


def looked_again() -> bool:
    """Whether weights stay equal where a closure's last forward has entered the view anew."""
    model = wide()
    with attached(model, PLAN):
        optimizer = adamw(model)
        for step in range(3):

            def closure(step: int = step) -> float:
                model.zero_grad()
                loss_of(model, step).backward()
                return float(loss_of(model, step).detach())

            optimizer.step(closure)
        return are_equal(model)


def test_a_closure_may_look_again(two: Ranks) -> None:
    assert two.run(looked_again) == [True, True]


def accumulated(kind: str) -> bool:
    """Two forwards in the same view, and one exchange."""
    model, views = wide(), list[Tensor]()
    model.first.register_forward_pre_hook(
        lambda module, _: views.append(module.weight.detach().clone())
    )
    with attached(model, **PLANS[kind]) as handle:
        optimizer = made(kind, model)
        for step in range(3):
            optimizer.zero_grad()
            with handle.no_sync():
                loss_of(model, 2 * step).backward()
            loss_of(model, 2 * step + 1).backward()
            optimizer.step()
        return torch.equal(views[-1], views[-2]) and are_equal(model)


@each
def test_accumulated_gradients_are_of_one_view(two: Ranks, kind: str) -> None:
    assert two.run(accumulated, kind) == [True, True]


def refusals() -> list[str]:
    model = wide()
    with attached(model, PLAN):
        loss_of(model).backward()
        made = (
            torch.optim.AdamW(model.parameters(), betas=BETAS),
            gradwire.optim.AdamW(model.parameters(), betas=(0.8, 0.99)),
            gradwire.optim.AdamW(model.parameters(), betas=BETAS, amsgrad=True),
            gradwire.optim.SGD(model.parameters(), 0.1),
        )
        return [raised(optimizer.step) for optimizer in made]


def test_moments_are_kept_in_one_place(two: Ranks) -> None:
    for theirs, betas, amsgrad, sgd in two.run(refusals):
        assert "Use gradwire.optim.AdamW(betas=(0.9, 0.99)" in theirs
        assert "AdamW has betas=(0.8, 0.99)" in betas
        assert "does not support amsgrad" in amsgrad
        assert "keeps those of gradwire.optim.AdamW" in sgd


def refusals_beside_muon() -> list[str]:
    model = wide()
    with attached(model, MUON):
        loss_of(model).backward()
        both = gradwire.optim.Muon.of(model, betas=BETAS, momentum=0.9)
        all_adaptive = gradwire.optim.Muon([{"params": list(model.parameters()), "muon": False}])
        ours = gradwire.optim.AdamW(model.parameters(), betas=BETAS)
        theirs = torch.optim.Muon([model.first.weight])
        rest = gradwire.optim.Muon.of(model, betas=(0.9, 0.95))
        optimizers = (both, all_adaptive, ours, theirs, rest)
        return [raised(optimizer.step) for optimizer in optimizers]


def test_the_plan_and_muon_agree_on_every_matrix(two: Ranks) -> None:
    for momentum, adaptive, ours, theirs, rest in two.run(refusals_beside_muon):
        assert "Make them equal: 'muon(momentum=0.9, beta2=0.99)'" in momentum
        assert "keeps those of gradwire.optim.Muon" in adaptive
        assert "keeps those of gradwire.optim.Muon" in ours
        assert "Use gradwire.optim.Muon(momentum=0.95, nesterov=True)" in theirs
        assert "Make them equal: 'muon(beta2=0.95)'" in rest  # not server_adam, which it implies


def grouped() -> list[str]:
    """The optimizer that attach gets says which matrices are Muon's."""
    model = wide()
    rest = [model.first.weight, model.first.bias, model.second.bias]
    groups = [{"params": [model.second.weight]}, {"params": rest, "muon": False}]
    optimizer = gradwire.optim.Muon(groups, betas=BETAS)
    with attached(model, MUON, optimizer=optimizer) as handle:
        train(model, range(3), optimizer)
        assert are_equal(model)
        names = ("first.weight", "second.weight", "first.bias")
        found = [handle.plan.strategy_of(name).feedback for name in names]
        return [feedback.name for feedback in found if feedback]


def test_the_optimizer_says_which_matrices_are_muon_s(two: Ranks) -> None:
    assert two.run(grouped) == [["adam", "muon", "server_adam"]] * 2


def warm_muon() -> str:
    model = wide()
    try:
        with attached(model, MUON, warmup=9):
            return "attached"
    except PlanError as error:
        return str(error)


def test_muon_has_no_dense_warm_up(two: Ranks) -> None:
    for said in two.run(warm_muon):
        assert "'muon(beta2=0.99)' has no dense form" in said
        assert "gradwire.Warmup(steps, ['lloyd(2) | allgather'])" in said


def called_in_parts() -> list[str]:
    model = wide()
    with warnings.catch_warnings(record=True) as caught, attached(model, PLAN):
        warnings.simplefilter("always")
        optimizer = adamw(model)
        for step in range(4):
            optimizer.zero_grad()
            hidden = torch.tanh(model.first(batch(step).reshape(4, -1)))
            model.second(hidden).square().mean().backward()
            optimizer.step()
        return [str(w.message) for w in caught if w.category is UserWarning]


def test_a_model_that_is_called_in_parts_is_told_of_once(two: Ranks) -> None:
    for found in two.run(called_in_parts):
        assert len(found) == 1
        assert "Call the module that was attached" in found[0]


def small_ones() -> bool:
    """Whether excluded parameters are trained by dense AdamW."""
    one, other = small(), small()
    names = [name for name, _ in one.named_parameters()]
    with attached(one, "lloyd(1)+adam(beta2=0.99) | allgather", exclude=names):
        train(one, range(6))
    with attached(other, "none | allreduce"):
        train(other, range(6), torch.optim.AdamW(other.parameters(), betas=BETAS))
    pairs = zip(one.parameters(), other.parameters())
    return all(torch.allclose(p, q, atol=1e-5) for p, q in pairs)


def test_what_travels_dense_is_dense_adamw(two: Ranks) -> None:
    assert two.run(small_ones) == [True, True]


def scaled(kind: str, with_scaler: bool, frontend: str = "plain") -> tuple[str, float, float]:
    """Eight steps, of which rank 1 spoils one by inf, and then a flush."""
    torch.manual_seed(0)
    model = wide()
    whole = DistributedDataParallel(model) if frontend == "ddp" else model
    scaler = torch.amp.GradScaler(
        "cpu", init_scale=2.0**10, growth_interval=2, enabled=with_scaler
    )  # fmt: skip
    with attached(whole, **PLANS[kind], scaler=scaler, clip_norm=0.5) as handle:
        optimizer = made(kind, model)
        for step in range(8):
            optimizer.zero_grad()
            loss = loss_of(whole, step)
            spoiled = step == 4
            if spoiled and dist.get_rank() == 1:
                loss = loss * torch.inf
            scaler.scale(loss).backward()
            if with_scaler or not spoiled:
                scaler.step(optimizer)
            scaler.update()
        assert are_equal(model)
        reached = scaler.get_scale()
        waits = handle.stats()["residual_norm"]
        if kind != "muon in turns":
            optimizer.zero_grad()
            handle.flush()
            scaler.step(optimizer)
    return fingerprint(model.parameters()), reached, waits


@pytest.mark.once
@pytest.mark.parametrize("frontend", ["plain", "ddp"])
@each
def test_the_scale_of_a_loss_is_none_of_steps(two: Ranks, kind: str, frontend: str) -> None:
    (one, scale, waits), *others = two.run(scaled, kind, True, frontend)
    assert scale > 2.0**10
    assert waits > 0
    assert [(one, scale)] == [(x, y) for x, y, _ in others]
    assert [x for x, *_ in two.run(scaled, kind, False, frontend)] == [one, one]


def stepped_without() -> str:
    """The error of a step that the optimizer takes, though a scaler scaled the loss."""
    model = wide()
    scaler = torch.amp.GradScaler("cpu")
    with attached(model, PLAN, scaler=scaler):
        optimizer = adamw(model)
        scaler.scale(loss_of(model, 0)).backward()
        return raised(optimizer.step)


def scaled_step(
    model: torch.nn.Module, optimizer: Any, scaler: torch.amp.GradScaler, step: int
) -> None:
    optimizer.zero_grad()
    scaler.scale(loss_of(model, step)).backward()
    scaler.step(optimizer)
    scaler.update()


def flushed_without() -> str:
    model, scaler = wide(), torch.amp.GradScaler("cpu")
    with attached(model, PLAN, scaler=scaler) as handle:
        optimizer = adamw(model)
        for step in range(3):
            scaled_step(model, optimizer, scaler, step)
        optimizer.zero_grad()
        handle.flush()
        return raised(optimizer.step)


def test_a_step_is_taken_by_the_scaler(two: Ranks) -> None:
    for said in (*two.run(stepped_without), *two.run(flushed_without)):
        assert "Step by scaler.step(optimizer)" in said


def states_made(plan: str) -> bool:
    """Whether weights stay equal though torch makes states on rank 0 alone: for an optimizer that
    has none, as the plan keeps them, or as it needs none."""
    model, scaler = wide(), torch.amp.GradScaler("cpu", init_scale=2.0**10)
    window = patch("gradwire.training.guard.WINDOW", 2)
    with window, attached(model, plan, scaler=scaler, guard=True):
        optimizer = adamw(model) if plan == PLAN else torch.optim.SGD(model.parameters(), 1e-3)
        for step in range(4):
            scaled_step(model, optimizer, scaler, step)
            optimizer.zero_grad()
            before = fingerprint(model.parameters())
            if dist.get_rank() == 0:
                get_optimizer_state_dict(model, optimizer)
            assert fingerprint(model.parameters()) == before
        return are_equal(model)


@pytest.mark.parametrize("plan", [PLAN, "sign | vote", "qsgd(4) | alltoall"])
def test_a_step_that_makes_states_is_none(two: Ranks, plan: str) -> None:
    assert all(two.run(states_made, plan))


def half_precision(fused: bool) -> list[float]:
    model = wide()
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16)
    with attached(model, "lloyd(2)+adam(beta2=0.99) | allgather", scaler=scaler):
        optimizer = gradwire.optim.AdamW(model.parameters(), 1e-2, betas=BETAS, fused=fused)
        losses = []
        for step in range(25):
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.float16):
                loss = loss_of(model, step % 2)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            losses.append(loss.item())
    return losses


@pytest.mark.parametrize("fused", [False, True])
def test_half_precision_learns(two: Ranks, fused: bool) -> None:
    for losses in two.run(half_precision, fused):
        assert losses[-1] < losses[0] / 10


def local_steps() -> str:
    model = wide()
    return raised(lambda: gradwire.LocalSteps(model, adamw(model), 4, PLAN))


def test_local_steps_have_the_moments_elsewhere(two: Ranks) -> None:
    for said in two.run(local_steps):
        assert "keeps moments of gradients; local steps exchange changes of weights" in said


FRONT_ENDS: dict[str, dict[str, bool] | None] = {
    "plain": None, "ddp": {}, "static": {"static_graph": True},
    "unused": {"find_unused_parameters": True}, "views": {"gradient_as_bucket_view": True},
}  # fmt: skip


def wrapped(model: nn.Module, front_end: str) -> nn.Module:
    options = FRONT_ENDS[front_end]
    return model if options is None else DistributedDataParallel(model, **options)


def clipped_late(front_end: str, closes: bool) -> str:
    model = wide()
    whole = wrapped(model, front_end)
    with attached(whole, PLAN):
        optimizer = adamw(model)
        train(whole, range(2), optimizer)

        def closure() -> float:
            optimizer.zero_grad()
            loss = loss_of(whole, 2)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            return float(loss.detach())

        if closes:
            return raised(lambda: optimizer.step(closure))
        closure()
        return raised(optimizer.step)


def test_a_step_without_averages_has_none_to_change() -> None:
    """Where a step was lost with a rank, no average is handed out."""
    averages = Averages()
    averages.keeps_samples = True
    averages.remember([("weight", torch.ones(4))])
    averages.remember([("weight", None)])
    assert averages.changed(["weight"], 1.0) is None


def test_a_step_that_is_clipped_by_value_was_changed() -> None:
    """Also where that cuts one element of thousands. Unscaling, or multiplying by 1, does not."""
    averages, step = Averages(), torch.ones(5000)
    step[4321] = -3.0
    averages.keeps_samples = True
    none = torch.empty(0)
    averages.remember([("weight", step), ("none", none)])
    step.mul_(1.0)
    none.mul_(1.0)
    assert averages.changed(["weight", "none"], 1.0) is None
    step.div_(1024.0)
    assert averages.changed(["weight"], 1024.0) is None
    step.mul_(1024.0).clamp_(-2.0, 2.0)
    assert averages.changed(["weight"], 1024.0) == "weight"


@pytest.mark.parametrize("closes", [False, True])
@pytest.mark.parametrize("front_end", FRONT_ENDS)
def test_a_step_is_not_clipped(two: Ranks, front_end: str, closes: bool) -> None:
    for said in two.run(clipped_late, front_end, closes):
        assert "was, after backward(), as by clip_grad_norm_" in said


def measured(front_end: str, measures: bool, scaled: bool) -> str:
    """The weights after steps whose norm is measured by clipping to an infinite one, as the HF
    Trainer does with max_grad_norm=0."""
    model = wide()
    whole, scaler = wrapped(model, front_end), torch.amp.GradScaler("cpu", enabled=scaled)
    with attached(whole, PLAN, scaler=scaler):
        optimizer = adamw(model)
        for step in range(4):
            optimizer.zero_grad()
            scaler.scale(loss_of(whole, step)).backward()
            scaler.unscale_(optimizer)
            if measures:
                torch.nn.utils.clip_grad_norm_(model.parameters(), torch.inf)
            scaler.step(optimizer)
            scaler.update()
        return fingerprint(model.parameters())


@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("front_end", FRONT_ENDS)
def test_the_norm_of_a_step_may_be_measured(two: Ranks, front_end: str, scaled: bool) -> None:
    found = [two.run(measured, front_end, measures, scaled) for measures in (False, True)]
    assert len({*found[0], *found[1]}) == 1


def clipped_first_and_flushed() -> bool:
    """attach clips each gradient before it is sent, and residuals are flushed into a step of their
    own."""
    model = wide()
    with attached(model, PLAN, clip_norm=0.1) as handle:
        optimizer = adamw(model)
        train(model, range(3), optimizer)
        optimizer.zero_grad()
        handle.flush()
        optimizer.step()
        return are_equal(model) and handle.stats()["residual_norm"] == 0.0


def test_clipping_and_flushing_by_attach(two: Ranks) -> None:
    assert two.run(clipped_first_and_flushed) == [True, True]


def warmed_up() -> tuple[list[str], bool, float]:
    """Dense AdamW for three steps; then each rank goes on with its moments."""
    model, seen = wide(), list[str]()
    with attached(model, PLAN, warmup=gradwire.Warmup(3, (1.0,))) as handle:
        optimizer = adamw(model)
        for step in range(6):
            train(model, range(step, step + 1), optimizer)
            seen.append(str(handle.plan.strategy_of("first.weight").feedback))
            if step == 3:
                assert entry(handle)["state"]["first.weight"]["noise"][2] >= 1
        steps = entry(handle)["state"]["first.weight"]["steps"]
        return seen, are_equal(model), float(steps)


def test_after_a_warm_up_moments_go_on(two: Ranks) -> None:
    for seen, equal, steps in two.run(warmed_up):
        assert [text.partition("(")[0] for text in seen] == ["server_adam"] * 3 + ["adam"] * 3
        assert equal
        assert steps == 6


def sharded() -> tuple[bool, bool]:
    """Whether replicas of a sharded model are equal at rest, and in a forward, where they should
    differ."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    model, replicas = wide(), mesh["replicate"].get_group()
    fully_shard(model, mesh=mesh["shard"])

    def is_equal() -> bool:
        own = torch.cat([shard_of(p.detach()).reshape(-1) for p in model.parameters()])
        parts = [torch.empty_like(own) for _ in range(2)]
        dist.all_gather(parts, own, group=replicas)
        return torch.equal(*parts)

    with attached(model, "lloyd(2)+adam(beta2=0.99) | allgather", process_group=replicas):
        optimizer = adamw(model)
        train(model, range(4), optimizer)
        rests = is_equal()
        loss_of(model, 4)
        return rests, is_equal()


def test_replicas_of_a_sharded_model(four: Ranks) -> None:
    assert four.run(sharded) == [(True, False)] * 4


def sharded_and_clipped() -> str:
    """The error of a clipped step, after steps whose norm was measured."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    model, group = wide(), mesh["replicate"].get_group()
    fully_shard(model, mesh=mesh["shard"])
    with attached(model, "lloyd(2)+adam(beta2=0.99) | allgather", process_group=group):
        optimizer = adamw(model)
        for step in range(3):
            optimizer.zero_grad()
            loss_of(model, step).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), torch.inf if step < 2 else 1.0)
            if step < 2:
                optimizer.step()
        return raised(optimizer.step)


def test_a_step_of_shards_is_not_clipped(four: Ranks) -> None:
    for said in four.run(sharded_and_clipped):
        assert "was, after backward(), as by clip_grad_norm_" in said


def sharded_muon() -> str:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    model = wide()
    fully_shard(model, mesh=mesh["shard"])
    group = mesh["replicate"].get_group()
    return raised(lambda: gradwire.attach(model, MUON, process_group=group))


def test_shards_are_no_matrices(four: Ranks) -> None:
    for said in four.run(sharded_muon):
        assert "needs whole matrices; fully_shard leaves shards" in said

"""After an exchange has failed, every backward is refused with the first reason."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from ranks import Ranks
from small import attached, close, gradients, loss_of, mean, raised, small
from small import local_gradients as local
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import gradwire
from gradwire import Warmup
from gradwire.runtime.conductor import Conductor
from gradwire.testing import Fail, inject
from gradwire.training.fsdp import DenseAverage
from gradwire.tuning.agree import from_first, of_ranks

TOPK = "topk(0.1)+ef | allgather"
REFUSED = "after a failed exchange this model must be attached again"


def sharded() -> tuple[nn.Module, dist.ProcessGroup]:
    """A sharded model on a mesh where all ranks are replicas, and the replicas' group."""
    from torch.distributed.device_mesh import init_device_mesh  # these imports take seconds
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (dist.get_world_size(), 1), mesh_dim_names=("slow", "fast"))
    return fully_shard(small(), mesh=mesh["fast"]), mesh["slow"].get_group()  # type: ignore[return-value]


FRONT_ENDS: dict[str, Callable[[], tuple[nn.Module, Any]]] = {
    "plain": lambda: (small(), None),
    "ddp": lambda: (DistributedDataParallel(small()), None),
    "fsdp": sharded,
}


class Impatient(threading.Event):
    """An event whose wait raises KeyboardInterrupt, as Ctrl-C does."""

    def wait(self, timeout: float | None = None) -> bool:
        raise KeyboardInterrupt


def breaks(conductor: Conductor, how: str) -> None:
    """Makes the next step fail."""
    if how == "lane":
        inject(conductor, Fail(1, ValueError("told to")))
    else:
        conductor._done = Impatient()


def told(call: Callable[[], Any]) -> str:
    """The error that the call raises, as text."""
    try:
        call()
    except BaseException as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


def step(model: nn.Module) -> None:
    model.zero_grad()
    loss_of(model).backward()


def reasons(front_end: str, how: str) -> list[str]:
    """What is raised when the second step fails, and by all that is tried after it."""
    model, group = FRONT_ENDS[front_end]()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    handle = gradwire.attach(model, TOPK, group, timeout_seconds=20.0, bucket_bytes=1, lanes=1)
    saved = handle.state_dict()
    step(model)
    breaks(handle._session.conductor, how)
    found = [told(lambda: step(model)) for _ in range(4)]
    found += [told(optimizer.step), told(lambda: handle.load_state_dict(saved))]
    found += [told(handle.reset), told(handle.flush), told(lambda: handle.adopt(handle.plan))]
    if front_end != "ddp":
        found += [told(handle.synchronize) for _ in range(2)]
    handle.state_dict()  # reading the state is allowed
    handle.detach()
    step(model)
    return found


@pytest.mark.parametrize("front_end", FRONT_ENDS)
@pytest.mark.parametrize("how", ["lane", "keyboard"])
def test_the_first_reason_stays(one: Ranks, front_end: str, how: str) -> None:
    (found,) = one.run(reasons, front_end, how)
    first, reason = {
        "lane": ("ValueError: told to", "told to"),
        "keyboard": ("KeyboardInterrupt: ", "KeyboardInterrupt"),
    }[how]
    assert found[0] == first
    assert set(found[1:]) == {
        f"UsageError: {REFUSED}; step 1 failed with: {reason}. Restart from a checkpoint, or "
        "detach and attach again on all ranks."
    }


def rehearsed() -> list[str]:
    """What is raised by steps of one move, then one of two moves by another plan, whose second
    move is the fault's."""
    model, found = small(), list[str]()
    with attached(model, TOPK, bucket_bytes=1 << 30) as handle:
        inject(handle, Fail(3, ValueError("told to")))
        for number in range(3):
            if number == 2:
                parameters = [p for bucket in handle.plan.buckets for p in bucket.parameters]
                handle.adopt(gradwire.Plan.make(parameters, gradwire.Strategy.parse(TOPK)))
            found.append(told(lambda: step(model)))
    return found


def test_a_fault_is_not_forgotten_with_a_plan(one: Ranks) -> None:
    assert one.run(rehearsed)[0] == ["nothing"] * 2 + ["ValueError: told to"]


def rounds(delay: int) -> list[str]:
    """The errors by which local steps refuse further steps: the rank would go on alone."""
    model = small()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    steps = gradwire.LocalSteps(model, optimizer, 2, TOPK, delay=delay)
    inject(steps.fragments[0].handle, Fail(0, ValueError("told to")))
    found = []
    for _ in range(6):
        step(model)
        found.append(told(optimizer.step))
    found.append(told(steps.synchronize))
    steps.detach()
    optimizer.step()
    return found


@pytest.mark.parametrize("delay", [0, 1])
def test_local_steps(one: Ranks, delay: int) -> None:
    (found,) = one.run(rounds, delay)
    fine = 1 + delay  # steps before the failure is noticed
    assert found[:fine] == ["nothing"] * fine
    assert all("told to" in text for text in found[fine:])
    assert all(REFUSED in text for text in found[fine + 1 : -1])


def never_again() -> None:
    """Whatever fails, nothing that comes after it makes the session forget the failure."""
    model = small()
    with attached(model, TOPK) as handle:  # a plan that could be adopted in part only
        handle._session.ledger.adopt = None  # type: ignore[assignment, method-assign]
        assert "not callable" in told(lambda: handle._session.adopt(handle.plan))
        assert all(f"{REFUSED}; step" in told(lambda: step(model)) for _ in range(2))
    with attached(model, TOPK, warmup=Warmup(4, (0.3,))) as handle:  # a plan that comes by itself
        handle._session.fail(ValueError("told to"))
        assert "told to" in told(lambda: handle._session.go_to(9, 9))
        assert "told to" in told(lambda: step(model))
    with attached(model, TOPK) as handle:  # at the end of a step, in a lane
        handle._session.on_end = lambda _: 1 / 0  # type: ignore[assignment, return-value]
        assert "ZeroDivisionError" in told(lambda: step(model))
        assert all("division by zero" in told(lambda: step(model)) for _ in range(2))
    with attached(model, TOPK) as handle:  # in a user's hook, before ours and after
        hook = model.two.weight.register_post_accumulate_grad_hook(lambda _: 1 / 0)
        assert "ZeroDivisionError" in told(lambda: step(model))
        hook.remove()
        assert len({told(lambda: step(model)) for _ in range(3)}) == 1
        assert "was aborted" in told(lambda: step(model))
    with attached(model, TOPK):  # training goes on after a new attach
        step(model)


def test_nothing_is_forgotten(one: Ranks) -> None:
    one.run(never_again)


def amid() -> list[str]:
    """The errors of calls that a hook must not make; the backward is not harmed."""
    model, found = small(), list[str]()
    with attached(model, TOPK) as handle:
        calls = (handle.flush, handle.reset, lambda: handle.adopt(handle.plan))
        model.two.weight.register_post_accumulate_grad_hook(
            lambda _: found.extend(told(call) for call in calls)
        )
        step(model)
        step(model)
    return found


def test_what_is_done_between_two_steps(one: Ranks) -> None:
    (found,) = one.run(amid)
    assert len(found) == 6
    for i, text in enumerate(found):
        assert f"change only between two steps; the exchange of step {i // 3} is under way" in text


def changed() -> list[str]:
    found = []
    model = small()
    with attached(model, TOPK):
        step(model)
        model.double().zero_grad()
        found.append(told(lambda: model.two(torch.ones(1, 13).double()).sum().backward()))
    model = small()
    with attached(model, TOPK):
        for p in model.two.parameters():
            p.data = p.data[:1]
        found.append(told(lambda: step(model)))
    return found


def test_a_parameter_that_changed_is_named(one: Ranks) -> None:
    ((dtype, shape),) = one.run(changed)
    assert dtype.startswith("UsageError: an attached parameter's dtype, size and device must not")
    assert "was float32" in dtype
    assert "float64" in dtype
    assert shape.startswith("UsageError: an attached parameter's dtype, size and device must not")


def in_local_steps() -> bool:
    """Whether progress is measured in float32, though the model was converted meanwhile."""
    model = nn.Linear(3, 3)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    outer = {"outer_lr": 1.0, "outer_momentum": 0.0, "nesterov": False}
    steps = gradwire.LocalSteps(model, optimizer, 1, "none | allreduce", **outer)
    before = model.double().weight.detach().clone()
    model(torch.ones(1, 3).double()).sum().backward()
    optimizer.step()
    steps.detach()
    return torch.allclose(model.weight, before - 0.1, atol=1e-6)


def test_local_steps_of_a_model_that_was_converted(one: Ranks) -> None:
    assert one.run(in_local_steps) == [True]


def strangers() -> list[str]:
    model: Any = small()
    groups = (dist.GroupMember.NON_GROUP_MEMBER, "gloo")
    return [raised(lambda g=g: gradwire.attach(model, TOPK, g)) for g in groups]  # type: ignore[misc]


def test_a_group_that_this_rank_is_not_in(one: Ranks) -> None:
    ((outside, no_group),) = one.run(strangers)
    assert "rank 0 is not in it" in outside
    assert "got 'gloo'" in no_group


def two_threads() -> list[str]:
    """A second thread's backward comes amid the first one's."""
    model, found = small(), list[str]()

    def other(_: Tensor) -> None:
        hook.remove()
        thread = threading.Thread(target=lambda: found.append(told(lambda: step(model))))
        thread.start()
        thread.join()

    with attached(model, "none | allreduce"):
        hook = model.two.bias.register_post_accumulate_grad_hook(other)
        found.append(told(lambda: step(model)))
        found.append(told(lambda: step(model)))
    return found


def test_two_threads(one: Ranks) -> None:
    ((inner, outer, after),) = one.run(two_threads)
    assert "one backward() at a time" in inner
    assert inner == outer
    assert REFUSED in after
    assert "came from another thread" in after


def groups_destroyed() -> list[str]:
    """What is raised by two steps after destroy_process_group(), which also ends lanes' groups."""
    model = small()
    with attached(model, "none | allreduce") as handle:
        step(model)
        for performer in handle._session.performers:
            dist.destroy_process_group(performer.group)
        return [told(lambda: step(model)) for _ in range(2)]


def test_groups_that_were_destroyed(two: Ranks) -> None:
    for first, after in two.run(groups_destroyed):
        assert first.startswith("UsageError: the process groups of an attached model must last")
        assert "destroy_process_group() has ended them before all_reduce" in first
        assert first.endswith("attach again after the next init_process_group().")
        assert REFUSED in after


# -- detaching amid a backward ---------------------------------------------------------------


def detached_inside(front_end: str) -> None:
    """Detaches in a hook: the backward ends with an error that says so, and what comes after it is
    as after any detach."""
    model: Any = small()
    net = DistributedDataParallel(model, bucket_cap_mb=0.0001) if front_end == "ddp" else model
    handle = gradwire.attach(net, TOPK, timeout_seconds=20.0, bucket_bytes=1)
    step(net)
    step(net)  # DDP has rebuilt its buckets by now
    hook = model.one.weight.register_post_accumulate_grad_hook(lambda _: handle.detach())
    assert "during the exchange of step 2" in raised(lambda: step(net))
    assert not handle.attached
    hook.remove()
    expected = local(model)
    step(net)
    if front_end == "ddp":
        expected = {name: mean(g) for name, g in expected.items()}
    close(gradients(model), expected)
    if front_end == "plain":
        with attached(model, "none | allreduce"):
            step(net)
            close(gradients(model), {n: mean(g) for n, g in expected.items()})


@pytest.mark.parametrize("front_end", ["plain", "ddp"])
def test_detach_inside_a_hook(two: Ranks, front_end: str) -> None:
    two.run(detached_inside, front_end)


def aborted_later() -> None:
    model = small()
    average = DenseAverage(model.parameters(), None)
    hook = model.two.weight.register_post_accumulate_grad_hook(lambda _: 1 / 0)
    raised(lambda: step(model), ZeroDivisionError)
    hook.remove()
    expected = {name: mean(g) for name, g in local(model).items()}
    step(model)
    close(gradients(model), expected)
    for p in model.parameters():
        average.let_go(p)


def test_detached_replicas_go_on_averaging_after_an_aborted_backward(two: Ranks) -> None:
    two.run(aborted_later)


# -- what runs as a step begins --------------------------------------------------------------


def wrapped(front_end: str) -> tuple[nn.Module, nn.Module]:
    """A model, and what is called and attached; DDP has a bucket for each parameter."""
    model = small()
    ddp = front_end == "ddp"
    return model, DistributedDataParallel(model, bucket_cap_mb=0.0001) if ddp else model


def fails_as_a_step_begins(front_end: str) -> list[str]:
    """The errors of three steps; rank 1 alone fails as the second begins, while rank 0 waits for
    its numbers."""
    model, net = wrapped(front_end)
    optimizer = gradwire.optim.SGD(net.parameters(), 0.1)
    handle: Any = gradwire.attach(net, "auto", strategies=[TOPK], timeout_seconds=3.0)

    def life() -> Any:
        yield
        if dist.get_rank():
            raise OSError(28, "No space left on device")
        of_ranks(handle._session.circle, [0.0])
        yield

    handle.tuner._steps.live(life())
    found = [told(lambda: step(net)) for _ in range(3)]
    found.append(told(optimizer.step))
    handle.detach()
    dist.barrier()
    expected = local(model)
    step(net)  # as if it had never been attached
    if front_end == "ddp":
        expected = {name: mean(g) for name, g in expected.items()}
    close(gradients(model), expected)
    return found


@pytest.mark.parametrize("front_end", ["plain", "ddp"])
def test_what_one_rank_fails_at_as_a_step_begins_ends_its_exchanges(
    two: Ranks, front_end: str
) -> None:
    outcomes = two.outcomes(fails_as_a_step_begins, front_end, timeout_seconds=60.0)
    assert all(o.ok for o in outcomes), [o.story for o in outcomes]
    other, alone = (o.value for o in outcomes)
    assert alone[:2] == ["nothing", "OSError: [Errno 28] No space left on device"]
    assert all(REFUSED in text and "No space left" in text for text in alone[2:])
    assert other[0] == "nothing"
    assert other[1].startswith("PeerError: ")
    assert all(REFUSED in text for text in other[2:])


def all_fail_as_a_step_begins(front_end: str) -> list[str]:
    """The errors of four steps; tuning fails on all ranks as the second begins."""
    model, net = wrapped(front_end)
    with attached(net, "auto", strategies=[TOPK]) as handle:
        tuner: Any = handle.tuner  # type: ignore[attr-defined]

        def life() -> Any:
            yield
            from_first(handle._session.circle, lambda: f"{1 // 0}")

        tuner._steps.live(life())
        found = [told(lambda: step(net)) for _ in range(4)]
        expected = {name: mean(g) for name, g in local(model).items()}
        step(net)
        close(gradients(model), expected)
    return found


@pytest.mark.parametrize("front_end", ["plain", "ddp"])
def test_after_tuning_has_failed_on_all_ranks_the_plan_stays(two: Ranks, front_end: str) -> None:
    said = "PlanError: ZeroDivisionError('integer division or modulo by zero')"
    for found in two.run(all_fail_as_a_step_begins, front_end):
        assert found == ["nothing", said, "nothing", "nothing"]

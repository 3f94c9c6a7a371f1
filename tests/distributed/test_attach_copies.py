"""Copies of attached models, by deepcopy and by pickle, and models whose handle was dropped."""

from __future__ import annotations

import copy
import gc
import pickle
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from ranks import Ranks
from small import (
    attached,
    batch,
    close,
    fingerprint,
    gradients,
    local_gradients,
    loss_of,
    mean,
    raised,
    small,
)
from torch import nn
from torch._dynamo.convert_frame import input_codes
from torch._dynamo.utils import counters
from torch.nn.parallel import DistributedDataParallel
from torch.optim.swa_utils import AveragedModel

import gradwire

TOPK = "topk(0.1)+ef | allgather"


def told(run: Callable[[], Any]) -> int:
    """The number of warnings that a copy trains alone."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run()
    return sum("deep copy of an attached module" in str(w.message) for w in caught)


def trains(model: nn.Module) -> int:
    return told(lambda: loss_of(model).backward())


def compiled_with_own_view() -> None:
    """A compiled module whose hooks move weights trains as the module itself does."""
    before, ended = counters["frames"]["total"], list[str]()
    for compile in (lambda m: m, partial(torch.compile, backend="eager")):
        model = small()
        module = compile(model)
        optimizer = gradwire.optim.AdamW(module.parameters(), lr=0.01)
        with attached(module, "lloyd(2)+adam | allgather", optimizer=optimizer):
            for step in range(3):
                optimizer.zero_grad()
                loss_of(module, step).backward()
                optimizer.step()
        ended.append(fingerprint(model.parameters()))
    assert counters["frames"]["total"] == before + 1, "the forward alone is compiled"
    assert ended[0] == ended[1]


def test_hooks_are_left_out_of_what_is_compiled(two: Ranks) -> None:
    two.run(compiled_with_own_view)


def compiled_steps(ddp: bool, whole: bool) -> None:
    """A whole step, or the optimizer's alone, is compiled; nothing of ours is."""
    ended = list[str]()
    for compile in (lambda call: call, partial(torch.compile, backend="eager")):
        model = small()
        net = DistributedDataParallel(model) if ddp else model
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

        def step(
            x: torch.Tensor, update: Any, net: nn.Module = net, optimizer: Any = optimizer
        ) -> None:
            optimizer.zero_grad()
            net(x).square().mean().backward()
            update()

        update = optimizer.step if whole else compile(optimizer.step)
        run = compile(step) if whole else step
        with attached(net, TOPK), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch's own, from within its compiler
            for number in range(3):
                run(batch(number), update)
        ended.append(fingerprint(model.parameters()))
    assert ended[0] == ended[1]
    traced = [code().co_filename for code in input_codes.seen if code() is not None]  # type: ignore[union-attr]
    ours = str(Path(gradwire.__file__).parent)
    assert traced
    assert not [name for name in traced if name.startswith(ours)]


@pytest.mark.parametrize("ddp", [False, True])
@pytest.mark.parametrize("whole", [False, True])
def test_a_step_may_be_compiled(two: Ranks, ddp: bool, whole: bool) -> None:
    two.run(compiled_steps, ddp, whole)


def compiled_backward() -> str:
    model = small()
    with attached(model, TOPK), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own, from within its compiler
        with patch.object(torch._dynamo.config, "compiled_autograd", True):
            run = torch.compile(lambda: loss_of(model).backward(), backend="eager")
            told = raised(run)
        model.zero_grad()
        loss_of(model).backward()  # nothing was begun
    return told


def test_a_compiled_backward_is_refused(two: Ranks) -> None:
    for told in two.run(compiled_backward):
        assert "Set it to False" in told


def looked_at(model: nn.Module) -> None:
    with torch.no_grad():
        loss_of(model.eval())
    model.train()
    loss_of(model)


def copied() -> None:
    model = small()
    before = dict(model.__dict__)
    with attached(model, TOPK):
        twin = copy.deepcopy(model)
        inside = copy.deepcopy({"student": nn.Sequential(model)})["student"][0]
        moving = AveragedModel(model)
        saved = pickle.dumps(model)
        assert b"gradwire." not in saved
        assert trains(model) == 0
        assert told(lambda: (looked_at(twin), moving.update_parameters(model))) == 0
        again = copy.deepcopy(twin)
        assert trains(twin) == 1
        assert trains(twin) == 0
        assert trains(again) == 1
        assert trains(inside) == 1
        assert trains(pickle.loads(saved)) == 0
        twin = copy.deepcopy(model)
        with attached(twin, TOPK):
            assert trains(twin) == 0
    assert model.__dict__.keys() == before.keys()
    assert trains(copy.deepcopy(model)) == 0


def test_a_deep_copy_says_that_it_trains_alone(two: Ranks) -> None:
    two.run(copied)


def holds_its_handle() -> None:
    model = small()
    other = small()
    local = gradwire.LocalSteps(other, torch.optim.SGD(other.parameters(), 0.1), every=2)
    with attached(model, TOPK) as handle:
        model.kept = [handle, local]
        saved = pickle.dumps(model)
        assert b"gradwire" not in saved.replace(b"_gradwire", b"")
        for twin in (copy.deepcopy(model), pickle.loads(saved)):
            assert twin.kept == [None, None]
            assert twin.state_dict().keys() == model.state_dict().keys()
        assert trains(model) == 0
    local.detach()


def test_a_copy_of_a_model_that_holds_its_handle_holds_none(two: Ranks) -> None:
    two.run(holds_its_handle)


def pickled() -> None:
    """A pickled DDP keeps its hooks (`__getstate__`); its reducer is made anew, without hooks."""
    ddp = DistributedDataParallel(small())
    handle = gradwire.attach(ddp, TOPK, timeout_seconds=20.0)
    loss_of(ddp).backward()
    copies = [pickle.loads(pickle.dumps(ddp)), copy.deepcopy(ddp)]
    handle.detach()
    copies.append(pickle.loads(pickle.dumps(ddp)))
    for twin in (*copies, ddp):
        twin.zero_grad()
        wanted = {n: mean(g) for n, g in local_gradients(twin.module).items()}
        loss_of(twin).backward()
        close(gradients(twin), wanted)
    with attached(copies[0], "topk(1.0)+ef | allgather") as handle:
        copies[0].zero_grad()
        loss_of(copies[0]).backward()
        close(gradients(copies[0]), wanted)
        assert handle.stats()["steps"] == 1


def test_an_attached_ddp_is_pickled(two: Ranks) -> None:
    """A copy averages as DDP does, until it is attached itself."""
    two.run(pickled)


def lost() -> None:
    """Handles to which only gradwire holds a reference."""
    model, ddp = small(), DistributedDataParallel(small())
    for module in (model, ddp):
        gradwire.attach(module, TOPK, timeout_seconds=20.0)
        gc.collect()
        assert "gradwire.detach(module)" in raised(lambda m=module: gradwire.attach(m, TOPK))
        gradwire.detach(module)
        assert "is attached" in raised(lambda m=module: gradwire.detach(m))
    with attached(model, TOPK) as handle:
        loss_of(model).backward()
        gradwire.detach(nn.Sequential(model))  # by a module that contains it
        assert not handle.attached
    model.zero_grad()
    wanted = local_gradients(model)
    loss_of(model).backward()
    close(gradients(model), wanted)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    gradwire.LocalSteps(model, optimizer, 2, "none | allreduce", timeout_seconds=20.0)
    gradwire.detach(model)
    with attached(model, TOPK):
        pass


def test_a_model_whose_handle_was_lost(two: Ranks) -> None:
    two.run(lost)

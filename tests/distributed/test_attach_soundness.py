"""What attach says of a strategy with which models learn less under the job's optimizer."""

from __future__ import annotations

import re
import warnings
from typing import Any

import pytest
import torch
import torch.distributed as dist
from ranks import Ranks
from small import attached, brief, loss_of, small

import gradwire
from gradwire.errors import UsageError
from gradwire.soundness import SoundnessWarning

TOPK, UNKNOWN = "topk(0.01)+ef | allgather", "terngrad+ef | allgather"
MADE: dict[str, Any] = {
    "SGD": lambda ps: torch.optim.SGD(ps, 0.1),
    "SGDM": lambda ps: torch.optim.SGD(ps, 0.1, momentum=0.9),
    "AdamW": lambda ps: torch.optim.AdamW(ps, 1e-3),
    "LBFGS": lambda ps: torch.optim.LBFGS(ps, max_iter=1),
}


def told(plan: str, optimizer: str, options: dict[str, Any]) -> tuple[list[str], str]:
    """This rank's soundness warnings in attach and three steps, and the error that ended it."""
    model = small()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            with attached(model, plan, **options):
                stepping = MADE[optimizer](model.parameters())
                for step in range(3):
                    loss_of(model, step).backward()
                    stepping.step(*([lambda: 0.0] if optimizer == "LBFGS" else []))
                    stepping.zero_grad()
            ended = ""
        except UsageError as error:
            ended = str(error)
    return [str(w.message) for w in caught if w.category is SoundnessWarning], ended


CASES = (
    (TOPK, "SGD", ""),
    (TOPK, "SGDM", "is unsound with .*: SGD with momentum by .* learns less than .*speech, ef-"),
    ("bf16 | allreduce", "AdamW", ""),
    (TOPK, "AdamW", "is unsound with AdamW: adamw by .* learns less than .*gpt, ef-"),
    (UNKNOWN, "AdamW", "is not known to be sound with AdamW: no run has tested"),
)
OTHER = "is not known to be sound with LBFGS: the update rule of LBFGS is not known"


@pytest.mark.parametrize(
    ("plan", "optimizer", "said", "is_named"),
    [
        *((*case, named) for case in CASES for named in (False, True)),
        (TOPK, "LBFGS", OTHER, False),
    ],
)
def test_one_rank_says_it_once(
    two: Ranks, plan: str, optimizer: str, said: str, is_named: bool
) -> None:
    options = {"optimizer": optimizer} if is_named else {}
    (first, ended), other = two.run(told, plan, optimizer, options)
    assert not ended
    assert other == ([], "")
    assert len(first) == bool(said)
    if said:
        (text,) = first
        assert text.startswith(f"'{gradwire.Strategy.parse(plan)}' ")
        assert re.search(said, text)
        sound = {"SGDM": "powersgd(4)", "LBFGS": ""}.get(optimizer, "qsgd | all")
        assert f"Sound is '{sound}" in text or not sound


def test_a_name_that_leaves_the_momentum_out_is_not_all(two: Ranks) -> None:
    (first, ended), other = two.run(told, TOPK, "SGDM", {"optimizer": "sgd"})
    assert (len(first), ended, other) == (1, "", ([], ""))
    assert "is unsound with SGD with momentum" in first[0]


@pytest.mark.parametrize("named", [None, "adamw"])
def test_strict_refuses_on_all_ranks(two: Ranks, named: str | None) -> None:
    for warned, ended in two.run(told, TOPK, "AdamW", {"strict": True, "optimizer": named}):
        assert warned == []
        assert ended.startswith("with strict=True a strategy must not be unsound; ")


def test_strict_warns_of_what_is_not_known(two: Ranks) -> None:
    (warned, ended), _ = two.run(told, UNKNOWN, "AdamW", {"strict": True})
    assert len(warned) == 1
    assert not ended


def test_a_refused_attach_leaves_nothing(two: Ranks) -> None:
    assert two.run(_refused) == [True, True]


def _refused() -> bool:
    model = small()
    with pytest.raises(UsageError, match="strict=True a strategy must"):
        gradwire.attach(model, TOPK, optimizer="adamw", strict=True)
    with attached(model, "none | allreduce", optimizer="adamw", strict=True):
        loss_of(model).backward()
    return True


def test_an_optimizer_is_asked_of_its_own_parameters(two: Ranks) -> None:
    assert two.run(_two_optimizers) == [0, 0]


def _two_optimizers() -> int:
    """The number of warnings when SGD steps the matrices and AdamW the vectors, which travel
    dense."""
    model = small()
    parameters = list(model.parameters())
    with attached(model, TOPK), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        loss_of(model).backward()
        torch.optim.AdamW([p for p in parameters if p.dim() < 2], 1e-3).step()
        torch.optim.SGD([p for p in parameters if p.dim() > 1], 0.1).step()
    return len([w for w in caught if w.category is SoundnessWarning])


@pytest.mark.parametrize("named", [False, True])
def test_one_of_two_optimizers_does_not_speak_for_the_other(two: Ranks, named: bool) -> None:
    (first, known), other = two.run(_told_of_one, named)
    assert other == ([], [])
    assert len(first) == 1
    assert "is unsound with AdamW" in first[0]
    assert known == ["AdamW", "sgd"]


def _told_of_one(named: bool) -> tuple[list[str], list[str]]:
    """This rank's warnings, and rank 0's optimizers, if `attach` is passed SGD, and AdamW steps
    a matrix."""
    model = small()
    *rest, last = (p for p in model.parameters() if p.dim() > 1)
    sgd: Any = torch.optim.SGD(rest, 0.1)
    others = torch.optim.AdamW([last], 1e-3), LikeLion(rest)
    with (
        warnings.catch_warnings(record=True) as caught,
        attached(model, TOPK, optimizer="sgd" if named else sgd) as handle,
    ):
        warnings.simplefilter("always")
        for step in range(3):
            model.zero_grad()
            loss_of(model, step).backward()
            for optimizer in (sgd, *others[: 1 + named]):
                optimizer.step()
        known = [x if isinstance(x, str) else type(x).__name__ for x in handle.optimizers]
    known = sorted("sgd" if name == "SGD" else name for name in known)
    said = [str(w.message) for w in caught if w.category is SoundnessWarning]
    return said, known if dist.get_rank() == 0 else []


@pytest.mark.parametrize("change", ["momentum", "parameters", "before it steps"])
def test_an_optimizer_that_changes_is_asked_again(two: Ranks, change: str) -> None:
    said, other = two.run(_told_of_changes, change)
    assert (len(said), other) == (1, [])
    assert "is unsound with SGD with momentum" in said[0]


def _told_of_changes(change: str) -> list[str]:
    """This rank's warnings, if SGD gets momentum as by OneCycleLR, after some steps or between
    `attach`, which was passed it, and its first; or a group of parameters with it."""
    model = small()
    *rest, last = (p for p in model.parameters() if p.dim() > 1)
    at_once = change == "before it steps"
    sgd: Any = torch.optim.SGD(rest if change == "parameters" else model.parameters(), 0.1)
    with (
        warnings.catch_warnings(record=True) as caught,
        attached(model, TOPK, optimizer=sgd if at_once else None),
    ):
        warnings.simplefilter("always")
        for step in range(5):
            if change == "parameters" and step == 2:
                sgd.add_param_group({"params": [last], "momentum": 0.9})
            elif change != "parameters" and (at_once or step == 2):
                sgd.param_groups[0]["momentum"] = 0.9
            model.zero_grad()
            loss_of(model, step).backward()
            sgd.step()
    return [str(w.message) for w in caught if w.category is SoundnessWarning]


class LikeLion(torch.optim.Optimizer):
    """An optimizer whose rule nobody knows, so that a name that was passed speaks for it."""

    def __init__(self, parameters: list[torch.nn.Parameter]) -> None:
        super().__init__(parameters, {"lr": 0.1})

    def step(self, closure: Any = None) -> None:
        pass


@pytest.mark.parametrize("named", [None, "adamw"])
def test_auto_chooses_among_the_sound(two: Ranks, named: str | None) -> None:
    first, other = two.run(_settled, named)
    assert first == other
    assert first == ["bf16 | allreduce", "int8+ef | alltoall", "none | allreduce"]


@brief()
def _settled(named: str | None) -> list[str]:
    """The strategies that were measured for a job with AdamW."""
    model = small()
    asked = [TOPK, "int8+ef | alltoall", UNKNOWN]
    handle: Any = gradwire.attach(model, "auto", strategies=asked, optimizer=named)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    step = 0
    while not handle.tuner.is_settled and step < 4000:
        loss_of(model, step).backward()
        optimizer.step()
        optimizer.zero_grad()
        step += 1
    known = sorted(handle.tuner.profile.strategies)
    handle.detach()
    dist.barrier()
    return known


def local_steps_of(kind: str, strict: bool) -> tuple[list[str], str]:
    model = small()
    is_muon = kind == "Muon"
    inner = gradwire.optim.Muon.of(model) if is_muon else MADE[kind](model.parameters())
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            gradwire.LocalSteps(model, inner, 4, strict=strict).detach()
            ended = ""
        except UsageError as error:
            ended = str(error)
    return [str(w.message) for w in caught if w.category is SoundnessWarning], ended


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("kind", ["AdamW", "SGD", "Muon"])
def test_local_steps_of_adam_are_said_to_learn_less(two: Ranks, kind: str, strict: bool) -> None:
    for rank, (warned, ended) in enumerate(two.run(local_steps_of, kind, strict)):
        assert len(warned) == (kind == "AdamW" and not strict and rank == 0)
        assert bool(ended) == (kind == "AdamW" and strict)
        for said in (*warned, ended):
            assert not said or "local steps of AdamW learn less" in said

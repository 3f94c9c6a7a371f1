"""What all integrations have in common: imports, numbers for loggers, and a file per rank."""

from __future__ import annotations

import importlib
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from ranks import Ranks
from small import attached, loss_of, raised, small
from torch import nn
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict
from torch.nn.parallel import DistributedDataParallel
from trainers import TOPK, tensors

import gradwire
from gradwire import Plan
from gradwire.errors import PlanError, UsageError
from gradwire.training.ddp import inner
from gradwire.training.integrations import Numbers, load, save

FILES = ("accelerate", "transformers", "lightning", "ray")


# -- imports -----------------------------------------------------------------------------------


def imported() -> list[str]:
    """The trainers that are there once gradwire is."""
    importlib.import_module("gradwire.training.integrations")
    assert gradwire.attach
    assert gradwire.Handle
    return [name for name in FILES if name in sys.modules]


def test_gradwire_imports_no_trainer(tmp_path: Path) -> None:
    with Ranks(1, tmp_path) as new:
        assert new.run(imported) == [[]]


@pytest.mark.parametrize("name", FILES)
def test_a_missing_trainer_says_what_to_install(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = f"gradwire.training.integrations.{name}"
    for loaded in [m for m in sys.modules if m.split(".")[0] == name] + [name]:
        monkeypatch.setitem(sys.modules, loaded, None)  # type: ignore[arg-type]
    monkeypatch.delitem(sys.modules, module, raising=False)
    with pytest.raises(ImportError, match=f"pip install '?{name}"):
        importlib.import_module(module)


# -- numbers for a trainer's logger ------------------------------------------------------------


def numbers_over_plans() -> None:
    """A row covers all steps since the last row, whatever plan they went by."""
    model = small()
    with attached(model, "none | allreduce") as handle:
        loss_of(model).backward()  # before Numbers begins to count
        told = Numbers(handle)
        for number in range(4):
            model.zero_grad()
            loss = loss_of(model, number) * (float("nan") if number == 1 else 1.0)
            loss.backward()
            if number == 2:
                sent = handle.stats()["bytes_sent"]
                named = [p for bucket in handle.plan.buckets for p in bucket.parameters]
                handle.adopt(Plan.make(named, TOPK))
        less = handle.stats()["bytes_sent"]
        found = told()
        assert less < sent
        assert found["gradwire/bytes_sent"] == pytest.approx((3 * sent + less) / 4, abs=1)
        assert found["gradwire/skipped"] == 1.0
        assert told() == {}
        time.sleep(0.5)
        told.forget_now()
        model.zero_grad()
        loss_of(model).backward()
        assert told()["gradwire/step_seconds"] < 0.5


def test_numbers_are_of_all_plans(two: Ranks) -> None:
    two.run(numbers_over_plans)


# -- what hides a DistributedDataParallel ------------------------------------------------------


def hidden() -> None:
    inside = DistributedDataParallel(small())
    assert inner(inside) is inside
    assert inner(nn.Sequential(inside)) is inside
    assert inner(torch.compile(inside, backend="eager")) is inside  # type: ignore[arg-type]
    plain = small()
    assert inner(plain) is plain
    for two_of_them in (DistributedDataParallel(small()), nn.Linear(2, 2)):
        with pytest.raises(UsageError, match="Attach each of them"):
            gradwire.attach(nn.ModuleList([inside, two_of_them]), TOPK)
    for hides in (nn.Sequential, lambda m: torch.compile(m, backend="eager")):
        model = DistributedDataParallel(small())
        with attached(hides(model), TOPK) as handle:
            loss_of(model).backward()
            assert handle.stats()["steps"] == 1
    with attached(torch.compile(small(), backend="eager"), TOPK) as handle:  # type: ignore[arg-type]
        names = {name for bucket in handle.plan.buckets for name in bucket.names}
        assert names == {name for name, _ in small().named_parameters()}


def test_the_wrapped_model_is_found(two: Ranks) -> None:
    two.run(hidden)


# -- steps that come before the first exchange, and may ---------------------------------------


def backward_inside_the_step() -> None:
    """Backward inside the step, as in Lightning, is not missed. Warnings are errors here."""
    for silent in (False, True):
        model = small()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with attached(model, TOPK) as handle:

            def closure(model: Any = model, handle: Any = handle, silent: bool = silent) -> float:
                with handle.no_sync() if silent else nullcontext():
                    loss = loss_of(model)
                    loss.backward()
                return loss.item()

            optimizer.step(closure)
            optimizer.zero_grad()
            told = "seen no gradients"
            with pytest.warns(UserWarning, match=told) if silent else nullcontext():
                optimizer.step(closure)


def test_a_backward_inside_the_step_is_not_missed(two: Ranks) -> None:
    two.run(backward_inside_the_step)


def state_before_the_first_step() -> None:
    """get_optimizer_state_dict takes a step at a rate of 0, which does not count as a missed
    exchange."""
    model = small()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    with attached(model, TOPK) as handle:
        get_optimizer_state_dict(model, optimizer)
        with handle.no_sync():
            loss_of(model).backward()
        with pytest.warns(UserWarning, match="seen no gradients"):
            optimizer.step()


def test_a_checkpoint_may_be_read_before_the_first_step(two: Ranks) -> None:
    two.run(state_before_the_first_step)


# -- a file per rank ---------------------------------------------------------------------------


def written(folder: str) -> float:
    """The sum of residuals after three steps, which are saved."""
    model = small()
    with attached(model, TOPK) as handle:
        for step in range(3):
            model.zero_grad()
            loss_of(model, step).backward()
        save(handle, folder)
        return waiting(handle)


def read(folder: str) -> float:
    with attached(small(), TOPK) as handle:
        load(handle, folder)
        return waiting(handle)


def waiting(handle: Any) -> float:
    return sum(float(x.double().sum()) for x in tensors(handle.state_dict()["ranks"]))


def refuses(folder: str) -> str:
    """The error by which files are refused, or ""."""
    try:
        read(folder)
    except PlanError as error:
        return str(error)
    return ""


def dies_writing(folder: str) -> str:
    """Writing fails after the first bytes."""

    def fails(state: Any, file: Any) -> None:
        file.write(b"PK")
        raise OSError("disk full")

    with attached(small(), TOPK) as handle, pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "save", fails)
        return raised(lambda: save(handle, folder), OSError)


@pytest.mark.parametrize("where", [str, Path, "file://{}".format])
def test_files_are_read_by_any_number_of_ranks(
    two: Ranks, three: Ranks, where: Callable[[Path], Any], tmp_path: Path
) -> None:
    """Σ v/n, the average of residuals v over n ranks, is the same before and after."""
    kept = two.run(written, where(tmp_path / "new"))
    names = sorted(path.name for path in (tmp_path / "new").iterdir())
    assert names == ["gradwire-0-of-2.pt", "gradwire-1-of-2.pt"]
    assert two.run(read, where(tmp_path / "new")) == kept
    found = three.run(read, where(tmp_path / "new"))
    assert sum(found) / 3 == pytest.approx(sum(kept) / 2, rel=1e-5)


def test_a_folder_may_be_written_again_by_fewer_and_by_more(
    two: Ranks, three: Ranks, tmp_path: Path
) -> None:
    """Three, two, three ranks write one folder, as in an elastic job: no file of the first
    remains."""
    folder = tmp_path / "last[1]"  # not to be read as a glob pattern
    three.run(written, str(folder))
    other = [folder / "gradwire_1-0-of-3.pt", folder / "notes-of-3.pt"]
    for path in other:
        path.write_text("of another model")
    kept = two.run(written, str(folder))
    found = three.run(read, str(folder))
    assert sum(found) / 3 == pytest.approx(sum(kept) / 2, rel=1e-5)
    names = {path.name for path in folder.iterdir()}
    assert names == {"gradwire-0-of-2.pt", "gradwire-1-of-2.pt", *(path.name for path in other)}


def test_files_of_two_worlds_are_refused(two: Ranks, three: Ranks, tmp_path: Path) -> None:
    """The folder holds files of two worlds, as if a job had died while it wrote."""
    two.run(written, str(tmp_path))
    (tmp_path / "gradwire-2-of-3.pt").write_bytes((tmp_path / "gradwire-0-of-2.pt").read_bytes())
    assert all(two.run(refuses, str(tmp_path)))
    assert all(three.run(refuses, str(tmp_path)))


def test_files_of_some_ranks_are_refused(two: Ranks, three: Ranks, tmp_path: Path) -> None:
    two.run(written, str(tmp_path))
    (tmp_path / "gradwire-1-of-2.pt").unlink()
    assert any(three.run(refuses, str(tmp_path)))


def test_a_torn_file_is_refused_and_the_one_before_is_not_torn(two: Ranks, tmp_path: Path) -> None:
    kept = two.run(written, str(tmp_path))
    assert two.run(dies_writing, str(tmp_path)) == ["disk full"] * 2
    assert two.run(read, str(tmp_path)) == kept
    file = tmp_path / "gradwire-1-of-2.pt"
    file.write_bytes(file.read_bytes()[:500])
    first, second = two.run(refuses, str(tmp_path))
    assert first == ""
    assert "cannot be read" in second
    assert str(file) in second

"""Every example of a public docstring runs as it stands, and prints what it shows."""

from __future__ import annotations

import contextlib
import doctest
import inspect
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from ranks import Ranks
from torch import nn

import gradwire

PARSER = doctest.DocTestParser()
BESIDE = "lab", "network", "testing"
"""Public modules that `gradwire` does not import."""


def public() -> Iterator[tuple[str, Any]]:
    """The functions and classes of `gradwire` and its modules, and the methods of these, by
    name."""
    for name in (*dir(gradwire), *BESIDE):
        own = import_module(f"gradwire.{name}") if name in BESIDE else getattr(gradwire, name)
        inside = {name: own}
        if inspect.ismodule(own) and not name.startswith("_"):
            inside = {f"{name}.{member}": x for member, x in vars(own).items()}
        for known, one in inside.items():
            if inspect.isclass(one) or inspect.isfunction(one):
                yield known, one
            if inspect.isclass(one):
                yield from ((f"{known}.{m}", x) for m, x in vars(one).items() if callable(x))


EXAMPLES = {
    name: inspect.cleandoc(one.__doc__)
    for name, one in public()
    if ">>>" in (getattr(one, "__doc__", None) or "")
}


def told(name: str, folder: str) -> str:
    """What doctest reports of the example, in a world of one."""
    text, lines = EXAMPLES[name], list[str]()
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    known: dict[str, Any] = {
        "gradwire": gradwire, "torch": torch, "model": model,
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.1),
        "batches": [(torch.randn(4, 6), torch.randn(4, 3)) for _ in range(2)],
        "loss_of": nn.functional.mse_loss,
    }  # fmt: skip
    with contextlib.chdir(folder), contextlib.ExitStack() as ended:
        ended.callback(end, model)
        if "handle" in text and "handle = " not in text:
            known["handle"] = gradwire.attach(model, "topk(0.5)+ef | allgather")
            model(known["batches"][0][0]).sum().backward()  # so that residuals are not empty
            known["optimizer"].step()
        example = PARSER.get_doctest(text, known, name, None, None)
        doctest.DocTestRunner(verbose=False).run(example, out=lines.append)
    return "".join(lines)


def end(model: nn.Module) -> None:
    """Detaches the model if the example has left it attached."""
    with contextlib.suppress(gradwire.errors.UsageError):
        gradwire.detach(model)


def test_there_are_some() -> None:
    """What a newcomer calls first has an example, at least."""
    assert {"attach", "lockstep", "recommend", "sound", "record", "LocalSteps"} <= set(EXAMPLES)
    assert {"network.route", "testing.Workers"} <= set(EXAMPLES)


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_runs_as_it_stands(one: Ranks, name: str, tmp_path: Path) -> None:
    assert one.run(told, name, str(tmp_path)) == [""]

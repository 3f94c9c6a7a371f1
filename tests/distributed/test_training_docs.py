"""docs/training.md: every snippet runs, in order, in one job of one rank."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import torch
from ranks import Ranks

PAGE = Path(__file__).parents[2] / "docs" / "training.md"


def read(folder: str) -> int:
    os.chdir(folder)
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh(), torch.nn.Linear(4, 4))
    model.add_module("table", torch.nn.Embedding(3, 4))

    class Loop:
        def __len__(self) -> int:
            return 10

    import gradwire

    names: dict[str, Any] = {
        "torch": torch,
        "gradwire": gradwire,
        "model": model,
        "loader": Loop(),
    }
    snippets = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    for snippet in snippets:
        exec(compile(snippet, PAGE.name, "exec"), names)
        model.zero_grad()
        (model[2](model[0](torch.ones(2, 4))).sum() + model[3].weight.sum()).backward()
        names["optimizer"].step() if "scaler" not in names else None
    names["handle"].detach()
    return len(snippets)


def test_every_snippet_runs(one: Ranks, tmp_path: Path) -> None:
    assert one.run(read, str(tmp_path)) == [9]

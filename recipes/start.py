"""Starts a script as `python SCRIPT …` would, and notes the time and the loss of each backward().

    python start.py NOTES SCRIPT [ARGUMENT …]

Scripts print what they like; their losses and steps all pass through `Tensor.backward`. The notes
of a rank are a list of [seconds, loss], in NOTES/RANK.json. With STOP_AFTER=N in the environment
the script ends before its backward() N + 1, which all ranks reach.
"""

from __future__ import annotations

import json
import os
import re
import runpy
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch


def main() -> None:
    """Runs the script that the command line names, and writes this rank's notes."""
    notes, script, *arguments = sys.argv[1:]
    sys.argv = [script, *arguments]
    is_file = script.endswith(".py")  # else a module, as with python -m
    sys.path[0] = str(Path(script).resolve().parent if is_file else Path.cwd())
    declare_operators_of_torchvision()
    noted = noting_backward()
    try:
        (runpy.run_path if is_file else runpy.run_module)(script, run_name="__main__")
    finally:
        Path(notes, f"{os.environ.get('RANK', '0')}.json").write_text(json.dumps(noted))


def noting_backward() -> list[tuple[float, float]]:
    """Returns the list into which every later call of `Tensor.backward` is written."""
    noted: list[tuple[float, float]] = []
    backward, most = torch.Tensor.backward, int(os.environ.get("STOP_AFTER", "-1"))

    def backward_with_note(loss: torch.Tensor, *args: Any, **kwargs: Any) -> None:
        if len(noted) == most:
            raise SystemExit
        if not loss.is_meta:  # of a model without data, by which litgpt counts operations
            noted.append((time.perf_counter(), float(loss.detach())))
        backward(loss, *args, **kwargs)

    torch.Tensor.backward = backward_with_note  # type: ignore[assignment, method-assign]
    return noted


def declare_operators_of_torchvision() -> None:
    """Declares the operators that torchvision's import asks for.

    The wheel of torchvision has its operators (nms) in a library for CUDA. Beside a torch for CPUs
    that library cannot be loaded, and then not even the part in Python can be imported, which is
    all that these scripts use: transforms, data sets and models.
    """
    found = find_spec("torchvision")
    if found is None or found.origin is None or torch.version.cuda is not None:
        return
    text = Path(found.origin).with_name("_meta_registrations.py").read_text()
    library = torch.library.Library("torchvision", "FRAGMENT")
    for name in re.findall(r'register_fake\("torchvision::(\w+)"\)', text):
        library.define(f"{name}(Tensor boxes, Tensor scores, float threshold) -> Tensor")
    globals()["_library"] = library  # declarations end with the library


if __name__ == "__main__":
    main()

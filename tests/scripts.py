"""Imports programs of benchmarks, and modules beside them, which are not in a package."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


@contextmanager
def script(question: str, name: str, *neighbours: str) -> Iterator[ModuleType]:
    """Imports `benchmarks/QUESTION/NAME.py`. Afterwards it and its neighbours are not in
    `sys.modules` any more, and modules of these names are what they were."""
    folder, own = str(BENCHMARKS / question), (name, *neighbours)
    before = {one: sys.modules.pop(one) for one in own if one in sys.modules}
    sys.path.insert(0, folder)
    try:
        yield importlib.import_module(name)
    finally:
        sys.path.remove(folder)
        for one in own:
            sys.modules.pop(one, None)
        sys.modules.update(before)

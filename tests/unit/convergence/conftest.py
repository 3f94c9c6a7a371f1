"""The suite's modules, which form no package: imported once, then taken out of sys.modules."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

FOLDER = Path(__file__).parents[3] / "benchmarks" / "convergence"
NAMES = (
    "task", "tasks", "rivals", "methods", "exchange", "oracles", "controls", "train", "parity",
    "report", "frontier", "workers", "processes", "contestants", "main", "time_to_accuracy",
)  # fmt: skip
"""The modules, in an order in which each imports only earlier ones."""


def ours(name: str) -> bool:
    return name.partition(".")[0] in NAMES


@pytest.fixture(scope="session")
def suite() -> SimpleNamespace:
    """The modules as attributes: suite.train, suite.parity, …"""
    before = {name: sys.modules.pop(name) for name in list(sys.modules) if ours(name)}
    sys.path.insert(0, str(FOLDER))
    try:
        found = {name: importlib.import_module(name) for name in NAMES}
    finally:
        sys.path.remove(str(FOLDER))
        for name in [name for name in sys.modules if ours(name)]:
            del sys.modules[name]
        sys.modules.update(before)
    return SimpleNamespace(**found)

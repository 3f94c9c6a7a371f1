"""Which arguments go to Lightning's strategy and which to DDP; a stub stands for Lightning."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest

pytest.importorskip("fsspec")
NAME = "gradwire.training.integrations.lightning"


class DDPStrategy:
    """Keeps its arguments; refuses a name that is neither Lightning's nor DDP's."""

    def __init__(self, find_unused_parameters: bool = False, timeout: float = 1.0) -> None:
        self.given = find_unused_parameters, timeout


@pytest.fixture
def strategy_of(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    for name, there in (
        ("lightning", {}), ("lightning.fabric", {"Fabric": object}), ("lightning.pytorch", {}),
        ("lightning.pytorch.strategies", {"DDPStrategy": DDPStrategy}),
    ):  # fmt: skip
        module = ModuleType(name)
        vars(module).update(there)
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.delitem(sys.modules, NAME, raising=False)
    yield importlib.import_module(NAME).GradwireStrategy
    sys.modules.pop(NAME, None)


def test_options_of_attach_and_of_ddp_go_their_ways(strategy_of: Any) -> None:
    made = strategy_of("none | allreduce", clip_norm=1.0, find_unused_parameters=True, lanes=2)
    assert made._options == {"clip_norm": 1.0, "lanes": 2}
    assert made.given == (True, 1.0)


def test_a_dictionary_does_too(strategy_of: Any) -> None:
    made = strategy_of("none | allreduce", {"clip_norm": 1.0, "seed": 3}, seed=4, timeout=2.0)
    assert made._options == {"clip_norm": 1.0, "seed": 4}
    assert made.given == (False, 2.0)


def test_what_is_neither_is_refused(strategy_of: Any) -> None:
    with pytest.raises(TypeError, match="clip_nrom"):
        strategy_of("none | allreduce", clip_nrom=1.0)

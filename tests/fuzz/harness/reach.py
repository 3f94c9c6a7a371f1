"""Counts which native functions are called, and by whom: no way in must be forgotten.

The extension is replaced by one that counts before it calls. Callers are read from the source.
"""

from __future__ import annotations

import ast
import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

_SOURCE = Path(__file__).parents[3] / "src" / "gradwire"
_NAMES = ("core", "native", "fast")
"""The names by which the extension is used."""
WITHOUT_A_FACE = {
    "bench/kernels.py": "gives addresses of its own tensors, to measure memory alone",
    "bench/compressors.py": "gives addresses of its own tensors, to measure memory alone",
    "lab/forwarding.py": "gives sockets that it made; see tests/unit/lab/test_forwarder.py",
}
"""Files that may call the extension though no target reaches them, and why."""
ONLY_THERE = {
    "stream_halve", "stream_read", "stream_update", "Forwarder", "Forwarder.counts",
    "Forwarder.run",
}  # fmt: skip
"""Native functions that only these files call."""


def native_names(module: ModuleType) -> list[str]:
    """The names of all that the extension offers; methods as Journal.address."""
    names = []
    for name, value in vars(module).items():
        if name.startswith("_"):
            continue
        if isinstance(value, type):
            names += [f"{name}.{m}" for m in vars(value) if not m.startswith("_")] + [name]
        elif callable(value):
            names.append(name)
    return sorted(names)


def callers(names: list[str]) -> list[str]:
    """Every function of the source that calls one of these, as 'kernels/rows.py nonzero_rows'."""
    own = {name.rpartition(".")[2] for name in names}
    found = set()
    for path in sorted(_SOURCE.rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for function in ast.walk(tree):
            if isinstance(function, ast.FunctionDef) and any(
                _calls(node, own) for node in ast.walk(function)
            ):
                found.add(f"{path.relative_to(_SOURCE).as_posix()} {function.name}")
    return sorted(c for c in found if c.split()[0] not in WITHOUT_A_FACE)


def _calls(node: ast.AST, names: set[str]) -> bool:
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return False
    of = node.func.value
    is_core = isinstance(of, ast.Name) and of.id in _NAMES
    is_core |= isinstance(of, ast.Attribute) and of.attr in (*_NAMES, "_native")
    return is_core and node.func.attr in names


class Reached:
    """The counting extension. counts: the calls of each name, then those by each caller."""

    def __init__(self) -> None:
        module = importlib.import_module("gradwire._native")
        self.names = native_names(module)
        self.callers = callers(self.names)
        self.counts: Any = [0] * (len(self.names) + len(self.callers))
        self._number = {name: i for i, name in enumerate((*self.names, *self.callers))}
        self._known: dict[object, int] = {}
        counted = ModuleType("gradwire._native")
        for name in self.names:
            if "." not in name:
                vars(counted)[name] = self._counted(name, getattr(module, name))
        journal = vars(counted)["Journal"]
        vars(counted)["Journal"] = lambda: _Object(journal(), "Journal", self._counted)
        sys.modules["gradwire._native"] = counted

    def missing(self) -> list[str]:
        """The names and callers that were not reached."""
        return [name for name, i in self._number.items() if not self.counts[i]
                and name not in ONLY_THERE]  # fmt: skip

    def _counted(self, name: str, do: Callable[..., object]) -> Callable[..., object]:
        number = self._number[name]

        def counted(*given: object) -> object:
            self.counts[number] += 1
            code = sys._getframe(1).f_code
            caller = self._known.get(code)
            if caller is None:
                path = Path(code.co_filename)
                inside = path.is_relative_to(_SOURCE)
                own = f"{path.relative_to(_SOURCE).as_posix()} {code.co_name}" if inside else ""
                caller = self._known[code] = self._number.get(own, -1)
            if caller >= 0:
                self.counts[caller] += 1
            return do(*given)

        return counted


class _Object:
    """A native object whose methods are counted."""

    def __init__(self, of: object, kind: str, counted: Callable[..., Any]) -> None:
        for name in vars(type(of)):
            if not name.startswith("_"):
                vars(self)[name] = counted(f"{kind}.{name}", getattr(of, name))

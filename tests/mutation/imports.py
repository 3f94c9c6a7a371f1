"""Imports a module with its mutant in it."""

from __future__ import annotations

import importlib.util
import sys
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from types import CodeType

from mutation.operators import mutated


def module_of(file: str) -> str:
    """The module name of a file of the package."""
    return f"gradwire/{file}".removesuffix(".py").removesuffix("/__init__").replace("/", ".")


class Finder:
    """Finds that one module, once; an entry of sys.meta_path."""

    def __init__(self, file: str, number: int) -> None:
        self._name, self._number = module_of(file), number

    def find_spec(self, name: str, path: object, target: object = None) -> ModuleSpec | None:
        if name != self._name:
            return None
        sys.meta_path.remove(self)  # type: ignore[arg-type]
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.origin:
            spec.loader = _Loader(name, spec.origin, self._number)
        return spec


class _Loader(SourceFileLoader):
    def __init__(self, name: str, path: str, number: int) -> None:
        super().__init__(name, path)
        self._number = number

    def get_code(self, fullname: str) -> CodeType:
        source = Path(self.path).read_text(encoding="utf-8")
        return mutated(source, self.path, self._number)[0]

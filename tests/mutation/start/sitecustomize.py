"""Python runs this first where PYTHONPATH has this folder: what a mutant starts is that mutant.

GRADWIRE_MUTANT is its file and number. The fork server of ranks, command lines and the fuzzer
import that module with its change.
"""

import importlib.util
import os
import sys
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from types import CodeType


class _Loader(SourceFileLoader):
    def __init__(self, name: str, path: str, number: int) -> None:
        super().__init__(name, path)
        self._number = number

    def get_code(self, fullname: str) -> CodeType:
        from mutation.operators import mutated

        source = Path(self.path).read_text(encoding="utf-8")
        return mutated(source, self.path, self._number)[0]


class _Finder:
    """Of one module, once."""

    def __init__(self, file: str, number: int) -> None:
        name = f"gradwire/{file}".removesuffix(".py").removesuffix("/__init__")
        self._name, self._number = name.replace("/", "."), number

    def find_spec(self, name: str, path: object, target: object = None) -> ModuleSpec | None:
        if name != self._name:
            return None
        sys.meta_path.remove(self)  # type: ignore[arg-type]
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.origin:
            spec.loader = _Loader(name, spec.origin, self._number)
        return spec


if _key := os.environ.get("GRADWIRE_MUTANT"):
    _number, _file = _key.split(" ", 1)
    sys.meta_path.insert(0, _Finder(_file, int(_number)))  # type: ignore[arg-type]

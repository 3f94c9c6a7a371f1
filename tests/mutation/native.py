"""Mutants of the C++ core: one token of one line, built in a copy of the sources.

The sources have no macro for it, which everybody would read and nobody use. The copy is changed
and built again, one translation unit at a time. Ranks keep the installed extension.
"""

from __future__ import annotations

import functools
import importlib.util
import itertools
import os
import re
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from mutation.build import ROOT, Build

FOLDER = ROOT / "build/mutation/mutants"
SWAPS = {
    " < ": " <= ", " <= ": " < ", " > ": " >= ", " >= ": " > ", " == ": " != ", " != ": " == ",
    " + ": " - ", " - ": " + ", " && ": " || ", " || ": " && ", " += ": " -= ", " * ": " + ",
    " << ": " >> ", " >> ": " << ", " 0;": " 1;", "true": "false", "false": "true",
    "continue;": "break;", "std::min": "std::max", "std::max": "std::min",
}  # fmt: skip
_NOT_CODE = re.compile(r"\s*(#|//|template|using|static_assert|throw)")


@dataclass(frozen=True)
class NativeMutant:
    """A token at a place of a line, which becomes another."""

    file: str
    number: int
    at: int
    token: str

    def __str__(self) -> str:
        return f"{self.file}:{self.number} '{self.token.strip()}' is '{SWAPS[self.token].strip()}'"

    @property
    def key(self) -> str:
        return ""

    @property
    def line(self) -> tuple[str, int]:
        return self.file, self.number

    @property
    def _extension(self) -> Path:
        name = f"{Path(self.file).stem}-{self.number}-{self.at}.so"
        return FOLDER / name

    def prepare(self) -> bool:
        """Builds the mutant. False if it does not compile, or compiles to the same code."""
        path = _build().sources / self.file
        plain = path.read_text(encoding="utf-8")
        lines = plain.splitlines(keepends=True)
        line, end = lines[self.number - 1], self.at + len(self.token)
        lines[self.number - 1] = line[: self.at] + SWAPS[self.token] + line[end:]
        before = _plain()
        path.write_text("".join(lines), encoding="utf-8")
        try:
            made = _build().extension()
            if made is None or made.read_bytes() == before:
                return False
            shutil.copy(made, self._extension)
            return True
        finally:
            path.write_text(plain, encoding="utf-8")

    def put_in(self) -> None:
        """Replaces every function of the extension by the mutant's; the fuzzer loads it, too."""
        os.environ["GRADWIRE_TEST_NATIVE"] = str(self._extension)
        spec = importlib.util.spec_from_file_location("gradwire._native", self._extension)
        assert spec is not None
        assert spec.loader is not None
        mutant = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(mutant)
        vars(sys.modules["gradwire._native"]).update(vars(mutant))


def mutants() -> Iterator[NativeMutant]:
    """Yields every token of the core that can be another, but none of declarations, comments or
    bindings."""
    for path in sorted((ROOT / "csrc").glob("**/*")):
        if path.suffix not in (".cpp", ".inl", ".hpp") or "bindings" in path.parts:
            continue
        lines = path.read_text(encoding="utf-8").splitlines()
        for (number, line), token in itertools.product(enumerate(lines, 1), SWAPS):
            code = line.split("//")[0]
            if not _NOT_CODE.match(code) and '"' not in code:
                for found in re.finditer(re.escape(token), code):
                    yield NativeMutant(str(path.relative_to(ROOT)), number, found.start(), token)


@functools.cache
def _build() -> Build:
    return Build(FOLDER)


@functools.cache
def _plain() -> bytes:
    made = _build().extension()
    if made is None:
        raise SystemExit("the sources as they are cannot be built")
    return made.read_bytes()

"""Mutants of the C++ core: one token of one line, built in a copy of the sources.

    python tests/mutation/native.py --mutants 40 --seed 0 --results build/native.json

Each runs the tests of the extension, those of its own file first, in the fast suite; what these
do not see goes to the full one. No macro in the sources: the copy is changed and built again, one
translation unit at a time.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
BUILD = ROOT / "build/mutants"
TESTS = ("tests/unit/kernels", "tests/unit/network", "tests/unit/planner", "tests/contract")
SWAPS = {
    " < ": " <= ", " <= ": " < ", " > ": " >= ", " >= ": " > ", " == ": " != ", " != ": " == ",
    " + ": " - ", " - ": " + ", " && ": " || ", " || ": " && ", " += ": " -= ", " * ": " + ",
    " << ": " >> ", " >> ": " << ", " 0;": " 1;", "true": "false", "false": "true",
    "continue;": "break;", "std::min": "std::max", "std::max": "std::min",
}  # fmt: skip


class Change(NamedTuple):
    """Which token of which line becomes which."""

    file: str
    line: int
    at: int
    token: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line} '{self.token.strip()}' is '{SWAPS[self.token].strip()}'"


def changes() -> Iterator[Change]:
    """Every token of the core that can be another; no declarations, comments or bindings."""
    for path in sorted((ROOT / "csrc").glob("**/*")):
        if path.suffix not in (".cpp", ".inl", ".hpp") or "bindings" in path.parts:
            continue
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            code = line.split("//")[0]
            if re.match(r"\s*(#|template|using|static_assert|throw)", code) or '"' in code:
                continue
            for token in SWAPS:
                for found in re.finditer(re.escape(token), code):
                    yield Change(str(path.relative_to(ROOT)), number, found.start(), token)


def build(change: Change | None) -> Path | None:
    """The extension with it, or None if that is no C++."""
    source = BUILD / "source"
    if not source.exists():
        for part in ("csrc", "CMakeLists.txt"):
            copy = shutil.copytree if (ROOT / part).is_dir() else shutil.copy
            BUILD.joinpath("source").mkdir(parents=True, exist_ok=True)
            copy(ROOT / part, source / part)
        here = subprocess.check_output(
            [sys.executable, "-m", "nanobind", "--cmake_dir"], text=True
        )
        subprocess.run(
            ["cmake", "-S", source, "-B", BUILD / "made", "-DCMAKE_CXX_FLAGS=-O1", "-G", "Ninja",
             f"-DPython_EXECUTABLE={sys.executable}", f"-Dnanobind_DIR={here.strip()}"],
            check=True, stdout=subprocess.DEVNULL,
        )  # fmt: skip
        _ninja(check=True)
    if change is None:
        return next((BUILD / "made").glob("_native*.so"))
    path = source / change.file
    plain = path.read_text(encoding="utf-8")
    lines = plain.splitlines(keepends=True)
    line, end = lines[change.line - 1], change.at + len(change.token)
    lines[change.line - 1] = line[: change.at] + SWAPS[change.token] + line[end:]
    path.write_text("".join(lines), encoding="utf-8")
    try:
        built = _ninja() == 0
        made = next((BUILD / "made").glob("_native*.so"))
        return Path(shutil.copy(made, BUILD / made.name)) if built else None
    finally:
        path.write_text(plain, encoding="utf-8")


def _ninja(check: bool = False) -> int:
    done = subprocess.run(["ninja", "-C", BUILD / "made"], stdout=subprocess.DEVNULL)
    if check and done.returncode:
        raise SystemExit("the sources as they are cannot be built")
    return done.returncode


def tests_of(change: Change) -> list[str]:
    """All, those that are named as the file first."""
    stem = Path(change.file).stem.split("_")[0]
    own = sorted((ROOT / "tests").glob(f"unit/*/test_*{stem}*.py"))
    return [str(path) for path in own] + [str(ROOT / path) for path in TESTS]


def killed_by(extension: Path, change: Change, *options: str) -> str:
    """The first case that failed, "death or hang", or nothing."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *options]
    environment = {**os.environ, "GRADWIRE_TEST_NATIVE": str(extension), "OMP_NUM_THREADS": "1"}
    try:
        ran = subprocess.run(
            [*command, "--timeout", "60", *tests_of(change)], cwd=ROOT, env=environment,
            capture_output=True, text=True, timeout=3600,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return "death or hang"
    if ran.returncode == 0:
        return ""
    failed = re.search(r"^(?:FAILED|ERROR) (.*?)(?: - |$)", ran.stdout, re.MULTILINE)
    return failed[1] if failed else "death or hang"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mutants", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--results", type=Path)
    asked = parser.parse_args()
    plain = build(None)
    assert plain is not None
    found: list[dict[str, object]] = []
    drawn = list(changes())
    random.Random(asked.seed).shuffle(drawn)
    while drawn and len(found) < asked.mutants:
        change, began = drawn.pop(), time.monotonic()
        extension = build(change)
        if extension is None:
            continue
        fast = killed_by(extension, change)
        full = fast or killed_by(extension, change, "--full")
        suite = "fast" if fast else "full" if full else ""
        found.append({
            "mutant": str(change), "killed_by": full, "suite": suite,
            "seconds": round(time.monotonic() - began, 1),
        })  # fmt: skip
        print(json.dumps(found[-1]), flush=True)
        if asked.results:
            asked.results.parent.mkdir(parents=True, exist_ok=True)
            asked.results.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

"""A bounded run of the fuzzer, and that it can fail: docs/design/fuzzing.md says what it is."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import gradwire.kernels
from gradwire.kernels import native

MAIN = Path(__file__).parent / "main.py"
CALLS = int(os.environ.get("GRADWIRE_FUZZ_CALLS", "2200"))
"""The calls of this short run; more are made under sanitizers."""
NOT_CALLED = {
    "kernels.native": "chooses what runs, and calls nothing but its version",
    "kernels.rooms": "chooses where",
    "kernels.memory": "allocates by torch",
    "kernels.formats": "of torch alone",
    "kernels.tensors": "the checks themselves",
}
"""Modules of which nothing is fuzzed, and why."""
OWN = re.compile(r"^_|^check_|^quotient$")
"""Functions that are checks, or parts of others."""
PLAIN = {
    "as_rows", "is_rows", "no_rows", "write_rows", "fill_nan", "jobs_of", "nothing_taken",
    "recurrence_of", "owners_of", "drawn", "most_singles", "slots_for", "escape_of",
    "whole_bytes", "low_width", "parts_of", "bytes_of", "new_status", "is_raised", "without_codes",
    "together", "beside", "add_up", "told_to", "judge", "run_unless", "stamp",
    "held_by", "goes_on",
    "hint_of", "limit_of", "number_of", "gradients_of", "are_rounded",
}  # fmt: skip
"""Functions of torch or arithmetic alone; together, beside and add_up: of those that are called
for many."""

needs_extension = pytest.mark.skipif(
    native.available_sets() == [native.TWIN], reason="there is no extension to call"
)


def fuzz(*given: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(MAIN), *given], capture_output=True, text=True, check=False
    )


@needs_extension
def test_a_short_run_finds_nothing_and_reaches_every_way_into_the_extension() -> None:
    done = fuzz("--calls", str(CALLS), "--limit", "20")
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-3000:]


@pytest.mark.full
@needs_extension
def test_it_finds_what_checks_prevent() -> None:
    done = fuzz("--mutants", "--calls", "50", "--limit", "1")
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]


def test_every_kernel_is_called() -> None:
    """A function that nobody draws calls of would never be fuzzed."""
    drawn = "\n".join(
        path.read_text(encoding="utf-8") for path in MAIN.parent.glob("harness/targets/*.py")
    )
    names = set(re.findall(r"@target\(\s*([\w.]+)|\b\w+\.(\w+)\(", drawn))
    called = {name.rpartition(".")[2] for pair in names for name in pair if name}
    missing = []
    for path in Path(gradwire.kernels.__file__).parent.glob("*.py"):
        module = f"kernels.{path.stem}"
        if module in NOT_CALLED or path.stem == "core":
            continue
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.FunctionDef) and not OWN.search(node.name):
                missing += [f"{module}.{node.name}"] * (node.name not in called | PLAIN)
    assert not missing, "draw calls of these, or say in this file why not"

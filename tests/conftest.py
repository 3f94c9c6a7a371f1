"""What every test may use: golden files, a browser, and an extension that is not installed."""

from __future__ import annotations

import difflib
import importlib.util
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

if NATIVE := os.environ.get("GRADWIRE_TEST_NATIVE"):
    # An extension that is not installed (`make test-sanitized`) must be loaded before ours is.
    _spec = importlib.util.spec_from_file_location("gradwire._native", NATIVE)
    assert _spec is not None
    assert _spec.loader is not None
    sys.modules[_spec.name] = importlib.util.module_from_spec(_spec)
    _spec.loader.exec_module(sys.modules[_spec.name])

# The kernels of CUDA run on processors in tests; set before anything imports triton.
os.environ.setdefault("TRITON_INTERPRET", "1")

GOLDEN = Path(__file__).parent / "golden"

pytest_plugins = ("suites", "pytester")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden",
        action="store_true",
        help="write the golden files anew instead of comparing with them",
    )


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    """Limits torch to one thread: ranks share the cores, in tests as in jobs."""
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Chromium, in which tests look at pages."""
    from chromium import started

    yield from started()


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """golden(name, text) checks that tests/golden/name holds text; --update-golden writes it."""

    def compare(name: str, text: str) -> None:
        path = GOLDEN / name
        if request.config.getoption("--update-golden"):
            path.write_text(text, encoding="utf-8")
        wanted = path.read_text(encoding="utf-8") if path.exists() else ""
        lines = difflib.unified_diff(
            wanted.splitlines(), text.splitlines(), f"golden/{name}", "now", lineterm=""
        )
        difference = "\n".join(lines)
        assert not difference, (
            f"golden/{name} has changed. If that is meant, and noted for users, run "
            f"pytest tests/golden --update-golden and commit the file.\n{difference}"
        )

    return compare

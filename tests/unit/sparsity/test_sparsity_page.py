"""What docs/sparsity.md shows can be pasted and run, and prints what it says."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[3] / "docs" / "sparsity.md"
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)


def test_the_page_has_examples() -> None:
    assert len(BLOCKS) >= 3


@pytest.mark.parametrize("block", BLOCKS, ids=lambda b: b.splitlines()[-1][:40])
def test_an_example_runs_and_prints_what_it_says(
    block: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A comment behind print(...) is what it prints."""
    monkeypatch.chdir(tmp_path)
    said = re.findall(r"^print\(.*\)  # (.*)$", block, re.MULTILINE)
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile(block, str(PAGE), "exec"), {})
    assert out.getvalue().splitlines() == said

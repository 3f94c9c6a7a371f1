"""The study's page: its Python code runs and prints what the page says, and its commands work."""

from __future__ import annotations

import contextlib
import io
import re
import runpy
import shlex
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[3] / "benchmarks" / "sparse"
PAGE = (FOLDER / "SPARSITY.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
COMMANDS = re.findall(r"^python benchmarks/sparse/main\.py (.*?)(?: +#.*)?$", PAGE, re.MULTILINE)


def test_the_page_is_read() -> None:
    assert (len(BLOCKS), len(COMMANDS)) == (4, 6)


def test_every_block_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for block in BLOCKS:
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            exec(compile(block, "SPARSITY.md", "exec"), {})
        assert out.getvalue().splitlines() == re.findall(r"print\(.*\)  # (.*)$", block, re.M)
    assert (tmp_path / "table-0.pt").exists()


@pytest.mark.parametrize("words", COMMANDS)
def test_every_command_can_be_typed(
    words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Commands run at a small scale, whatever the page says, since the work grows with it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sparsity.costs.save", lambda panels, title, path: None)
    (tmp_path / "points.json").write_text('[{"scheme": "zen", "n": 4, "bytes": 4e7}]')
    asked = shlex.split(words)
    if "--tensors" in asked:
        exec(compile(BLOCKS[-1], "SPARSITY.md", "exec"), {})
        asked = ["--tensors", *(path.name for path in tmp_path.glob("table-*.pt"))]
    elif "--scale" in asked:
        asked[asked.index("--scale") + 1] = "0.01"
    else:
        asked += ["--scale", "0.05"]
    assert runpy.run_path(str(FOLDER / "main.py"))["main"](asked) == 0

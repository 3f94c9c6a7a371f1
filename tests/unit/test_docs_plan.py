"""docs/plan.md: every command and every snippet runs as it stands there."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from gradwire.cli.main import main
from gradwire.topology import Cluster

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "plan.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)


@pytest.fixture
def _checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path)


@pytest.mark.usefixtures("_checkout")
def test_every_command_runs(capsys: pytest.CaptureFixture[str]) -> None:
    lines = [line for block in blocks("console") for line in block.splitlines()]
    assert len(lines) >= 9
    for line in lines:
        program, *arguments = shlex.split(line)
        assert program == "gradwire"
        assert main(arguments) == 0, line
        assert capsys.readouterr().out


@pytest.mark.usefixtures("_checkout")
def test_every_snippet_runs() -> None:
    for snippet in blocks("python"):
        exec(compile(snippet, "docs/plan.md", "exec"), {})


def test_the_cluster_is_one() -> None:
    (text,) = blocks("toml")
    assert Cluster.from_toml(text).world == 128

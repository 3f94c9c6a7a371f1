"""docs/plan.md and docs/network.md: every command and every snippet runs as it stands there."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from gradwire.cli.main import main
from gradwire.topology import Cluster

ROOT = Path(__file__).parents[2]
COMMANDS = {"plan.md": 9, "network.md": 6}  # pages, and how many there are at least


def blocks(page: str, language: str) -> list[str]:
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


@pytest.fixture
def _checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path)


@pytest.mark.usefixtures("_checkout")
@pytest.mark.parametrize("page", COMMANDS)
def test_every_command_runs(page: str, capsys: pytest.CaptureFixture[str]) -> None:
    lines = [line for block in blocks(page, "console") for line in block.splitlines()]
    assert len(lines) >= COMMANDS[page]
    for line in lines:
        program, *arguments = shlex.split(line)
        assert program == "gradwire"
        assert main(arguments) == 0, line
        assert capsys.readouterr().out


@pytest.mark.usefixtures("_checkout")
@pytest.mark.parametrize("page", COMMANDS)
def test_every_snippet_runs(page: str) -> None:
    snippets = blocks(page, "python")
    assert snippets
    for snippet in snippets:
        exec(compile(snippet, f"docs/{page}", "exec"), {})


def test_the_cluster_is_one() -> None:
    (text,) = blocks("plan.md", "toml")
    assert Cluster.from_toml(text).world == 128

"""The recipes: at most five lines each, with a strategy that is sound beside their optimizer, and
results in which the model learns as much as with DDP."""

from __future__ import annotations

import json
import re
import runpy
import shutil
import statistics
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

import gradwire

FOLDER = Path(__file__).parents[2] / "recipes"
NAMES = sorted(path.parent.name for path in FOLDER.glob("*/recipe.toml"))
RESULTS = sorted(FOLDER.glob("results/*.json"))
PATCHES = sorted(FOLDER.glob("*/*.patch"))
MOST_LINES = 5
AS_GOOD = 0.01
"""How much higher a loss may be, beyond noise: the project's rule for what is sound."""

TABLE: dict[str, Any] = runpy.run_path(str(FOLDER / "table.py"))
every = pytest.mark.parametrize("name", NAMES)


def recipe(name: str) -> dict[str, Any]:
    return tomllib.loads((FOLDER / name / "recipe.toml").read_text())


def patch(name: str) -> str:
    return (FOLDER / name / "gradwire.patch").read_text()


def test_there_are_eight() -> None:
    assert len(NAMES) == 8


@every
def test_a_recipe_is_at_most_five_lines(name: str) -> None:
    assert 1 <= TABLE["lines_changed"](patch(name)) <= MOST_LINES


@pytest.mark.parametrize(
    ("body", "lines"),
    [("+a\n", 1), ("-a\n+b\n", 1), ("-a\n", 1), ("-a\n+b\n+c\n", 2), ("+a\n b\n+c\n", 2),
     ("+a\n\n-c\n", 2)],
)  # fmt: skip
def test_lines_are_counted(body: str, lines: int) -> None:
    assert TABLE["lines_changed"](f"--- a/x\n+++ b/x\n@@ -1,2 +1,2 @@\n{body}") == lines


@every
def test_a_strategy_is_sound_beside_its_optimizer(name: str) -> None:
    strategy = recipe(name)["strategy"]
    assert gradwire.sound(strategy, recipe(name)["optimizer"]).kind == "sound"
    assert f'"{strategy}"' in patch(name), "the strategy of the table is that of the patch"


@every
def test_a_recipe_says_which_original_it_changes(name: str) -> None:
    told = recipe(name)
    assert re.fullmatch(r"[0-9a-f]{40}", told["commit"])
    assert told["repository"].startswith("https://github.com/")
    assert told["script"].split("/")[0] in patch(name)


def original(text: str) -> dict[str, list[str]]:
    """Returns what a patch tells of the files that it changes: their lines in the hunks."""
    files: dict[str, list[str]] = {}
    lines: list[str] = []
    for line in text.splitlines():
        if line.startswith("--- a/"):
            lines = files.setdefault(line.removeprefix("--- a/"), [])
        elif found := re.match(r"@@ -(\d+)", line):
            lines += ["" for _ in range(int(found[1]) - 1 - len(lines))]
        elif line.startswith((" ", "-")) and not line.startswith("--- "):
            lines.append(line[1:])
    return files


@pytest.mark.skipif(shutil.which("patch") is None, reason="needs patch(1)")
@pytest.mark.parametrize("file", PATCHES, ids=lambda file: f"{file.parent.name}-{file.stem}")
def test_a_patch_can_be_applied(file: Path, tmp_path: Path) -> None:
    """Its hunks are whole: they fit a file of just the lines that they name."""
    text = file.read_text()
    for name, lines in original(text).items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("\n".join(lines) + "\n")
    command = ["patch", "--strip=1", "--fuzz=0", f"--input={file}"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    made = "".join((tmp_path / name).read_text() for name in original(text))
    for line in text.splitlines():
        if line.startswith("+") and not line.startswith("+++ "):
            assert line[1:] in made


def test_the_page_has_the_table_of_the_results() -> None:
    assert TABLE["table"]() in (FOLDER / "README.md").read_text()


@pytest.mark.parametrize("file", RESULTS, ids=lambda file: file.stem)
def test_a_model_learns_as_much_as_with_ddp(file: Path) -> None:
    runs = json.loads(file.read_text())
    losses = {(r["kind"], r["seed"]): r["loss"] for r in runs if r["stop_after"] is None}
    seeds = {seed for _, seed in losses}
    assert len(seeds) >= 2
    above = [losses["gradwire", seed] / losses["ddp", seed] - 1 for seed in seeds]
    noise = 2 * statistics.stdev(above) / len(above) ** 0.5
    assert statistics.fmean(above) <= max(AS_GOOD, noise)


def test_notes_become_a_loss_and_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(FOLDER)
    measured = runpy.run_path(str(FOLDER / "run.py"))["measured"]
    # Two micro-batches to a step; steps take 5 seconds at first, and 2 in the second half.
    begins = [0.0, 5.0, 10.0, 12.0, 14.0]
    notes = [(begin + part, 3.0 - begin / 10) for begin in begins for part in (0.0, 0.5)]
    assert measured([notes, notes], 2) == {"steps": 5, "loss": pytest.approx(3.2), "seconds": 2.0}


def test_a_script_is_stopped_and_noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import sys, torch\n"
        "w = torch.ones(1, requires_grad=True)\n"
        "for step in range(int(sys.argv[1])):\n"
        "    (w * step).sum().backward()\n"
    )
    for stop_after, steps in (("3", [0, 1, 2]), ("-1", [0, 1, 2, 3, 4])):
        monkeypatch.setenv("STOP_AFTER", stop_after)
        monkeypatch.setenv("RANK", "7")
        command = [sys.executable, str(FOLDER / "start.py"), str(tmp_path), str(script), "5"]
        subprocess.run(command, check=True)
        noted = json.loads((tmp_path / "7.json").read_text())
        assert [loss for _, loss in noted] == steps

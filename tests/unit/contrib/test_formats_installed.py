"""The package of formats, installed by pip: `gradwire network` knows them, and pages are true."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from doc_pages import blocks, commands
from doc_run import SMALLER
from test_docstrings import undocumented
from test_formats_topologies import PLAIN, document

from wheels import installed

ROOT = Path(__file__).parents[3]
PACKAGE = ROOT / "contrib" / "formats"
COMMANDS = """
import contextlib, io, json, sys
from gradwire.cli.main import main
told = []
for command in json.loads(sys.argv[1]):
    out, error = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(error):
        code = main(command)
    told.append((code, out.getvalue(), error.getvalue()))
print(json.dumps(told))
"""
Told = list[tuple[int, str, str]]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the package is installed."""
    return installed(PACKAGE, tmp_path_factory.mktemp("formats"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where a reader of the pages would be, with the files that they speak of."""
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    job = (ROOT / "examples" / "parallel.toml").read_text(encoding="utf-8")
    (tmp_path / "small.toml").write_text(job.replace("dp = 32", "dp = 4"))
    (tmp_path / "cluster.yaml").write_text(yaml.safe_dump(document()))
    (tmp_path / "topology.txt").write_text(PLAIN.replace("6 3 6", "7 3 6"))
    return tmp_path


def run(place: Path, folder: Path, *asked: list[str]) -> Told:
    """Commands, in a process that finds the package: exit codes, and what is printed."""
    paths = [str(place), *filter(None, [os.environ.get("PYTHONPATH")])]
    done = subprocess.run(
        [sys.executable, "-c", COMMANDS, json.dumps(asked)], cwd=folder, capture_output=True,
        text=True, timeout=280, env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    found: Told = [(code, out, error) for code, out, error in json.loads(done.stdout)]
    return found


@pytest.mark.parametrize("page", ["docs/network.md", "contrib/formats/README.md"])
def test_what_a_page_shows_runs(page: str, place: Path, folder: Path) -> None:
    shown = [
        [SMALLER.get(word, word) for word in words]
        for block in blocks(page) if block.language == "console"
        for program, *words in commands(block.text) if program == "gradwire"
    ]  # fmt: skip
    assert len(shown) > 1
    for command, (code, out, error) in zip(shown, run(place, folder, *shown)):
        assert code == 0, (command, error)
        assert out, command


def test_topologies_are_read(place: Path, folder: Path) -> None:
    found = run(
        place, folder,
        *([*["network", "simulate", "--json", "--scheme", "coloured", "--topology"], topology]
          for topology in (
              'infragraph("cluster.yaml")', "leaf_spine(4, 2, 3, host_gbps=100, fabric_gbps=400)",
              'ns3("topology.txt")', "leaf_spine(2, 2, 1, host_gbps=100, fabric_gbps=400)",
              'ns3("none.txt")', "ns4()",
          )),
    )  # fmt: skip
    codes, outs, errors = zip(*found)
    assert codes == (0, 0, 0, 0, 2, 2)
    assert outs[0] == outs[1]
    assert outs[2] == outs[3]
    assert "none.txt" in errors[4]
    assert "infragraph, ns3). Use 'ns3'.\n" in errors[5], "nothing else is to be installed"


@pytest.mark.parametrize("file", sorted((PACKAGE / "gradwire_formats").glob("*.py")))
def test_every_public_item_says_what_it_is(file: Path) -> None:
    __import__(name := f"gradwire_formats.{file.stem}".removesuffix(".__init__"))
    assert not list(undocumented(sys.modules[name]))

"""The package of formats, installed by pip: `gradwire network` finds it; its pages are true."""

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
from test_formats_chakra import collective, compute, trace
from test_formats_topologies import PLAIN, document

from suites import first
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
    """The folder in which the package is installed."""
    return installed(PACKAGE, tmp_path_factory.mktemp("formats"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A reader's working folder, with the files that the pages name."""
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    job = (ROOT / "examples" / "parallel.toml").read_text(encoding="utf-8")
    (tmp_path / "small.toml").write_text(job.replace("dp = 32", "dp = 4"))
    (tmp_path / "cluster.yaml").write_text(yaml.safe_dump(document()))
    ports = {f"{a},{b}": {"0": [61000], "1": [61001]} for a in range(4) for b in range(4)}
    (tmp_path / "ports.json").write_text(json.dumps(ports))
    (tmp_path / "hosts.txt").write_text("10.0.0.1 10.0.0.2 10.0.0.3 10.0.0.4")
    rows = "\n".join(" ".join(str(7 * a + b) for b in range(32)) for a in range(16))
    (tmp_path / "tokens.txt").write_text(rows)
    (tmp_path / "traces").mkdir()
    for rank in range(4):
        own = trace(compute(1), collective(2, 1), compute(3, 2))
        (tmp_path / "traces" / f"job.{rank}.et").write_bytes(own)
    (tmp_path / "topology.txt").write_text(PLAIN.replace("6 3 6", "7 3 6"))
    return tmp_path


def run(place: Path, folder: Path, *asked: list[str]) -> Told:
    """Runs commands in a process that finds the package; returns exit codes and output."""
    paths = [str(place), *filter(None, [os.environ.get("PYTHONPATH")])]
    done = subprocess.run(
        [sys.executable, "-c", COMMANDS, json.dumps(asked)], cwd=folder, capture_output=True,
        text=True, timeout=280, env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    found: Told = [(code, out, error) for code, out, error in json.loads(done.stdout)]
    return found


@pytest.mark.parametrize("page", first(["contrib/formats/README.md", "docs/network.md"]))
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
    assert "). Use 'ns3'.\n" in errors[5], "nothing else is to be installed"


def test_traffic_is_read(place: Path, folder: Path) -> None:
    plan = ["network", "plan", "--json", "--topology", "leaf_spine(4, 4, 4)", "--traffic"]
    tokens = "tokens('tokens.txt', token_bytes=4096)"
    found = run(
        place, folder, [*plan, tokens], [*plan, "tokens('tokens.txt', 1, 2)"],
        [*plan, tokens, "--groups-of", "4"], [*plan, "tokens('none.txt')"],
    )  # fmt: skip
    told = json.loads(found[0][1])
    assert {"wrap", "lpt"} <= {row["scheme"] for row in told["rows"]}
    assert "min_split" in {one["scheme"] for one in told["refused"]}, "of unequal sizes"
    assert [code for code, _, _ in found] == [0, 2, 2, 2]
    assert "Use 'tokens(file, token_bytes=8192)'" in found[1][2]
    assert "tokens of rank 15, and there are 4 ranks" in found[2][2]
    assert "Correct the name" in found[3][2]


def test_steps_are_read(place: Path, folder: Path) -> None:
    """A step: a collective of 4 MB a rank, at 1 byte per nanosecond, amid 2 ms of computing."""
    network = ["--topology", "leaf_spine(2, 2, 2, host_gbps=8)", "--scheme", "coloured"]
    simulate = ["network", "simulate", "--json", "--tolerance", "0", *network, "--step"]
    texts = ('chakra("traces")', 'chakra("none")', "chakra(4)", "parallel('small.toml')")
    found = run(place, folder, *([*simulate, text] for text in texts))
    told = json.loads(found[0][1])
    assert told["least"] == pytest.approx(0.002)
    assert told["rows"][0]["seconds"] == pytest.approx(0.008)
    assert [code for code, _, _ in found] == [0, 2, 2, 2]
    assert "none has none. Name the folder" in found[1][2]
    assert "Use 'chakra(folder)'" in found[2][2]
    assert "every rank needs a host of its own; got 128 ranks for 4" in found[3][2]


def test_paths_are_written(place: Path, folder: Path) -> None:
    job = ["--topology", "leaf_spine(2, 2, 2)", "--traffic", "all_to_all", "--bytes", "4000"]
    plan = ["network", "plan", *job, "--scheme", "coloured", "-o", "routes.json"]
    export = ["network", "export", "routes.json", "--format"]
    begins = {
        "srv6": "# flow from to bytes segments\n1 0 2 1000 fc00:0:0::\n",
        "nccl": "# Queue pairs", 'ports("ports.json")': "# flow from to bytes port\n",
        'hccl("hosts.txt", "ports.json")': "10.0.0.1,10.0.0.3=6100",
    }  # fmt: skip
    (folder / "few.txt").write_text("10.0.0.1")
    (folder / "bad.json").write_text("[1]")
    wrong = {
        "hccl": "do not fit: missing 2 required positional arguments: 'addresses' and 'ports'. "
        "Use 'hccl(addresses, ports)'",
        'hccl("few.txt", "ports.json")': "got 1 for 4 hosts. Add the others to few.txt",
        'hccl("hosts.txt", "bad.json")': "bad.json) must be a table (names with values); got [1]",
        'hccl("hosts.txt", "no.json")': "must name a readable file",
        'hccl("no.txt", "ports.json")': "a text file that can be read; no.txt",
        "srv7": "). Use 'srv6'.\n",
    }
    asked = [[*export, text, *more] for text in begins for more in ([], ["--json"])]
    asked += [[*export, text] for text in wrong]
    found = iter(run(place, folder, plan, *asked)[1:])
    for text, begin in begins.items():
        code, out, _ = next(found)
        assert code == 0
        assert out.startswith(begin)
        assert json.loads(next(found)[1]) == {"format": text, "text": out}
    for said, (code, _, error) in zip(wrong.values(), found):
        assert code == 2
        assert said in error


@pytest.mark.parametrize("file", sorted((PACKAGE / "gradwire_formats").glob("*.py")))
def test_every_public_item_says_what_it_is(file: Path) -> None:
    __import__(name := f"gradwire_formats.{file.stem}".removesuffix(".__init__"))
    assert not list(undocumented(sys.modules[name]))

"""gradwire network on hosts below one switch: there is no path to choose, and no link to lose."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gradwire.cli.main import main

QUIET = ["--bytes", "1e5", "--quiet"]


@pytest.fixture
def alone(tmp_path: Path) -> list[str]:
    file = tmp_path / "one.toml"
    cables = json.dumps([[host, "switch", 25] for host in "abcd"])
    file.write_text(f'format = 1\nhosts = ["a", "b", "c", "d"]\ncables = {cables}\n')
    return ["--topology", str(file), *QUIET]


def test_what_if_has_nothing_that_fails(
    alone: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["network", "whatif", *alone]) == 0
    out = capsys.readouterr().out
    assert "as it is" in out
    assert "fails" not in out
    assert main(["network", "whatif", *alone, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    for kind in ("cables", "switches"):
        assert told[kind] == {"number": 0, "median": None, "worst": None, "which": None,
                              "to": None, "cable": None, "cut_off": 0}  # fmt: skip


@pytest.mark.parametrize("action", ["plan", "simulate", "whatif"])
def test_pages_have_no_loads_to_draw(action: str, alone: list[str], tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    assert main(["network", action, *alone, "--html", str(page)]) == 0
    assert "</html>" in page.read_text(encoding="utf-8")


def test_a_heat_map_is_empty(alone: list[str], tmp_path: Path) -> None:
    file = tmp_path / "loads.svg"
    assert main(["network", "heatmap", *alone, "-o", str(file)]) == 0
    assert "</svg>" in file.read_text(encoding="utf-8")


def test_htsim_has_no_words_for_it(
    alone: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    routes = str(tmp_path / "routes.json")
    assert main(["network", "plan", *alone, "--scheme", "coloured", "-o", routes]) == 0
    capsys.readouterr()
    assert main(["network", "export", routes, "--format", "topo"]) == 2
    assert "htsim needs hosts of one port in the" in capsys.readouterr().err

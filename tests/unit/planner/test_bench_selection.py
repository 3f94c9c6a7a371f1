"""The benchmark of selection times: its instances, its rows, its two forms."""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path
from typing import Any

import pytest

from gradwire.planner.curves import check_schedule

SCRIPT = Path(__file__).parents[3] / "benchmarks" / "planner" / "selection.py"


@pytest.fixture(scope="module")
def script() -> dict[str, Any]:
    return runpy.run_path(str(SCRIPT))


def test_instances_are_schedules_and_repeatable(script: dict[str, Any]) -> None:
    for family in script["FAMILIES"]:
        ready, sizes = script["instance"](family, 30, 1.0, 0)
        check_schedule(ready, sizes)
        assert ready[-1] == pytest.approx(script["BACKWARD_SECONDS"])
        assert script["instance"](family, 30, 1.0, 0) == (ready, sizes)


@pytest.mark.parametrize("as_json", [False, True])
def test_it_prints_a_table_or_a_document(
    as_json: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    written = SCRIPT.parent / "results" / "selection.json"
    before = written.read_text() if written.exists() else ""
    monkeypatch.setattr(sys, "argv", ["selection", "--quick", *(["--json"] if as_json else [])])
    runpy.run_path(str(SCRIPT), run_name="__main__")
    printed = capsys.readouterr().out
    if as_json:
        rows = json.loads(printed)["rows"]
        assert len(rows) == 40
        assert all(row["exact"] <= row["instances"] for row in rows)
    else:
        assert printed.startswith("| tensors | sizes |")
        assert printed.count("\n") == 12
    assert (written.read_text() if written.exists() else "") == before

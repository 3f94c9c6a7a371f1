"""Scenarios of benchmarks/faults: each ends right, or with an error on every rank that helps."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from gradwire.lab import available

FAULTS = Path(__file__).parents[2] / "benchmarks" / "faults"
QUICK = (52, 10, 15, 24, 26, 29, 31, 36, 38, 88, 188, 141, 94, 47, 109, 84, 95, 146, 132, 138)
"""One of each kind with two or three ranks, but for those in which a rank stops for long."""

pytestmark = [
    pytest.mark.lab,
    pytest.mark.skipif(available().mode == "none", reason=available().reason),
]


def judged(program: str, *words: str) -> None:
    command = [sys.executable, str(FAULTS / program), *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_twenty_scenarios_end_as_they_must() -> None:
    judged("main.py", "--only", *map(str, QUICK))


@pytest.mark.full
@pytest.mark.parametrize("begin", range(0, 200, 50))
def test_scenarios_end_as_they_must(begin: int) -> None:
    judged("main.py", "--seeds", f"{begin}", f"{begin + 50}")


@pytest.mark.parametrize(
    ("begin", "end"), [(0, 250), pytest.param(250, 10_000, marks=pytest.mark.full)]
)
def test_simulated_cases_end_as_they_must(begin: int, end: int) -> None:
    judged("simulated.py", "--seeds", f"{begin}", f"{end}")

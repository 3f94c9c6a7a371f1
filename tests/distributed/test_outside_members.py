"""Members of another package, installed by pip: whatever gradwire does, it does with them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from test_profile_command import JOB, TWO

from wheels import installed

BRIEF = """
from gradwire.tuning import contention, probe
contention._SECONDS, probe.SECONDS = 0.04, 0.025
"""
"""Measurements of a job take a tenth of their time (`small.brief`): that they are made counts."""
ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "examples" / "member_package"


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Of programs that find the package installed."""
    place = installed(PACKAGE, tmp_path_factory.mktemp("outside"))
    paths = [str(place), *(str(ROOT / "tests" / p) for p in ("distributed", ""))]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"}


def command(environment: dict[str, str], *arguments: str) -> str:
    """What a gradwire command prints."""
    run = [sys.executable, "-m", "gradwire", *arguments]
    done = subprocess.run(run, env=environment, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


@pytest.fixture(scope="module")
def report(
    environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Any]:
    """Of two real ranks (`outside.py`)."""
    script = Path(__file__).with_name("outside.py")
    folder = tmp_path_factory.mktemp("states")
    done = subprocess.run(
        [sys.executable, *TWO, str(script), str(folder)], env=environment, capture_output=True,
        text=True, timeout=280,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_they_are_read_and_printed(report: dict[str, Any]) -> None:
    assert report["parsed"] == report["strategies"]


def test_the_laws_of_their_families_hold(report: dict[str, Any]) -> None:
    tried = report["obey_the_laws"]
    assert list(tried) == ["levels(15)", "counted", "fading", "halves"]
    assert "law_contraction" in tried["counted"]
    assert "law_encoders_agree" in tried["fading"]
    assert "law_moves_do_not_depend_on_the_data" in tried["halves"]


def test_ranks_in_lockstep_end_alike(report: dict[str, Any]) -> None:
    assert all(min(sent) > 0 for sent in report["in_lockstep"].values())
    assert len(report["in_lockstep"]) == 6


def test_what_they_cost_is_known_beforehand(report: dict[str, Any]) -> None:
    for text, (price, counted) in report["priced"].items():
        assert price == counted, text


def test_two_real_ranks_end_alike_and_resume_to_the_bit(report: dict[str, Any]) -> None:
    assert report["trained"] == dict.fromkeys(report["strategies"][:9], True)


def test_an_error_within_a_step_says_where_and_whose(report: dict[str, Any]) -> None:
    kind, (note,) = report["told"]
    assert kind == "ZeroDivisionError"
    assert "[breaking(15)+ef | halves]; 'breaking' is of this program; " in note
    assert "'halves' is of package gradwire-example" in note


def test_they_are_available(environment: dict[str, str]) -> None:
    families = json.loads(command(environment, "available", "--json"))
    assert {"levels", "counted"} <= set(families["compressors"])
    assert "fading" in families["feedback"]
    assert "halves" in families["collectives"]
    (levels,) = json.loads(command(environment, "available", "levels", "--json"))
    assert levels["parameters"][0]["takes"] == "a whole number from 1 to 127"
    assert "levels(15)" in levels["example"]


def test_a_job_is_profiled_planned_and_explained(
    environment: dict[str, str], tmp_path: Path
) -> None:
    profile, plan = tmp_path / "profile.json", tmp_path / "plan.json"
    text, job = "counted | halves", tmp_path / "job.py"  # which is exact, and so sound
    job.write_text(BRIEF + JOB, encoding="utf-8")
    launch = (sys.executable, *TWO, str(job))
    ways = (text, "levels(15)+ef | halves")
    command(environment, "profile", "-o", str(profile), "--strategies", *ways, "--", *launch)
    assert all(way in profile.read_text(encoding="utf-8") for way in ways)
    options = ("--profile", str(profile), "-o", str(plan), "--json")
    found = json.loads(command(environment, "plan", *options, "--allow", text))
    assert text in plan.read_text(encoding="utf-8"), found
    assert text in command(environment, "explain", str(plan))


def test_they_are_measured(environment: dict[str, str]) -> None:
    options = ("--elements", "20000", "--repeats", "2", "--payloads", "2", "--json")
    found = json.loads(command(environment, "bench", "compressors", *options))
    names = {row["name"] for row in found["encode"]}
    assert {"levels(15)", "levels(15)+ef", "counted"} <= names


def test_paths_and_topologies(environment: dict[str, str]) -> None:
    job = ("--topology", "pair_of_leaves(4, cables=4)", "--traffic", "all_to_all")
    for engine in ("static", "flow", "packet"):
        options = (*job, "--bytes", "1e5", "--scheme", "first_path", "--scheme", "ecmp")
        told = command(environment, "network", "simulate", *options, "--engine", engine)
        assert "first_path" in told
    advice = json.loads(command(environment, "network", "plan", *job, "--json"))
    rows = {row["scheme"]: row["seconds"] for row in advice["rows"]}
    assert rows["first_path"] > rows["coloured"], "static routes are the worst there is"


def test_a_strategy_of_theirs_on_a_network(environment: dict[str, str]) -> None:
    job = ("--topology", "pair_of_leaves(4)", "--strategy", "levels(15)+ef | halves")
    assert "first_path" in command(environment, "network", "plan", *job)

"""Members of another package, installed by pip: all that gradwire does works with them."""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist
from ranks import Ranks
from test_profile_command import TRAINING

from gradwire.cli.main import main
from wheels import installed

BEGINNING = """
import gc, os, sys, torch, torch._dynamo, torch.distributed as dist, gradwire
gradwire.attach, gradwire.Handle
gc.freeze()
ranks = []
for rank in range(2):
    ranks.append(os.fork())
    if not ranks[-1]:
        break
else:
    sys.exit(sum(os.waitstatus_to_exitcode(os.waitpid(rank, 0)[1]) != 0 for rank in ranks))
torch.set_num_threads(1)
os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE="2")
dist.init_process_group("gloo", init_method="file://" + sys.argv[1], rank=rank, world_size=2)
"""
"""The beginning of a program of two ranks, which fork from a process that has imported what both
need."""
BRIEF = """
from gradwire.tuning import contention, probe
contention._SECONDS, contention._LAYERS, contention._TURNS, contention._PAIRS = 0.02, 4, 2, 1
contention._MOVED = contention._LOCAL = 1 << 14
probe.SECONDS, probe.PASSES, probe.FEWEST, probe._MANY = 0.01, 1, 1, 4
"""
"""Measurements of a job are the smallest (`small.brief`): it only counts that they are made."""
ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "examples" / "member_package"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which the package is installed."""
    return installed(PACKAGE, tmp_path_factory.mktemp("outside"))


@pytest.fixture(scope="module")
def ranks(place: Path) -> Iterator[Ranks]:
    """Two ranks that find the package, as do the programs that they start."""
    with Ranks(2, place.parent) as ranks:
        ranks.run(_find, str(place))
        yield ranks


def _find(place: str) -> None:
    sys.path.insert(0, place)
    os.environ["PYTHONPATH"] = _paths(place)


def _paths(place: str) -> str:
    return os.pathsep.join(filter(None, (place, os.environ.get("PYTHONPATH"))))


def command(ranks: Ranks, *arguments: str) -> str:
    """The output of a gradwire command."""
    return str(ranks.run(_command, arguments, timeout_seconds=240.0)[0])


def _command(arguments: Sequence[str]) -> str:
    said = io.StringIO()
    if dist.get_rank() == 0:
        with contextlib.redirect_stdout(said):
            assert main(arguments) == 0
    return said.getvalue()


def alone(place: Path, *arguments: str) -> str:
    """The output of a gradwire command, in a process of its own."""
    environment = {**os.environ, "PYTHONPATH": _paths(str(place))}
    run = [sys.executable, "-m", "gradwire", *arguments]
    done = subprocess.run(run, env=environment, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


@pytest.fixture(scope="module")
def report(ranks: Ranks, place: Path) -> dict[str, Any]:
    """The report of `outside.py`, on rank 0."""
    found: dict[str, Any] = ranks.run(_report, place.parent)[0]
    return found


def _report(folder: Path) -> dict[str, Any]:
    import outside

    return outside.report(folder)


def test_they_are_read_and_printed(report: dict[str, Any]) -> None:
    assert report["parsed"] == report["strategies"]


def test_the_laws_of_their_families_hold(report: dict[str, Any]) -> None:
    tried = report["obey_the_laws"]
    assert list(tried) == ["levels(15)", "counted", "fading", "halves"]
    assert "law_contraction" in tried["counted"]
    assert "law_encoders_agree" in tried["fading"]
    assert "law_moves_do_not_depend_on_the_data" in tried["halves"]
    assert {"law_is_the_mean", "law_nothing_is_lost"} <= set(tried["halves"])


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


def test_a_collective_that_breaks_a_rule_is_told_of(report: dict[str, Any]) -> None:
    told = report["told_of_wrong"]
    assert "must leave averages with ctx" in told["no result"]
    assert "must yield the moves of gradwire.moves" in told["no move"]
    assert "must be 1-D and contiguous" in told["not flat"]


def test_a_damaged_length_is_told_before_it_is_used(report: dict[str, Any]) -> None:
    assert "rank 1" in report["told_of_damage"]


def test_they_are_available(ranks: Ranks) -> None:
    families = json.loads(command(ranks, "available", "--json"))
    assert {"levels", "counted"} <= set(families["compressors"])
    assert "fading" in families["feedback"]
    assert "halves" in families["collectives"]
    (levels,) = json.loads(command(ranks, "available", "levels", "--json"))
    assert levels["parameters"][0]["takes"] == "a whole number from 1 to 127"
    assert "levels(15)" in levels["example"]


def test_a_job_is_profiled_planned_and_explained(ranks: Ranks, tmp_path: Path) -> None:
    profile, plan = tmp_path / "profile.json", tmp_path / "plan.json"
    text, job = "counted | halves", tmp_path / "job.py"  # it is exact, and so sound
    job.write_text(BEGINNING + BRIEF + TRAINING, encoding="utf-8")
    launch = (sys.executable, str(job), str(tmp_path / "store"))
    ways = (text, "levels(15)+ef | halves")
    command(ranks, "profile", "-o", str(profile), "--strategies", *ways, "--", *launch)
    assert all(way in profile.read_text(encoding="utf-8") for way in ways)
    options = ("--profile", str(profile), "-o", str(plan), "--json")
    found = json.loads(command(ranks, "plan", *options, "--allow", text))
    assert text in plan.read_text(encoding="utf-8"), found
    assert text in command(ranks, "explain", str(plan))


def test_they_are_measured(place: Path) -> None:
    options = ("--elements", "20000", "--repeats", "2", "--payloads", "2", "--json")
    found = json.loads(alone(place, "bench", "compressors", *options))
    names = {row["name"] for row in found["encode"]}
    assert {"levels(15)", "levels(15)+ef", "counted"} <= names


def test_paths_and_topologies(ranks: Ranks) -> None:
    job = ("--topology", "pair_of_leaves(4, cables=4)", "--traffic", "all_to_all")
    for engine in ("static", "flow", "packet"):
        options = (*job, "--bytes", "1e5", "--scheme", "first_path", "--scheme", "ecmp")
        told = command(ranks, "network", "simulate", *options, "--engine", engine)
        assert "first_path" in told
    advice = json.loads(command(ranks, "network", "plan", *job, "--json"))
    rows = {row["scheme"]: row["seconds"] for row in advice["rows"]}
    assert rows["first_path"] > rows["coloured"], "static routes are the worst there is"


def test_a_strategy_of_theirs_on_a_network(ranks: Ranks) -> None:
    job = ("--topology", "pair_of_leaves(4)", "--strategy", "levels(15)+ef | halves")
    assert "first_path" in command(ranks, "network", "plan", *job)

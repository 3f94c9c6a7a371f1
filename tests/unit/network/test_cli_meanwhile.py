"""gradwire network simulate: links that fail in a run, jobs that share, packets that are lost."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gradwire.cli.main import main

JOB = ["network", "simulate", "--topology", "leaf_spine(4, 4, 4)", "--placement", "shuffled",
       "--traffic", "direct", "--bytes", "4e6"]  # fmt: skip
JOBS = Path(__file__).parents[3] / "examples" / "jobs.toml"


def rows(capsys: pytest.CaptureFixture[str], *asked: str) -> list[dict[str, Any]]:
    assert main([*asked, "--json"]) == 0
    found: list[dict[str, Any]] = json.loads(capsys.readouterr().out)["rows"]
    return found


@pytest.mark.parametrize("engine", ["flow", "packet"])
def test_every_scheme_stands_beside_itself_with_nothing_failing(
    engine: str, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = [*JOB, "--engine", engine, "--fail", "leaf0-spine1@0.0001", "--convergence-ms", "1"]
    found = {row["scheme"]: row for row in rows(capsys, *asked)}
    assert len(found) > 8
    assert all(row["seconds"] >= row["whole"] * (1 - 1e-9) for row in found.values())
    whole = {row["scheme"]: row["seconds"] for row in rows(capsys, *JOB, "--engine", engine)}
    assert {name: row["whole"] for name, row in found.items()} == whole
    # Hashed flows wait until routing has converged; pinned and sprayed packets do not.
    assert found["ecmp"]["seconds"] > 1e-3
    if engine == "packet":
        assert max(found[name]["seconds"] for name in ("ethereal", "coloured")) < 1e-3
        assert found["spray, recycled"]["seconds"] < 1e-3
    assert main(asked) == 0
    assert "nothing fails" in capsys.readouterr().out


def test_what_dies_after_the_end_changes_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    asked = [*JOB, "--engine", "packet", "--queue-bytes", "32768", "--fail", "leaf0-spine1@1000"]
    plain = rows(capsys, *asked[:-2])
    for row, alone in zip(rows(capsys, *asked), plain, strict=True):
        assert row["whole"] == alone["seconds"], row["scheme"]


@pytest.mark.parametrize("engine", ["static", "flow", "packet"])
def test_seconds_of_a_job_are_from_its_start(
    engine: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = '[[job]]\nname = "late"\ntraffic = "direct"\nranks = 4\nbytes = 1_000_000\n'
    found = []
    for start in (0.0, 0.01):
        (tmp_path / "jobs.toml").write_text(f"{job}start_seconds = {start}\n")
        asked = ["network", "simulate", "--topology", "leaf_spine(4, 4, 4)", "--scheme", "ecmp",
                 "--engine", engine, "--jobs", str(tmp_path / "jobs.toml")]  # fmt: skip
        found += [row["seconds"] for row in rows(capsys, *asked)]
    assert found[1] == pytest.approx(found[0], rel=1e-3)
    assert found[0] > 0


def test_each_job_is_told_beside_its_own_least(capsys: pytest.CaptureFixture[str]) -> None:
    """Each job's least time is its own, not the largest job's; no job takes less than it."""
    asked = ["network", "simulate", "--topology", "leaf_spine(4, 8, 4)", "--jobs", str(JOBS),
             "--scheme", "coloured"]  # fmt: skip
    found = rows(capsys, *asked)
    assert len({row["least"] for row in found}) == 2
    assert all(row["seconds"] >= row["least"] * (1 - 1e-9) for row in found)


def test_a_switch_dies_with_all_of_its_links(capsys: pytest.CaptureFixture[str]) -> None:
    (cable,) = rows(capsys, *JOB, "--scheme", "spray", "--fail", "leaf0-spine1@0")
    (switch,) = rows(capsys, *JOB, "--scheme", "spray", "--fail", "spine1@0")
    (before,) = rows(capsys, *JOB, "--scheme", "spray", "--fail", "spine1")
    assert cable["seconds"] <= switch["seconds"] == pytest.approx(before["seconds"])
    assert cable["seconds"] > 1.05 * cable["whole"]
    both = ["--fail", "spine1@0.5", "--fail", "spine1-leaf0@0"]  # the earlier counts
    (found,) = rows(capsys, *JOB, "--scheme", "spray", *both)
    assert found["seconds"] == pytest.approx(cable["seconds"])


def test_timers_are_as_long_as_asked(capsys: pytest.CaptureFixture[str]) -> None:
    asked = [*JOB, "--engine", "packet", "--scheme", "coloured", "--fail", "spine1@0.00001"]
    took = [rows(capsys, *asked, "--timeout-us", us)[0]["seconds"] for us in ("50", "5000")]
    assert took[0] < 1e-3 < 5e-3 < took[1]


def test_what_is_trimmed_is_there_sooner(capsys: pytest.CaptureFixture[str]) -> None:
    asked = [*JOB, "--engine", "packet", "--scheme", "spray", "--queue-bytes", "32768"]
    plain, cut = (rows(capsys, *asked, *more)[0]["seconds"] for more in ([], ["--trim"]))
    assert cut < plain
    pinned = [*JOB, "--engine", "packet", "--scheme", "ecmp", "--queue-bytes", "32768"]
    back, single = (rows(capsys, *pinned, *more)[0]["seconds"] for more in ([], ["--selective"]))
    assert single != back


@pytest.mark.parametrize("engine", ["flow", "packet"])
def test_jobs_share_a_fabric(engine: str, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["network", "simulate", "--topology", "leaf_spine(4, 8, 4)", "--jobs", str(JOBS),
             "--placement", "shuffled", "--engine", engine, "--scheme", "ecmp", "--scheme",
             "spray"]  # fmt: skip
    found = rows(capsys, *asked)
    assert [(row["scheme"], row["job"]) for row in found] == [
        (scheme, job) for scheme in ("ecmp", "spray") for job in ("experts", "data parallel")
    ]
    assert all(row["seconds"] >= row["alone"] * 0.97 for row in found)
    assert found[1]["seconds"] > 1.005 * found[1]["alone"], "hashes collide with the other's"
    dying = rows(capsys, *asked, "--fail", "leaf0-spine1@0.0002", "--convergence-ms", "2")
    assert all(row["seconds"] >= row["whole"] * (1 - 1e-9) for row in dying)
    assert main(asked) == 0
    assert "alone" in capsys.readouterr().out


def test_a_job_takes_what_it_takes_from_its_own_start_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "jobs.toml").write_text(
        "[[job]]\nranks = 4\n[[job]]\nranks = 4\nstart_seconds = 9"
    )
    asked = ["network", "simulate", "--topology", "leaf_spine(2, 4, 4)", "--scheme", "spray",
             "--jobs", str(tmp_path / "jobs.toml")]  # fmt: skip
    one, other = rows(capsys, *asked)
    assert one["seconds"] == pytest.approx(other["seconds"])
    assert other["seconds"] == pytest.approx(other["alone"])


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--fail", "spine1@"], "--fail must be NAME or NAME@SECONDS; got 'spine1@'"),
        (["--fail", "spine9@1"], "a link or a switch of the topology; got 'spine9'"),
        (["--fail", "spine1@-1"], "a link must fail at second 0 or later; got one at -1"),
        (["--fail", "spine1@nan"], "at second 0 or later; got one at nan"),
        (["--fail", "spine1@0", "--convergence-ms", "-1"], "must converge 0 to 1,000 seconds"),
        (["--fail", "spine1@0", "--convergence-ms", "1e300"], "must converge 0 to 1,000 seconds"),
        (["--fail", "spine1@0", "--engine", "static"], "engine that simulates time; got 'static'"),
        (
            ["--engine", "packet", "--timeout-us", "0"],
            "timeout_us must be a finite number",
        ),
        (["--engine", "packet", "--queue-bytes", "0"], "queue_bytes must be a whole number, 1 to"),
    ],
)
def test_what_cannot_be_is_refused(
    more: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*JOB, "--scheme", "ecmp", *more]) == 2
    assert said in capsys.readouterr().err


def test_what_is_not_for_each_other_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = ["network", "plan", *JOB[2:], "--fail", "spine1@0.1"]
    assert main(plan) == 2
    assert "needs `gradwire network simulate`; got --fail spine1@0.1" in capsys.readouterr().err
    step = [*JOB[:6], "--step", str(JOBS.parent / "parallel.toml"), "--fail", "spine1@0.1"]
    assert main(step) == 2
    assert "cannot be simulated with a step" in capsys.readouterr().err
    few = ["network", "simulate", "--topology", "leaf_spine(2, 8, 4)", "--jobs", str(JOBS)]
    assert main(few) == 2
    assert "job 1 needs 16, and 0 are left" in capsys.readouterr().err
    static = ["network", "simulate", "--topology", "leaf_spine(4, 8, 4)", "--jobs", str(JOBS)]
    assert main([*static, "--engine", "static"]) == 2
    assert "got 'static'" in capsys.readouterr().err
    assert main([*static, "--jobs", str(tmp_path / "no.toml")]) == 2
    assert "must name a readable file" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("asked", "named"),
    [
        (["--trim", "--selective"], "--trim, --selective and --engine flow"),
        (["--engine", "static", "--spraying", "random"], "--spraying and --engine static"),
        (["--latency-ns", "1"], "--latency-ns and --engine flow"),
        (["--convergence-ms", "5", "--fail", "spine0"], "got no --fail NAME@SECONDS"),
        (["--step", ""], "cannot read the step ''"),
        (
            ["--step", "a.toml", "--bytes", "1e6", "--density", "0.1"],
            "--bytes, --density beside --step",
        ),
        (
            ["--jobs", str(JOBS), "--ranks", "4", "--bytes", "1e6"],
            "--bytes, --ranks beside --jobs",
        ),
    ],
)
def test_options_that_nothing_would_come_of_are_refused(
    asked: list[str], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["network", "simulate", "--topology", "leaf_spine(4, 4, 4)", *asked]) == 2
    assert named in capsys.readouterr().err

"""gradwire network plan: the table, the verdict, and what it refuses."""

from __future__ import annotations

import json

import pytest

from gradwire.cli.main import main

SHUFFLED = ["network", "plan", "--topology", "leaf_spine(8, 8, 8)", "--placement", "shuffled",
            "--seed", "1"]  # fmt: skip


def test_the_verdict_comes_first(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(SHUFFLED) == 0
    out = capsys.readouterr().out
    assert out.startswith("Pin paths by 'coloured': ")
    for row in ("ecmp ", "ecmp_k(8)", "ethereal", 'spray("rotating")', "min_split"):
        assert f"\n{row}" in out
    assert "\nAt least: " in out


def test_the_same_as_one_document(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*SHUFFLED, "--json", "--scheme", "coloured"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["recommended"] == "coloured"
    assert [row["scheme"] for row in told["rows"]] == ["ecmp", "coloured"]


def test_ranks_of_machines_stay_together(capsys: pytest.CaptureFixture[str]) -> None:
    asked = [*SHUFFLED, "--per-machine", "8", "--traffic", "all_to_all", "--json"]
    assert main(asked) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert {row["pieces"] for row in rows if row["scheme"] == "ecmp"} == {8 * 8 * 56}


def test_what_fails_is_gone_around(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["--fail", "spine0", "--fail", "leaf1-spine2", "--json"]
    assert main([*SHUFFLED, *asked]) == 0
    broken = json.loads(capsys.readouterr().out)
    assert main([*SHUFFLED, "--json"]) == 0
    whole = json.loads(capsys.readouterr().out)
    assert broken["bounds"]["fabric_seconds"] > whole["bounds"]["fabric_seconds"]


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--ranks", "65"], "every rank has a host; got 65 ranks for 64"),
        (["--fail", "spine9"], "a link or a switch of the topology; got 'spine9'"),
        (["--scheme", "fastest"], "'fastest' is no scheme"),
        (["--per-machine", "0"], "--per-machine is a whole number of at least 1; got 0"),
        (["--bytes", "-1"], "bytes is a whole number of at least 1"),
        (["--topology", "torus(4)"], "'torus' is no builder"),
    ],
)
def test_what_cannot_be_is_refused(
    more: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*SHUFFLED, *more]) == 2
    assert said in capsys.readouterr().err

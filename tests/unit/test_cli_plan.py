"""gradwire plan and explain: documents, files, tables, and errors for wrong arguments."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gradwire import Plan
from gradwire.buckets import Parameter
from gradwire.cli.main import main
from gradwire.planner.profile import Profile, Ready, TableCost
from gradwire.topology import Cluster
from suites import first

EXAMPLE = Path(__file__).parents[2] / "examples" / "profile.json"
PLAN = ["plan", "--profile", str(EXAMPLE), "--lanes", "1"]
Text = pytest.CaptureFixture[str]


def document(capsys: Text, *arguments: str) -> dict[str, Any]:
    assert main([*arguments, "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def refused(capsys: Text, *arguments: str) -> str:
    assert main(list(arguments)) == 2
    out = capsys.readouterr()
    assert out.out == ""
    return out.err


def test_the_verdict_first_and_a_file(capsys: Text, tmp_path: Path) -> None:
    kept = tmp_path / "plan.json"
    assert main([*PLAN, "-o", str(kept)]) == 0
    out = capsys.readouterr()
    assert out.out.startswith("compress 18 of 51 tensors: ")
    assert f"wrote {kept}" in out.err
    plan = Plan.load(kept)
    plan.check(list(Profile.load(EXAMPLE).parameters))
    assert plan.prediction is not None
    assert main(["explain", str(kept)]) == 0
    assert capsys.readouterr().out == out.out


def test_tables_whose_time_is_not_counted_are_named(capsys: Text, tmp_path: Path) -> None:
    """Where their rows were measured, they are on the timeline; elsewhere, nothing is known."""
    own, table = Profile.load(EXAMPLE), Parameter("words", (1000, 16), sparse=True)
    tables = (TableCost(("words",), "none | columns", 1e-4, 0.05, 1e-4),)
    own = replace(own, ready=(*own.ready, Ready(table, own.backward_seconds)), tables=tables)
    own.save(tmp_path / "profile.json")
    plan = ["plan", "--profile", str(tmp_path / "profile.json"), "--lanes", "1"]
    said = "steps are without the sparse gradients of these tables"
    for more, is_counted in (
        ([], True), (["--bandwidth", "1gbit"], False),
        (["--table", "--workers", "4", "--bandwidth", "1gbit"], False),
    ):  # fmt: skip
        assert main([*plan, *more]) == 0
        told = capsys.readouterr().err
        assert (said not in told) == is_counted
        assert ("not measured: words" in told) != is_counted


def test_documents_are_alone_on_standard_output(capsys: Text, tmp_path: Path) -> None:
    found = document(capsys, *PLAN)
    assert found["plan"] is None
    assert found["verdict"].startswith("compress")
    kept = str(tmp_path / "plan.json")
    assert document(capsys, *PLAN, "-o", kept)["plan"] == kept
    told = document(capsys, "explain", kept)
    assert told["groups"] == found["groups"]
    again = document(capsys, "explain", kept, "--profile", str(EXAMPLE))
    assert again["seconds"] == pytest.approx(found["seconds"])
    assert [g["strategy"] for g in again["groups"]] == [g["strategy"] for g in found["groups"]]


def test_another_cluster(capsys: Text) -> None:
    asked = ("--workers", "64", "--per-host", "8", "--bandwidth", "25gbit", "--latency-ms", "0.1")
    found = document(capsys, *PLAN, *asked)
    assert (found["workers"], found["hosts"]) == (64, 8)
    near = document(capsys, *PLAN, *asked[:-1], "0.0")
    assert near["seconds"] < found["seconds"]


def test_a_cluster_file(capsys: Text, tmp_path: Path) -> None:
    path = tmp_path / "cluster.toml"
    Cluster(4, 2, 1e8).save(path)
    assert document(capsys, *PLAN, "--topology", str(path))["workers"] == 8
    slow = document(capsys, *PLAN, "--topology", str(path), "--workers", "16")
    fast = document(
        capsys, *PLAN, "--topology", str(path), "--workers", "16", "--bandwidth", "1gbit"
    )
    assert slow["hosts"] == 8
    assert fast["seconds"] < slow["seconds"]


def test_what_may_be_used(capsys: Text) -> None:
    allowed = ("--allow", "none | allreduce", "topk(density=0.01)+ef | allgather")
    found = document(capsys, *PLAN, *allowed)
    assert {g["strategy"] for g in found["groups"]} <= {
        "none | allreduce", "topk(0.01)+ef | allgather",
    }  # fmt: skip
    assert "'fp16 | allreduce' was not" in refused(capsys, *PLAN, "--allow", "fp16 | allreduce")


@pytest.mark.parametrize(
    ("named", "next_step"),
    [
        ([], "Allow 'none | allreduce', or name your optimizer"),
        (["--optimizer", "adamw"], "Allow 'none | allreduce'.\n"),
    ],
)
def test_nothing_that_is_sound(capsys: Text, named: list[str], next_step: str) -> None:
    assert main([*PLAN, *named, "--allow", "topk(0.01)+ef | allgather"]) == 2
    assert next_step in capsys.readouterr().err


@pytest.mark.parametrize("algorithm", ["mergecomp", "bytecomp", "hipress", "byteps"])
def test_published_algorithms(capsys: Text, algorithm: str) -> None:
    found = document(capsys, *PLAN, "--algorithm", algorithm)
    assert found["algorithm"] == algorithm
    assert found["seconds"] >= document(capsys, *PLAN)["seconds"] * 0.99


def test_groups_are_mergecomp_s(capsys: Text) -> None:
    asked = (*PLAN, "--optimizer", "sgd", "--allow", "topk(0.01)+ef | allgather")
    asked = (*asked, "--algorithm", "mergecomp")
    two, three = (document(capsys, *asked, "--groups", n)["seconds"] for n in ("2", "3"))
    assert document(capsys, *asked)["seconds"] == two
    assert three <= two
    assert "got --groups 3 for joint" in refused(capsys, *PLAN, "--groups", "3")
    assert "the number of groups must be at least 1" in refused(capsys, *asked, "--groups", "0")


def test_a_table(capsys: Text) -> None:
    asked = ("--table", "--workers", "4", "256", "--bandwidth", "100mbit", "100gbit")
    found = document(capsys, *PLAN, *asked)
    assert [(c["workers"], c["bits_per_second"]) for c in found["cells"]] == [
        (4, 1e8), (4, 1e11), (256, 1e8), (256, 1e11),
    ]  # fmt: skip
    assert any(c["before"]["workers"] == 4 for c in found["crossovers"])
    assert main([*PLAN, *asked]) == 0
    out = capsys.readouterr()
    assert out.out.startswith("workers")
    assert "between 100 mbit and 100 gbit" in out.out


@pytest.mark.parametrize(("per_host", "workers"), first([(3, [3, 12, 48]), (8, [16, 64, 256])]))
def test_a_table_is_of_full_hosts(capsys: Text, per_host: int, workers: list[int]) -> None:
    asked = ("--table", "--per-host", str(per_host), "--bandwidth", "1gbit")
    assert document(capsys, *PLAN, *asked)["workers"][:3] == workers


def test_left_out_is_told(capsys: Text, tmp_path: Path) -> None:
    text = json.loads(EXAMPLE.read_text())
    unpriced = "nonzero | omnireduce"
    text["strategies"][unpriced] = text["strategies"]["bf16 | allreduce"]
    own = tmp_path / "profile.json"
    own.write_text(json.dumps(text))
    asked = ["plan", "--profile", str(own), "--workers", "8", "--lanes", "1"]
    asked += ["--optimizer", "sgd"]
    assert document(capsys, *asked)["left_out"] == ["dgc(0.01) | allgather", unpriced]
    asked[-1] = "adamw"
    unsound = ["sign(scaled=True)+ef | allgather", "topk(0.01)+ef | allgather"]
    assert document(capsys, *asked)["left_out"] == [*unsound, "dgc(0.01) | allgather", unpriced]
    assert "measured only" in refused(capsys, *asked, "--allow", unpriced)


def test_what_a_table_leaves_out_is_told(capsys: Text, tmp_path: Path) -> None:
    """As of one plan for another cluster: what cannot be priced, and for which workers a number of
    ranks to a machine does not fit."""
    own = Profile.load(EXAMPLE)
    pairs = "bf16 | hierarchical(outer='allreduce', per_node=2)"
    known = {**own.strategies, "none | columns": own.cost("none | allreduce"),
             pairs: own.cost("bf16 | allreduce")}  # fmt: skip
    replace(own, strategies=known).save(tmp_path / "profile.json")
    plan = ["plan", "--profile", str(tmp_path / "profile.json"), "--bandwidth", "10gbit"]
    assert main([*plan, "--table", "--workers", "3", "4"]) == 0
    said = capsys.readouterr().err
    why = "left out, as their cost cannot be computed for"
    assert f"{why} other clusters: none | columns\n" in said
    assert f"{why} 3 workers: {pairs}\n" in said
    assert f"{why} 4 workers" not in said


def test_a_plan_keeps_momentum_only_where_there_is_some(capsys: Text, tmp_path: Path) -> None:
    """Of two that keep it, one is sound."""
    text = json.loads(EXAMPLE.read_text())
    keeps = "int8+dgc(mask=False) | allgather"
    text["strategies"][keeps] = text["strategies"]["dgc(0.01) | allgather"]
    own = tmp_path / "profile.json"
    own.write_text(json.dumps(text))
    asked = ["plan", "--profile", str(own), "--lanes", "1", "--optimizer"]
    assert main([*asked, "sgdm"]) == 0
    kept = capsys.readouterr()
    assert "int8+dgc(" in kept.out
    assert "topk(0.01)+dgc(" not in kept.out
    assert "the plan keeps the momentum: step by gradwire.optim.SGD" in kept.out
    assert "dgc(0.01) | allgather" in kept.err
    assert main([*asked, "sgd"]) == 0
    plain = capsys.readouterr()
    assert "dgc(" not in plain.out
    assert "keeps the momentum" not in plain.out
    said = f"left out, as sgd has no momentum: {keeps}; if the job has momentum, pass --optimizer"
    assert said in plain.err
    told = refused(capsys, *asked, "sgd", "--allow", keeps)
    assert "pass --optimizer sgdm" in told


# -- wrong arguments -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        (["--workers", "4", "8"], "Add --table"),
        (["--bandwidth", "1gbit", "10gbit"], "Add --table"),
        (["--table", "-o", "x.json"], "a table has no plan"),
        (["--latency-ms", "-1"], "0 ms or more; got -1.0"),
        (["--workers", "0"], "workers must be at least 1; got 0"),
        (["--workers", "10", "--per-host", "4"], "must fill hosts of 4 ranks"),
        (
            ["--workers", "8", "--per-host", "8", "--bandwidth", "1gbit"],
            "got --bandwidth for 1 host",
        ),
        (["--workers", "8", "--per-host", "8", "--latency-ms", "1"], "leave --latency-ms out"),
        (["--per-host", "0"], "ranks per host must be at least 1; got 0"),
        (["-o", "/nowhere/plan.json"], "a plan needs a file in a writable folder"),
        (["--bandwidth", "0"], "10kbit"),
        (["--bandwidth", "fast"], "got 'fast'"),
        (["--workers", "32768"], "at most 16384 workers"),
        (["--topology", "nowhere.toml"], "readable file"),
        (["--error-budget", "-1"], "needs the algorithm joint; got -1.0"),
        (["--allow", "topkk"], "cannot read the strategy"),
    ],
)
def test_what_is_said(asked: list[str], says: str, capsys: Text) -> None:
    assert says in refused(capsys, *PLAN, *asked)


def test_a_budget_needs_errors(capsys: Text, tmp_path: Path) -> None:
    asked = ["--error-budget", "0.5", "--optimizer", "sgd"]
    assert document(capsys, *PLAN, *asked)["error"] <= 0.5
    own = Profile.load(EXAMPLE)
    costs = {name: replace(c, error=None, errors={}) for name, c in own.strategies.items()}
    replace(own, strategies=costs).save(tmp_path / "profile.json")
    asked = ["plan", "--profile", str(tmp_path / "profile.json"), *asked]
    assert "was not measured" in refused(capsys, *asked)


def test_files_that_are_not_what_they_should_be(capsys: Text, tmp_path: Path) -> None:
    assert "readable file" in refused(capsys, "plan", "--profile", str(tmp_path / "none.json"))
    empty = tmp_path / "empty.json"
    empty.write_text("{}")
    assert "must have format 1 in this version of gradwire; got None" in refused(
        capsys, "plan", "--profile", str(empty)
    )
    said = refused(capsys, "explain", str(empty))
    assert "must have format 1 in this version of gradwire; got None" in said
    bare = tmp_path / "bare.json"
    main([*PLAN, "-o", str(bare)])
    capsys.readouterr()
    document_ = json.loads(bare.read_text())
    del document_["prediction"]
    bare.write_text(json.dumps(document_))
    assert "Pass --profile" in refused(capsys, "explain", str(bare))
    assert main(["explain", str(bare), "--profile", str(EXAMPLE)]) == 0

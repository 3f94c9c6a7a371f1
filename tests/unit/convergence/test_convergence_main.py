"""The benchmark's command: which runs it makes, in which order, and what it reads."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest


def plan(suite: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, *words: str) -> list[Any]:
    monkeypatch.setattr(sys, "argv", ["main.py", *words])
    return suite.main.planned(suite.main._arguments())


def test_the_first_seed_of_everything_first_and_dense_before_others(
    suite: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = plan(suite, monkeypatch, "--full", "--task", "glyphs", "language")
    names = [method.name for method in suite.methods.METHODS]
    assert names[0] == "dense"
    first = [(run.task, run.method) for run in runs if run.seed == 0]
    clipped = [*names, "dense-local-clip"]
    assert first == [("glyphs", n) for n in names] + [("language", n) for n in clipped]
    assert [run.seed for run in runs] == sorted(run.seed for run in runs)
    steps = {"glyphs": 20_000, "language": 40_000}
    assert all((run.steps, run.workers) == (steps[run.task], 4) for run in runs)
    assert {run.density for run in runs} == {0.001}
    assert len(runs) == 3 * len(first)


def test_numbers_of_workers_are_an_axis(
    suite: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    methods = "dense", "gtopk"
    words = ["--task", "digits-mlp", "--method", *methods, "--workers", "4", "16", "--seeds", "2"]
    found = plan(suite, monkeypatch, "--full", *words)
    runs = [(run.seed, run.workers, run.method) for run in found]
    assert runs == [(seed, n, m) for seed in range(2) for n in (4, 16) for m in methods]


def test_the_small_form_is_one_percent_and_long_enough(
    suite: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = plan(suite, monkeypatch, "--small")
    assert {run.density for run in runs} == {0.01}
    assert all(run.steps >= 5 / run.density for run in runs)
    assert {run.seed for run in runs} == set(range(5))
    assert len({run.method for run in runs}) == len(suite.methods.METHODS) - 1


def test_every_full_run_is_twenty_times_what_a_coordinate_waits(suite: SimpleNamespace) -> None:
    for task in suite.tasks.TASKS.values():
        assert task.full.steps * task.full.density >= 20 * 0.999, task.name


def test_adam_has_no_methods_with_a_momentum_of_their_own(
    suite: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    methods = {run.method for run in plan(suite, monkeypatch, "--full", "--task", "gpt")}
    assert {"dense", "sign", "onebit"} <= methods
    assert not any(name.startswith("dgc") for name in methods)


def test_a_tiny_suite_is_run_read_and_printed(
    suite: SimpleNamespace,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    short = [
        "--task", "digits-mlp", "--method", "dense", "dgc", "--steps", "20", "--density", "0.01",
        "--seeds", "1",
    ]  # fmt: skip
    words = ["--full", *short, "--folder", str(tmp_path / "runs")]
    monkeypatch.setattr(sys, "argv", ["main.py", *words, "--json", str(tmp_path / "all.json")])
    assert suite.main.main() == 0
    printed = capsys.readouterr().out
    assert "| dgc | 1 |" in printed
    assert len(list((tmp_path / "runs").glob("*.json"))) == 2
    for place in ("runs", "all.json"):
        monkeypatch.setattr(sys, "argv", ["main.py", "--read", str(tmp_path / place)])
        assert suite.main.main() == 0
        assert capsys.readouterr().out == printed


def test_each_mistake_is_a_row(suite: SimpleNamespace, tmp_path: Path) -> None:
    table = suite.main.controls([], tmp_path)
    assert table.count("| yes |") == len(suite.controls.CONTROLS)

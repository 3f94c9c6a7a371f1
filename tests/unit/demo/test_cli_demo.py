"""The command's options, progress and words."""

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gradwire.cli import demo
from gradwire.demo import runner
from gradwire.demo.rows import ALONE, DDP, gradwire_row
from gradwire.demo.runner import Ran
from gradwire.demo.task import Measured, Point


def parse(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    demo.add_arguments(parser)
    return parser.parse_args(words, argparse.Namespace(typed=["demo", *words]))


def measured(seconds: float) -> Measured:
    curve = [Point(0, 0.0, 9.2), Point(8, 8 * seconds, 7.0)]
    return Measured([[seconds] * 8], [(8, 8e6)], curve, 19_780_400)


@pytest.fixture
def pretended(monkeypatch: pytest.MonkeyPatch) -> list[runner.Setting]:
    """Runs nothing, on no cluster; returns the settings that were asked for."""
    asked: list[runner.Setting] = []

    def run(setting: runner.Setting, cluster: Any, watch: runner.Progress) -> list[Ran]:
        asked.append(setting)
        watch.begin(1, 3, 61.4)
        watch(ALONE, Point(0, 0.0, 9.2))
        watch(ALONE, Point(8, 1.6, 7.0))
        watch(DDP, Point(8, 9.6, 7.0))
        own = Ran(gradwire_row("topk(0.01)+ef | allgather"), measured(0.3))
        return [Ran(ALONE, measured(0.2)), Ran(DDP, measured(1.2)), own]

    monkeypatch.setattr(runner, "run", run)
    return asked


def test_the_command_starts_without_torch() -> None:
    code = "import sys, gradwire.cli.demo; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_what_is_asked_for_is_what_runs(
    pretended: list[runner.Setting], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--loopback", "--hosts", "2", "--lanes", "2", "--quick", "--out", str(tmp_path)]
    assert demo.run(parse(*words, "--strategy", "bf16 | allreduce")) == 0
    (setting,) = pretended
    assert (setting.hosts, setting.lanes, setting.quick, setting.loopback) == (2, 2, True, True)
    assert setting.strategies == ("bf16 | allreduce",)


def test_the_table_is_on_stdout_and_progress_on_stderr(
    pretended: list[runner.Setting], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    demo.run(parse("--loopback", "--out", str(tmp_path)))
    out, err = capsys.readouterr()
    assert "DDP fp32" in out
    assert "Loss against seconds:" in out
    assert err.count("no synchronization") == 1  # its last line only, where stderr is no terminal
    assert "step    8" in err
    assert "says nothing" in err
    assert "row 1 of 3; about 61 s to go" in err
    assert "14 s of training" in err


def test_the_quick_one_says_what_it_does_not_show(
    pretended: list[runner.Setting], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    demo.run(parse("--loopback", "--quick", "--out", str(tmp_path)))
    assert "not how well it learns" in capsys.readouterr().err


def test_json_is_one_document_and_nothing_else(
    pretended: list[runner.Setting], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    demo.run(parse("--loopback", "--json", "--out", str(tmp_path)))
    document = json.loads(capsys.readouterr().out)
    assert document["mode"] == "loopback"
    assert document["bits_per_second"] is None
    labels = [row["label"] for row in document["results"]]
    assert labels == ["no synchronization", "DDP fp32", "topk(0.01)+ef | allgather"]
    assert Path(document["plot"]).exists()
    assert "is 4.0 times as fast as DDP fp32" in Path(document["page"]).read_text("utf-8")
    assert json.loads((tmp_path / "demo.json").read_text()) == document


def test_without_namespaces_it_says_so_and_runs_on_loopback(
    pretended: list[runner.Setting],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import gradwire.lab

    refused = gradwire.lab.Availability("none", "the kernel forbids it")
    monkeypatch.setattr(gradwire.lab, "available", lambda: refused)
    demo.run(parse("--out", str(tmp_path)))
    assert pretended[0].loopback
    assert "the kernel forbids it" in capsys.readouterr().err


def test_on_a_terminal_the_line_moves(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    progress = runner.Progress()
    progress(ALONE, Point(0, 0.0, 9.2))
    progress(ALONE, Point(8, 1.0, 7.0))
    progress.close()
    assert capsys.readouterr().err.count("\r") == 3


def test_a_warning_is_passed_on_once(capsys: pytest.CaptureFixture[str]) -> None:
    progress = runner.Progress()
    for _ in range(3):
        progress.note("kernels are missing")
    assert capsys.readouterr().err.count("kernels are missing") == 1

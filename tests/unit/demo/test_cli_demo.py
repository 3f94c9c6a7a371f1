"""The options, the progress and the output of `gradwire demo`."""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from gradwire.cli import demo
from gradwire.demo import runner
from gradwire.demo.rows import ALONE, DDP, gradwire_row
from gradwire.demo.runner import Ran
from gradwire.demo.task import Measured, Point
from gradwire.errors import UsageError
from gradwire.progress import Progress


def parse(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    demo.add_arguments(parser)
    return parser.parse_args(words, argparse.Namespace(typed=["demo", *words]))


def measured(seconds: float) -> Measured:
    curve = [Point(0, 0.0, 9.2), Point(8, 8 * seconds, 7.0)]
    return Measured([[seconds] * 8], [(8, 8e6)], curve, 19_780_400)


@pytest.fixture
def pretended(monkeypatch: pytest.MonkeyPatch) -> list[runner.Setting]:
    """Replaces the runs by prepared results; returns the settings that were requested."""
    asked: list[runner.Setting] = []

    def run(setting: runner.Setting, cluster: Any, progress: Progress, note: Any) -> list[Ran]:
        asked.append(setting)
        progress("training", 4.0, 16.0, "row 1 of 3, no synchronization: step 8, loss 7.000")
        note("a warning")
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
    pretended: list[runner.Setting], tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr("gradwire.progress.PATIENCE_SECONDS", 0.0)
    demo.run(parse("--loopback", "--out", str(tmp_path)))
    out, err = capsys.readouterr()
    assert "DDP fp32" in out
    assert "Loss against seconds:" in out
    assert "demo: training, 25 %: row 1 of 3, no synchronization: step 8, loss 7.000\n" in err
    assert "demo: a warning\n" in err
    assert "says nothing" in err
    assert "14 s of training" in err


def test_quiet_it_passes_on_warnings_alone(
    pretended: list[runner.Setting], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    demo.run(parse("--loopback", "--quiet", "--out", str(tmp_path)))
    out, err = capsys.readouterr()
    assert "DDP fp32" in out
    assert err == "gradwire demo: a warning\n"


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
    assert "the loss of DDP fp32 4.0 times as soon" in Path(document["page"]).read_text("utf-8")
    assert json.loads((tmp_path / "demo.json").read_text()) == document


def test_sigterm_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The text and the tasks of all rows are in a temporary folder."""
    made = list[Path]()

    def run(setting: runner.Setting, cluster: Any, progress: Progress, note: Any) -> list[Ran]:
        with tempfile.TemporaryDirectory() as folder:
            made.append(Path(folder))
            os.kill(os.getpid(), signal.SIGTERM)
            signal.pause()
        raise AssertionError

    def leave(*_: object) -> None:
        raise RuntimeError("nobody took SIGTERM")

    monkeypatch.setattr(runner, "run", run)
    before = signal.signal(signal.SIGTERM, leave)
    try:
        with pytest.raises(SystemExit) as ended:
            demo.run(parse("--loopback", "--hosts", "2", "--out", str(tmp_path)))
    finally:
        signal.signal(signal.SIGTERM, before)
    assert ended.value.code == 143
    assert not made[0].exists()


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


def test_a_folder_that_cannot_be_written_is_refused_before_the_training(
    pretended: list[runner.Setting], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("mine")
    (tmp_path / "demo.json").mkdir()
    for out in (tmp_path / "file", tmp_path / "file" / "inside", tmp_path):
        with pytest.raises(UsageError, match="needs a file"):
            demo.run(parse("--loopback", "--out", str(out)))
    with pytest.raises(SystemExit):
        parse("--lanes", "0")
    assert not pretended


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
@pytest.mark.parametrize("name", ["loss.png", "demo.html", "demo.json"])
def test_the_table_is_told_where_a_file_cannot_be_written(
    pretended: list[runner.Setting], tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    pytest.importorskip("matplotlib")
    (tmp_path / name).symlink_to("/dev/full")
    with pytest.raises(UsageError, match="No space left"):
        demo.run(parse("--loopback", "--out", str(tmp_path)))
    assert "DDP fp32" in capsys.readouterr().out

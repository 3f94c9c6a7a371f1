"""What commands write: to their own files, and to streams that may be full or closed."""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest
from test_report import run_of

from gradwire.cli import main as cli
from gradwire.cli.arguments import check_output, say
from gradwire.errors import UsageError

EXAMPLE = Path(__file__).parents[2] / "examples" / "profile.json"
PATHS = ["network", "plan", "--topology", "leaf_spine(2, 2, 2)", "--bytes", "1e4", "--quiet"]
FULL = Path("/dev/full")
Text = pytest.CaptureFixture[str]
needs_full = pytest.mark.skipif(not FULL.exists(), reason="this system has no /dev/full")


def refused(capsys: Text, *typed: str | Path) -> str:
    assert cli.main([str(word) for word in typed]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    return err


# -- files ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("option", ["-o", "--html"])
def test_a_profile_is_not_written_over(tmp_path: Path, capsys: Text, option: str) -> None:
    kept = tmp_path / "profile.json"
    shutil.copy(EXAMPLE, kept)
    said = refused(capsys, "plan", "--profile", kept, option, tmp_path / "." / kept.name)
    assert f"{kept} is also read by this command" in said
    assert kept.read_bytes() == EXAMPLE.read_bytes()


@pytest.mark.parametrize("option", ["-o", "--perfetto"])
def test_a_recording_is_not_written_over(tmp_path: Path, capsys: Text, option: str) -> None:
    file = run_of(tmp_path, steps=3) / "rank-0.jsonl"
    before = file.read_bytes()
    (tmp_path / "link.html").symlink_to(file)
    for name in (file.name, "link.html"):
        assert "is also read" in refused(capsys, "report", tmp_path, option, tmp_path / name)
    assert file.read_bytes() == before


@pytest.mark.parametrize(
    "typed",
    [["plan", "--profile", EXAMPLE, "-o", "x", "--html", "./x"],
     [*PATHS, "-o", "x", "--html", "x"], ["report", ".", "-o", "x", "--perfetto", "x"]],
)  # fmt: skip
def test_two_outputs_have_two_files(
    typed: list[str | Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Text
) -> None:
    monkeypatch.chdir(run_of(tmp_path, steps=3))
    assert "x is also written by this command" in refused(capsys, *typed)
    assert not Path("x").exists()


def test_what_is_read_and_written_elsewhere_is_allowed(tmp_path: Path) -> None:
    """A device such as /dev/null takes any output, and a topology in words is not a file."""
    null = Path("/dev/null")
    check_output("a page", null, reads=[null], beside=[null])
    other = tmp_path / "b"
    check_output("a page", tmp_path / "a", ["ring", "x" * 300, "\0", None], [other, None])
    check_output("a page", None, [tmp_path])


@pytest.mark.parametrize(
    "typed",
    [["plan", "--profile", EXAMPLE, "-o", "-"], [*PATHS, "--html", "-"],
     ["report", ".", "--perfetto", "-"]],
)  # fmt: skip
def test_a_dash_is_not_standard_output(
    typed: list[str | Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Text
) -> None:
    monkeypatch.chdir(run_of(tmp_path, steps=3))
    assert "needs a file; got '-', which does not stand for standard" in refused(capsys, *typed)


@pytest.mark.parametrize(("writable", "is_taken"), [("file", True), ("folder", True), ("", False)])
def test_a_file_may_be_writable_in_a_folder_that_is_not(
    writable: str, is_taken: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a device, or a single file that a container mounts."""
    file = tmp_path / "plan.json"
    file.touch()
    ways = {"file": file, "folder": tmp_path}
    monkeypatch.setattr(os, "access", lambda path, mode: path == ways.get(writable))
    with nullcontext() if is_taken else pytest.raises(UsageError, match="a writable folder"):
        check_output("a plan", file)


def test_a_name_that_is_too_long(tmp_path: Path, capsys: Text) -> None:
    said = refused(capsys, *PATHS, "--html", tmp_path / ("x" * 300))
    assert "a page needs a file in a writable folder" in said
    assert "File name too long" in refused(capsys, "report", "x" * 300)


@needs_full
@pytest.mark.parametrize("option", ["-o", "--html"])
def test_the_answer_is_told_where_a_file_cannot_be_written(capsys: Text, option: str) -> None:
    assert cli.main([*PATHS, "--scheme", "ecmp", option, str(FULL)]) == 2
    out, err = capsys.readouterr()
    assert "ecmp" in out
    assert "/dev/full: No space left on device" in err
    assert cli.main([*PATHS, "--scheme", "ecmp", option, str(FULL), "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["error"] == "UsageError", "one document"


@needs_full
@pytest.mark.parametrize("option", ["-o", "--perfetto"])
def test_a_report_is_told_where_its_file_cannot_be_written(
    tmp_path: Path, capsys: Text, option: str
) -> None:
    assert cli.main(["report", str(run_of(tmp_path, steps=3)), option, str(FULL)]) == 2
    out, err = capsys.readouterr()
    assert "a step    29.0 ms" in out
    assert "timeline:" not in out
    assert "No space left on device" in err


# -- streams -------------------------------------------------------------------------------------


class Gone(io.StringIO):
    """A stream whose reader has closed it."""

    def write(self, text: str) -> int:
        raise BrokenPipeError(32, "Broken pipe")


@pytest.mark.parametrize("stream", [Gone(), None])
def test_lost_notices_do_not_stop_the_work(
    stream: io.StringIO | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Text
) -> None:
    monkeypatch.setattr("gradwire.progress.PATIENCE_SECONDS", 0.0)
    monkeypatch.setattr(sys, "stderr", stream)
    typed = [word for word in PATHS if word != "--quiet"]
    assert cli.main([*typed, "--html", str(tmp_path / "x.html"), "--json"]) == 0
    assert "verdict" in json.loads(capsys.readouterr().out)
    assert (tmp_path / "x.html").exists()
    say("more")
    assert capsys.readouterr().out == ""


@needs_full
@pytest.mark.parametrize(
    ("typed", "full", "code"),
    [
        (["report", "nothing"], "stderr", 2), (["completion", "bash"], "stdout", 1),
        (["plan", "--help"], "stdout", 1),
        pytest.param(["available", "topkk"], "stderr", 2, marks=pytest.mark.full),
        pytest.param(["available", "topk", "--quiet"], "stdout", 1, marks=pytest.mark.full),
    ],
)  # fmt: skip
def test_a_full_stream(typed: list[str], full: str, code: int) -> None:
    """A full standard error keeps the exit code, a full standard output is an error; also where
    Python does not buffer."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with FULL.open("w") as stream:
        job = subprocess.run(
            [sys.executable, "-u", "-m", "gradwire", *typed], check=False, text=True,
            **{**pipes, full: stream},
        )  # fmt: skip
    assert job.returncode == code
    if full == "stdout":
        (line,) = job.stderr.splitlines()
        assert line.startswith("gradwire: standard output cannot be written: No space left")


def test_another_s_full_disk_is_not_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(asked: list[str]) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(cli, "_ran", fail)
    with pytest.raises(OSError, match="No space left"):
        cli.main(["available"])


@needs_full
def test_what_cannot_be_written_names_the_file() -> None:
    from gradwire.cli.arguments import write_page
    from gradwire.report.page import Page

    with pytest.raises(UsageError, match=r"/dev/full: No space left on device\. Name another"):
        write_page(Page("a", "b", []), FULL)


# -- terminals -----------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["plan", "explain"])
def test_names_in_a_profile_command_no_terminal(
    tmp_path: Path, capsys: Text, command: str
) -> None:
    profile, plan = tmp_path / "profile.json", str(tmp_path / "plan.json")
    document = json.loads(EXAMPLE.read_text(encoding="utf-8"))
    for parameter in document["parameters"]:
        parameter["name"] = f"\x1b[31m{parameter['name']}"
    profile.write_text(json.dumps(document), encoding="utf-8")
    allowed = ["--allow", "bf16 | allreduce", "--lanes", "1"]
    assert cli.main(["plan", "--profile", str(profile), *allowed, "-o", plan]) == 0
    if command == "explain":
        capsys.readouterr()
        assert cli.main(["explain", plan]) == 0
    out, err = capsys.readouterr()
    assert "\ufffd[31m" in out
    assert "\x1b" not in out + err

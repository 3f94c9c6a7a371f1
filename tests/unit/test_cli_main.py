"""The command line's frame: exit codes, errors as text and as JSON, lazy commands."""

from __future__ import annotations

import argparse
import io
import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import gradwire
from gradwire.cli import main as cli
from gradwire.errors import LabError


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch) -> list[BaseException | int]:
    """A command `fake`, which returns or raises the list's element."""
    outcome: list[BaseException | int] = [0]
    module = ModuleType("gradwire.cli.fake")

    def add_arguments(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--json", action="store_true")

    def run(arguments: argparse.Namespace) -> int:
        if isinstance(outcome[0], BaseException):
            raise outcome[0]
        return outcome[0]

    module.add_arguments, module.run = add_arguments, run  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "gradwire.cli.fake", module)
    monkeypatch.setitem(cli.COMMANDS, "fake", "a command that is none")
    return outcome


def test_a_command_s_number_is_the_exit_code(command: list[BaseException | int]) -> None:
    for code in (0, 3):
        command[0] = code
        assert cli.main(["fake"]) == code


def test_an_error_of_ours_is_told_without_a_traceback(
    command: list[BaseException | int], capsys: pytest.CaptureFixture[str]
) -> None:
    command[0] = LabError("the rule; the value. The next step.")
    assert cli.main(["fake"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err == "gradwire: the rule; the value. The next step.\n"


def test_with_json_standard_output_is_one_document(
    command: list[BaseException | int], capsys: pytest.CaptureFixture[str]
) -> None:
    command[0] = LabError("no.")
    assert cli.main(["fake", "--json"]) == 2
    out, err = capsys.readouterr()
    assert json.loads(out) == {"error": "LabError", "message": "no."}
    assert "no." in err


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (["fake", "--json", "--nope"], "arguments: --nope. Run gradwire fake --help."),
        (["explain", "--json"], "the following arguments are required: plan."),
        (["network", "plan", "--json"], "required: --topology. Run gradwire network plan --help."),
        (["nobody", "--json"], "invalid choice: 'nobody'"),
    ],
)  # fmt: skip
def test_with_json_a_mistake_in_the_arguments_is_a_document(
    command: list[BaseException | int], capsys: pytest.CaptureFixture[str],
    asked: list[str], said: str,
) -> None:  # fmt: skip
    with pytest.raises(SystemExit) as left:
        cli.main(asked)
    out, err = capsys.readouterr()
    assert left.value.code == 2
    assert said in json.loads(out)["message"]
    assert err.startswith("usage: ")


def test_the_job_s_own_option_asks_for_no_document(
    command: list[BaseException | int], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        cli.main(["fake", "--nope", "--", "--json"])
    assert capsys.readouterr().out == ""


def test_a_folder_that_was_deleted_is_no_traceback(
    tmp_path: Path,
    command: list[BaseException | int],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = tmp_path / "gone"
    folder.mkdir()
    monkeypatch.chdir(folder)
    folder.rmdir()
    assert cli.main(["fake"]) == 2
    assert "this one was deleted" in capsys.readouterr().err


def test_interrupted_is_130(command: list[BaseException | int]) -> None:
    command[0] = KeyboardInterrupt()
    assert cli.main(["fake"]) == 130


def test_a_bug_keeps_its_traceback(command: list[BaseException | int]) -> None:
    command[0] = ZeroDivisionError("ours")
    with pytest.raises(ZeroDivisionError):
        cli.main(["fake"])


def test_without_a_command_it_shows_all_and_fails(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([]) == 2
    out = capsys.readouterr().out
    for name, line in cli.COMMANDS.items():
        assert name in out
        assert line.split()[0] in out


@pytest.mark.parametrize(
    ("arguments", "usage"),
    [
        (["nope"], "gradwire [-h]"),
        (["--nope"], "gradwire [-h]"),
        (["available", "--nope"], "gradwire available [-h]"),
        (["bench", "kernels", "--nope"], "gradwire bench kernels [-h]"),
        (["lab", "probe", "nope"], "gradwire lab probe [-h]"),
    ],
)
def test_what_it_cannot_read_is_2(
    arguments: list[str], usage: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The error begins with the usage of the command that was typed."""
    with pytest.raises(SystemExit) as left:
        cli.main(arguments)
    assert left.value.code == 2
    said = capsys.readouterr().err
    assert said.startswith(f"usage: {usage}")
    assert "nope" in said


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        cli.main(["--version"])
    assert left.value.code == 0
    assert capsys.readouterr().out == f"gradwire {gradwire.__version__}\n"


def test_available_as_text_and_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["available", "--json"]) == 0
    families = json.loads(capsys.readouterr().out)
    assert families == gradwire.available()
    assert cli.main(["available"]) == 0
    text = capsys.readouterr().out
    for family, members in families.items():
        assert f"{family}\n" in text
        for name, line in members.items():
            assert f"  {name:16} {line}\n" in text


@pytest.mark.parametrize("errors", ["strict", "surrogateescape"])
def test_a_locale_that_lacks_our_signs_reads_question_marks(
    monkeypatch: pytest.MonkeyPatch, errors: str
) -> None:
    """The latter is Python's way with the locale C."""
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, "ascii", errors))
    assert cli.main(["available", "topk"]) == 0
    assert "k = ceil(density?n)" in written.getvalue().decode("ascii")


def test_a_reader_that_has_seen_enough_is_no_error() -> None:
    """The reader has closed the pipe, as in `gradwire completion bash | head -0`."""
    reads, writes = os.pipe()
    os.close(reads)
    command = [sys.executable, "-m", "gradwire", "completion", "bash"]
    job = subprocess.run(command, stdout=writes, stderr=subprocess.PIPE, check=False)
    os.close(writes)
    assert (job.returncode, job.stderr) == (141, b"")


def test_standard_output_may_be_closed(
    command: list[BaseException | int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    assert cli.main(["fake"]) == 0


def test_another_s_broken_pipe_is_not_ours(command: list[BaseException | int]) -> None:
    command[0] = BrokenPipeError("a worker is gone")
    with pytest.raises(BrokenPipeError, match="a worker is gone"):
        cli.main(["fake"])


MEMBERS = sorted({name for members in gradwire.available().values() for name in members})


@pytest.mark.parametrize("name", MEMBERS)
def test_a_member_tells_its_parameters_their_ranges_and_an_example(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["available", name, "--json"]) == 0
    for found in json.loads(capsys.readouterr().out):
        assert found["text"]
        assert f" {name}" in f" {found['example']}".replace("+", " ")
        assert gradwire.Strategy.parse(found["example"])
        for parameter in found["parameters"]:
            assert len(parameter["takes"].split()) > 2, parameter  # a rule, not a type


@pytest.mark.parametrize(
    ("name", "optimizer"), [("lloyd", "adamw"), ("adam", "adamw"), ("muon", "muon")]
)
def test_an_example_is_sound_where_the_first_possible_one_is_not(
    name: str, optimizer: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["available", name, "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert gradwire.sound(found["example"], optimizer).kind == "sound"


def test_a_member_in_words(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["available", "topk"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("compressors: topk(density, values='fp32', index='auto')\n")
    assert "required     the fraction of elements sent, above 0 and at most 1\n" in out
    assert "'fp32'       one of fp32, bf16, fp16\n" in out
    assert out.endswith("for example: topk(0.01)+ef | allgather\n")


def test_a_name_that_is_no_member(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["available", "topkk"]) == 2
    said = capsys.readouterr().err
    assert "got 'topkk'" in said
    assert "'gradwire available topk'" in said

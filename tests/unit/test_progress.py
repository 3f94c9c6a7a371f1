"""Progress of work: reports, the times worked out from them, and how they are shown. No test
waits: clocks are set by hand."""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import pty
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

import pytest

from gradwire.cli import main as cli
from gradwire.cli import progress as shown
from gradwire.cli.progress import Line, telling
from gradwire.progress import Lines, Pace, each, part, rounded, silent, within


class Clock:
    """A clock of seconds that a test sets."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


# -- what is told --------------------------------------------------------------------------------


def test_each_tells_before_an_item_and_at_the_end() -> None:
    told: list[object] = []
    items = each(lambda *what: told.append(what), "letters", "ab")
    told.extend(f"works on {item}" for item in items)
    assert told == [
        ("letters", 0, 2, "a"), "works on a", ("letters", 1, 2, "b"), "works on b",
        ("letters", 2, 2),
    ]  # fmt: skip


def test_a_part_counts_as_its_share_of_the_whole() -> None:
    told: list[object] = []

    def record(stage: str, done: float = 0.0, of: float = 0.0, now: str = "") -> None:
        told.append((stage, done, of, now))

    list(each(part(record, "cells", 2, 4), "inner", ["x"]))
    part(record, "cells", 3, 4, "64 workers")("inner", 1, 2, "y")
    within(record, "training", 10.0, 5.0, 20.0)("a row", 3, 6)
    assert told == [
        ("cells", 2, 4, "x"), ("cells", 3, 4, "inner"), ("cells", 3.5, 4, "64 workers"),
        ("training", 12.5, 20.0, "a row"),
    ]  # fmt: skip


# -- what is worked out --------------------------------------------------------------------------


def test_what_is_left_takes_as_long_as_what_was_done(clock: Clock) -> None:
    pace = Pace(clock)
    pace("files", 0, 4)
    assert (pace.share, pace.seconds_left) == (0.0, None)
    clock.now += 20
    pace("files", 1, 4, "c.txt")
    assert pace.seconds_left == 60
    clock.now += 15
    assert pace.seconds_left == 45
    assert str(pace) == "files, 25 %, about 45 s left: c.txt"


def test_what_takes_longer_than_it_should_is_not_guessed(clock: Clock) -> None:
    pace = Pace(clock)
    pace("files", 0, 2)
    clock.now += 10
    pace("files", 1, 2)
    clock.now += 11
    assert pace.seconds_left is None
    assert str(pace) == "files, 50 %"


def test_a_stage_has_a_pace_of_its_own(clock: Clock) -> None:
    """Its pace does not count what was already done when it began."""
    pace = Pace(clock)
    pace("files")
    assert (pace.share, pace.seconds_left, str(pace)) == (None, None, "files")
    clock.now += 50
    pace("rows", 6, 10)
    clock.now += 8
    pace("rows", 8, 10)
    assert pace.seconds_left == 8


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.2, "1 s"), (8.6, "9 s"), (22, "20 s"), (57, "55 s"), (58, "1 min"), (600, "10 min"),
     (5399, "90 min"), (9000, "2 h")],
)  # fmt: skip
def test_a_guess_is_said_no_more_exactly_than_it_is_known(seconds: float, text: str) -> None:
    assert rounded(seconds) == text


# -- plain lines ---------------------------------------------------------------------------------


def test_plain_lines_at_the_start_of_a_stage_and_every_ten_seconds(clock: Clock) -> None:
    said: list[str] = []
    lines = Lines(said.append, clock)
    lines("short", 0, 2)
    clock.now += 2
    lines("files", 0, 10, "a")
    assert said == []
    clock.now += 1
    lines.look()
    assert said == ["files, 0 %: a"]
    for done in range(1, 5):
        clock.now += 4
        lines("files", done, 10)
    assert said[1:] == ["files, 30 %, about 30 s left"]
    lines("rows")
    assert said[2:] == ["rows"]


def test_nothing_is_said_of_what_ends_soon(clock: Clock) -> None:
    said: list[str] = []
    lines = Lines(said.append, clock)
    for _ in each(lines, "files", range(100)):
        clock.now += 0.029
    assert said == []


# -- a line that moves ---------------------------------------------------------------------------


class Terminal:
    """A pseudo-terminal. `text` returns what was written to it since the last call."""

    def __init__(self) -> None:
        self.master, self.slave = pty.openpty()
        os.set_blocking(self.master, False)
        self.stream: TextIO = os.fdopen(self.slave, "w", encoding="utf-8")

    def text(self) -> str:
        self.stream.flush()
        raw = b""
        while True:
            try:
                piece = os.read(self.master, 1 << 16)
            except (BlockingIOError, OSError):
                break
            if not piece:
                break
            raw += piece
        return raw.decode().replace("\r\n", "\n")

    def close(self) -> None:
        self.stream.close()
        os.close(self.master)


@pytest.fixture
def terminal() -> Iterator[Terminal]:
    made = Terminal()
    yield made
    made.close()


def screen(text: str) -> list[str]:
    """The lines that are visible at the end of the output."""
    lines = [""]
    for piece in re.split(r"(\n|\r\x1b\[K)", text):
        if piece == "\n":
            lines.append("")
        elif piece == "\r\x1b[K":
            lines[-1] = ""
        else:
            lines[-1] += piece
    return lines


def test_the_line_is_drawn_in_place(terminal: Terminal, clock: Clock) -> None:
    line = Line(terminal.stream, clock)
    line("schemes", 0, 4, "ecmp")
    assert terminal.text() == ""
    clock.now += 10
    line("schemes", 1, 4, "spray")
    first = terminal.text()
    assert screen(first) == [f"schemes  {6 * '━'}{18 * '─'}  25 %  about 30 s left  spray"]
    line.look()
    assert terminal.text() == "", "nothing new"
    clock.now += 5
    line.look()
    second = terminal.text()
    assert "about 25 s left" in second
    line.erase()
    assert screen(first + second + terminal.text()) == [""]


def test_it_fits_the_terminal(
    terminal: Terminal, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shown, "_columns", lambda stream: 40)
    line = Line(terminal.stream, clock)
    clock.now += 5
    line("schemes", 1, 4, "a scheme with a name that is long")
    (seen,) = screen(terminal.text())
    assert len(seen) == 39
    assert "━" not in seen


def test_another_encoding_has_another_bar(clock: Clock) -> None:
    raw = io.BytesIO()
    line = Line(io.TextIOWrapper(raw, "ascii"), clock)
    clock.now += 5
    line("schemes", 1, 2)
    assert raw.getvalue() == b"\r\x1b[Kschemes  ############------------  50 %"


def test_a_terminal_that_is_gone_does_not_stop_the_work(clock: Clock) -> None:
    asked = list[str]()

    class Gone(io.StringIO):
        def write(self, text: str) -> int:
            asked.append(text)
            raise OSError(5, "Input/output error")

    line = Line(Gone(), clock)
    clock.now += 5
    line("schemes", 1, 2)
    line.erase()
    assert len(asked) == 2


# -- commands ------------------------------------------------------------------------------------


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Treats all work as lasting longer than three seconds."""
    monkeypatch.setattr("gradwire.progress.PATIENCE_SECONDS", 0.0)
    monkeypatch.setattr(shown, "PATIENCE_SECONDS", 0.0)


@pytest.fixture
def on_terminal(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """The terminal, for a test that is `printing` on it."""
    monkeypatch.setenv("TERM", "xterm")
    return terminal


@contextlib.contextmanager
def printing(on: Terminal) -> Iterator[None]:
    """Both standard streams go to the terminal."""
    with contextlib.redirect_stdout(on.stream), contextlib.redirect_stderr(on.stream):
        yield


def tell(quiet: bool = False) -> None:
    with telling(argparse.Namespace(quiet=quiet), "fake", beside=False) as progress:
        for item in each(progress, "items", ["one", "two"]):
            if item == "two":
                print("a result", end="")
                print(" so far")
                print("a note", file=sys.stderr)
    print("all")


@pytest.mark.usefixtures("at_once")
def test_what_is_printed_stands_above_the_line(on_terminal: Terminal) -> None:
    with printing(on_terminal):
        tell()
        assert sys.stdout is sys.stderr is on_terminal.stream
    written = on_terminal.text()
    assert "items" in written
    seen = screen(written)
    assert seen == ["a result so far", "a note", "all", ""]


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize("error", [KeyboardInterrupt, ZeroDivisionError])
def test_errors_and_interrupts_leave_the_terminal_clean(
    on_terminal: Terminal, error: type[BaseException]
) -> None:

    def fail() -> None:
        with telling(argparse.Namespace(), "fake") as progress:
            progress("items", 1, 2)
            raise error

    with printing(on_terminal):
        with pytest.raises(error):
            fail()
        sys.stderr.write("after")
        assert sys.stderr is on_terminal.stream
    written = on_terminal.text()
    assert "items" in written
    assert screen(written) == ["after"]


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize(("quiet", "rank"), [(True, None), (False, "1")])
def test_it_is_silent(
    on_terminal: Terminal, quiet: bool, rank: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is shown with --quiet, and on ranks other than 0."""
    if rank is not None:
        monkeypatch.setenv("RANK", rank)
    with printing(on_terminal):
        tell(quiet)
    assert on_terminal.text().splitlines() == ["a result so far", "a note", "all"]


@pytest.mark.usefixtures("at_once")
def test_a_dumb_terminal_has_plain_lines(
    on_terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "dumb")
    with printing(on_terminal), telling(argparse.Namespace(), "fake", beside=False) as progress:
        progress("items", 1, 2)
    assert on_terminal.text() == "gradwire fake: starting\ngradwire fake: items, 50 %\n"


@pytest.mark.usefixtures("at_once")
def test_what_says_nothing_is_looked_at(on_terminal: Terminal) -> None:
    """A thread shows it, which has ended when the block has."""
    with printing(on_terminal), telling(argparse.Namespace(), "fake") as progress:
        assert isinstance(progress, Line)
        progress.erase()
        on_terminal.text()
        told = ""
        deadline = time.monotonic() + 60
        while "starting" not in told and time.monotonic() < deadline:
            time.sleep(0.01)
            told += on_terminal.text()
    assert "starting" in told


TRAFFIC = ["--topology", "leaf_spine(2, 2, 2)", "--bytes", "1e4"]


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize(
    ("typed", "stages"),
    [
        (["network", "plan", *TRAFFIC], ("schemes, 0 %: ecmp", "what to do")),
        (["network", "simulate", *TRAFFIC], ("schemes, 0 %: ecmp",)),
        (["network", "whatif", *TRAFFIC, "--places", "2"],
         ("failing cables, 0 %", "failing switches, 0 %", "other places, 0 %")),
        (["available"], ("starting",)),
    ],
)  # fmt: skip
def test_commands_tell_on_standard_error_alone(
    typed: list[str], stages: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    who = " ".join(word for word in typed[:2] if typed[0] == "network") or typed[0]
    assert cli.main([*typed, "--json"]) == 0
    out, err = capsys.readouterr()
    lines = [f"gradwire {who}: {stage}" for stage in stages]
    assert [line for line in err.splitlines() if line.startswith(tuple(lines))]
    assert not [line for line in lines if line not in err]
    assert cli.main([*typed, "--json", "--quiet"]) == 0
    quiet = capsys.readouterr()
    assert quiet.err == ""
    assert json.loads(quiet.out) == json.loads(out)


def test_what_ends_soon_says_nothing(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gradwire.progress.PATIENCE_SECONDS", 1e9)
    assert cli.main(["network", "plan", *TRAFFIC]) == 0
    assert capsys.readouterr().err == ""


INTERRUPTED = """
import os, signal, sys
from gradwire.cli import main, progress
import gradwire.cli.available as command

progress.PATIENCE_SECONDS = 0.0

def run(arguments):
    with progress.telling(arguments, "available") as told:
        told("items", 1, 2)
        os.kill(os.getpid(), signal.SIGINT)
        signal.pause()

command.run = run
sys.exit(main.main(["available", "--json"]))
"""


def listening() -> None:
    """Restores Ctrl-C, which a shell's background jobs and their children ignore."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def test_ctrl_c_in_a_terminal(terminal: Terminal, tmp_path: Path) -> None:
    with (tmp_path / "out").open("w") as out:
        job = subprocess.run(
            [sys.executable, "-c", INTERRUPTED], stdout=out, stderr=terminal.slave,
            env=os.environ | {"TERM": "xterm"}, check=False, timeout=240,
            preexec_fn=listening,
        )  # fmt: skip
    assert job.returncode == 130
    written = terminal.text()
    assert "items" in written
    assert screen(written) == [""]
    assert (tmp_path / "out").read_text() == ""


def test_silence_costs_nothing_that_is_not_there() -> None:
    """The command's frame loads neither torch nor rich."""
    code = (
        "import sys, gradwire.cli.main, gradwire.cli.progress\n"
        "sys.exit(bool({'torch', 'rich', 'numpy', 'argcomplete'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
    assert list(each(silent, "", [1, 2])) == [1, 2]

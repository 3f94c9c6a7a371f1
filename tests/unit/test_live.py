"""`gradwire top`: its view of a run, and its alarms."""

from __future__ import annotations

import io
import os
import signal
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from runs import PLAN, about, step, write
from test_progress import Terminal
from test_report import run_of

from gradwire.cli import main as cli
from gradwire.report.alarms import alarms, residual_growth
from gradwire.report.live import MOST_RANKS, follow, view
from gradwire.report.run import Run
from gradwire.report.summary import summarize
from gradwire.run_folder import OVER


def text_of(run: Run, seen: dict[int, tuple[int, float]] | None = None, now: float = 0.0) -> str:
    out = io.StringIO()
    Console(file=out, width=100).print(view(run, {} if seen is None else seen, now))
    return out.getvalue()


def test_each_rank_has_a_line(tmp_path: Path) -> None:
    text = text_of(Run(run_of(tmp_path, slow=3.0)))
    head, second, alarm, names, first, last = text.splitlines()
    assert "step 39" in head
    assert "2 of 2 ranks" in head
    assert "10.0 times fewer bytes" in head
    assert "loss 1.1" in second
    assert "█comp ▓back ░wait" in names
    assert first.split()[:3] == ["0", "h", "39"]
    assert last.count("█") > first.count("█"), "it computes longer"
    assert alarm.startswith("! rank 1 computes")


def test_a_rank_that_says_nothing_is_named(tmp_path: Path) -> None:
    run = Run(run_of(tmp_path))
    seen: dict[int, tuple[int, float]] = {}
    assert "has recorded nothing" not in text_of(run, seen, 100.0)
    assert "has recorded nothing" not in text_of(run, seen, 120.0)
    write(tmp_path, 0, ("step", step(40)))
    run.look()
    text = text_of(run, seen, 140.0)
    assert "! rank 1 has recorded nothing for 40 s; its last step is 39" in text
    assert "rank 0 has" not in text


@pytest.mark.parametrize("silent", [1, 2])
def test_silence_before_the_first_look_counts(tmp_path: Path, silent: int) -> None:
    """A job that ended hours ago is not taken for one that trains."""
    folder = run_of(tmp_path)
    for rank in range(silent):
        long_ago = time.time() - 5 * 3600
        os.utime(folder / f"rank-{rank}.jsonl", (long_ago, long_ago))
    text = text_of(Run(folder))
    one = "! rank 0 has recorded nothing for 5 h; its last step is 39"
    all_ = "! no rank has recorded anything for 5 h: the job has ended, or stands still"
    assert (one in text, all_ in text) == (silent == 1, silent == 2)


def test_a_clock_that_is_behind_is_no_silence(tmp_path: Path) -> None:
    folder, later = run_of(tmp_path), time.time() + 5 * 3600
    for rank in range(2):
        os.utime(folder / f"rank-{rank}.jsonl", (later, later))
    seen: dict[int, tuple[int, float]] = {}
    assert "recorded" not in text_of(Run(folder), seen, 100.0)
    assert seen[0][1] == 100.0


def test_many_ranks(tmp_path: Path) -> None:
    run = Run(run_of(tmp_path, ranks=MOST_RANKS + 3, steps=2))
    text = text_of(run)
    assert "3 more ranks compute no longer than these" in text


@pytest.mark.parametrize(("height", "ranks", "shown"), [(12, 30, 7), (40, 30, 30), (3, 30, 1)])
def test_it_fits_the_terminal(tmp_path: Path, height: int, ranks: int, shown: int) -> None:
    """Problems are shown at the top, whatever rows do not fit below."""
    run = Run(run_of(tmp_path, ranks=ranks, steps=8, slow=3.0))
    out = io.StringIO()
    console = Console(file=out, width=100, height=height)
    console.print(view(run, {}, 0.0, console))
    lines = out.getvalue().splitlines()
    assert "! rank 29 computes" in lines[2]
    assert sum(" h " in line for line in lines) == shown
    assert len(lines) <= max(height, 6)
    hidden = f"{ranks - shown} more ranks compute no longer than these"
    assert (hidden in lines[-1]) == (shown < ranks)


@pytest.mark.parametrize("width", [40, 60, 80, 100])
def test_no_number_is_cut(tmp_path: Path, width: int) -> None:
    """A narrow terminal shows fewer columns, and less of a host's long name."""
    facts = {"step": 123_000, "host": "trainer-worker-0123.cluster.local"}
    times = {"seconds": 1.2345, "encode": 0.1234, "wire": 0.4567, "decode": 0.1021}
    for rank in (0, 1):
        own = step(123_456, **times, bytes_sent=123_456_789, residual_norm=1.25e-7)
        write(tmp_path, rank, ("about", about(rank=rank, world=2, **facts)), ("step", own))
    out = io.StringIO()
    Console(file=out, width=width).print(view(Run(tmp_path), {}, 0.0))
    *_, head, first, last = out.getvalue().splitlines()
    assert max(map(len, (head, first, last))) <= width
    numbers = ["123,456", "1234.5", "123.4", "456.7", "102.1", "123_MB", "1.2e-07"]
    own = [cell for cell in last.replace("123 MB", "123_MB").split() if cell[0] not in "█▓░"]
    assert own[0] == "1"
    assert own[2:] == numbers[: len(own) - 2]
    assert ("norm" in head, "wire" in head) == (width > 80, width > 60)


def test_more_than_the_gradient_is_not_fewer(tmp_path: Path) -> None:
    write(tmp_path, 0, ("about", about(rank=0)), ("step", step(0, bytes_sent=150)))
    assert "1.5 times the gradient's bytes" in text_of(Run(tmp_path))


def test_nothing_yet(tmp_path: Path) -> None:
    write(tmp_path, 0, ("about", about(rank=0, world=4)))
    assert "no step has ended yet; 1 of 4 ranks" in text_of(Run(tmp_path))


def test_names_from_files_are_no_markup(tmp_path: Path) -> None:
    write(
        tmp_path, 0, ("about", about(rank=0, host="[red]h[/]")), ("step", step(0)),
        ("event", {"step": 0, "at": 0.0, "what": "[/] broken [link=x]"}),
    )  # fmt: skip
    text = text_of(Run(tmp_path))
    assert "[red]h[/]" in text
    assert "[/] broken [link=x]" in text


def test_names_from_files_command_no_terminal(tmp_path: Path) -> None:
    folder = tmp_path / "\x1b[31mrun"
    write(
        folder, 0, ("about", about(rank=0, host="\x1b[32mh")), ("step", step(0)),
        ("event", {"step": 0, "at": 0.0, "what": "\x1b]0;title\x07\nbroken"}),
    )  # fmt: skip
    text = text_of(Run(folder))
    for shown in ("[31mrun", "[32mh", "]0;title"):
        assert f"\ufffd{shown}" in text
    assert "\x1b" not in text
    assert "\x07" not in text
    assert "\ufffd broken" in text, "in one line"


def test_it_follows(tmp_path: Path) -> None:
    run, shown = Run(run_of(tmp_path, steps=2)), list[Any]()

    def show(what: Any) -> None:
        shown.append(what)
        write(tmp_path, 0, ("step", step(50 + len(shown))))

    follow(run, 0.001, show, is_over=lambda: len(shown) == 3)
    assert run.first.steps[-1].step == 52
    assert len(shown) == 3


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["top", str(run_of(tmp_path)), "--once"]) == 0
    assert "2 of 2 ranks" in capsys.readouterr().out
    assert cli.main(["top", str(tmp_path / "nothing")]) == 2
    assert "a run must be a folder" in capsys.readouterr().err


def test_reading_that_takes_long_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gradwire.progress.PATIENCE_SECONDS", 0.0)
    assert cli.main(["top", str(run_of(tmp_path)), "--once"]) == 0
    assert "gradwire top: files, 0 %: rank-" in capsys.readouterr().err
    assert cli.main(["top", str(tmp_path), "--once", "--quiet"]) == 0
    assert capsys.readouterr().err == ""


def test_without_a_terminal_it_is_shown_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a terminal it is shown once, also if colours are requested."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr("time.sleep", no_wait)
    assert cli.main(["top", str(run_of(tmp_path))]) == 0
    assert "ranks" in capsys.readouterr().out


@pytest.mark.parametrize("kind", ["dumb", "unknown"])
def test_a_terminal_that_cannot_draw_is_shown_it_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    class Dumb(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setenv("TERM", kind)
    monkeypatch.setattr("time.sleep", no_wait)
    monkeypatch.setattr(sys, "stdout", out := Dumb())
    assert cli.main(["top", str(run_of(tmp_path))]) == 0
    assert "2 of 2 ranks" in out.getvalue()


def test_sigterm_gives_the_terminal_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def ended(*_: object, **__: object) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        signal.pause()

    def leave(*_: object) -> None:
        raise RuntimeError("nobody took SIGTERM")

    before = signal.signal(signal.SIGTERM, leave)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr("gradwire.report.live.follow", ended)
    with closing(Terminal()) as terminal:
        monkeypatch.setattr(sys, "stdout", terminal.stream)
        try:
            with pytest.raises(SystemExit) as error:
                cli.main(["top", str(run_of(tmp_path))])
        finally:
            signal.signal(signal.SIGTERM, before)
        written = terminal.text()
    assert error.value.code == 143
    assert written.count("\x1b[?1049h") == written.count("\x1b[?1049l") == 1


def test_a_pause_of_centuries_is_a_long_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited, shown = list[float](), list[Any]()
    monkeypatch.setattr("time.sleep", waited.append)
    follow(Run(run_of(tmp_path)), 1e12, shown.append, is_over=lambda: len(shown) == 2)
    assert waited == [86_400.0]


def no_wait(seconds: float) -> None:
    raise AssertionError(f"it goes on, {seconds} s later")


# -- alarms --------------------------------------------------------------------------------


def of_norms(folder: Path, norms: list[float]) -> Run:
    rows = [("step", step(n, residual_norm=norm)) for n, norm in enumerate(norms)]
    write(folder, 0, ("about", about(rank=0)), *rows)
    return Run(folder)


def test_residuals_that_grow(tmp_path: Path) -> None:
    piled = of_norms(tmp_path / "a", [float(n) for n in range(1, 41)])
    settled = of_norms(tmp_path / "b", [1.0] * 10 + [4.0] * 30)
    assert residual_growth(piled.first) == pytest.approx(35.5 / 15.5)
    assert residual_growth(settled.first) == 1.0
    assert residual_growth(of_norms(tmp_path / "c", [1.0]).first) == 1.0
    found = summarize(piled)
    assert found is not None
    assert any("residuals grow: their norm is 2.3 times" in text for text in alarms(found))


@pytest.mark.parametrize(("ranks", "many"), [(4, 0), (16, 1), (None, 0)])
def test_a_plan_of_other_ranks(tmp_path: Path, ranks: int | None, many: int) -> None:
    """What it predicts is of its own number of ranks. Of a sharded model fewer ranks than all
    average; older recordings do not say how many."""
    plan = {"step": 0, "plan": {**PLAN, "prediction": {"seconds": 0.02, "workers": 4}}}
    own = about(rank=0, world=16, facts={} if ranks is None else {OVER: ranks})
    write(tmp_path, 0, ("about", own), ("plan", plan), ("step", step(0)))
    found = summarize(Run(tmp_path))
    assert found is not None
    said = list(alarms(found))
    assert sum("as its plan said" in text for text in said) == 1 - many
    assert sum("plan again, by gradwire plan --workers 16" in text for text in said) == many


@pytest.mark.parametrize(
    ("prediction", "is_said"),
    [({"seconds": 0.02}, True), ({"seconds": 0.029}, False), ({"seconds": "x"}, False),
     ({"seconds": -1}, False), (3, False)],
)  # fmt: skip
def test_a_plan_that_is_not_met(tmp_path: Path, prediction: Any, is_said: bool) -> None:
    plan = {"step": 0, "plan": {**PLAN, "prediction": prediction}}
    write(tmp_path, 0, ("about", about(rank=0)), ("plan", plan), ("step", step(0)))
    found = summarize(Run(tmp_path))
    assert found is not None
    said = [text for text in alarms(found) if "as its plan said" in text]
    assert said == (
        ["a step takes 1.50 times as long as its plan said, 20.0 ms: profile the job again"]
        if is_said else []
    )  # fmt: skip

"""Shows on standard error how far a command is: a line that moves, or plain lines in a log.

    with telling(arguments, "network plan") as progress:
        advice = advise(…, progress=progress)

On a terminal the last line is drawn anew in place, and is gone when the block ends, however it
ends. What is printed meanwhile stands above it: both streams are wrapped, so that no print has to
know of it. Elsewhere there are plain lines (`gradwire.progress.Lines`). Nothing is shown in the
first three seconds, with --quiet, and by ranks other than 0.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any, Protocol, TextIO

from gradwire.cli.arguments import say
from gradwire.progress import PATIENCE_SECONDS, Clock, Lines, Pace, Progress, silent
from gradwire.report.terminal import printable

_TICK_SECONDS = 0.25
_BAR = 24  # characters
_LEAST_COLUMNS = 60  # of a terminal; a narrower one has no bar


class _Display(Protocol):
    """A `Progress` whose `look`, called from time to time, shows what is due."""

    def __call__(self, stage: str, done: float = 0.0, of: float = 0.0, now: str = "") -> None: ...

    def look(self) -> None: ...


class Line:
    """A `Progress` that is the last line of a terminal. `look` draws it, `erase` takes it away."""

    def __init__(self, stream: TextIO, clock: Clock = time.monotonic) -> None:
        self.stream, self._clock, self._pace, self._begun = stream, clock, Pace(clock), clock()
        self._drawn = ""
        self._is_free = True  # nothing that was printed stands in the line
        self._lock = threading.RLock()

    def __call__(self, stage: str, done: float = 0.0, of: float = 0.0, now: str = "") -> None:
        """Notes how far the work is, and draws the line."""
        with self._lock:
            self._pace(stage, done, of, now)
            self.look()

    def look(self) -> None:
        """Draws the line, if it is due and its text has changed."""
        with self._lock:
            if self._clock() - self._begun < PATIENCE_SECONDS or not self._is_free:
                return
            text = self._text()
            if text != self._drawn:
                self._put(f"\r\x1b[K{text}")
                self._drawn = text

    def erase(self) -> None:
        """Empties the line."""
        with self._lock:
            if self._drawn:
                self._put("\r\x1b[K")
                self._drawn = ""

    def print(self, stream: TextIO, text: str) -> int:
        """Writes other output above the line; returns the number of characters."""
        with self._lock:
            self.erase()
            written = stream.write(text)
            stream.flush()
            if text:
                self._is_free = text.endswith("\n")
            return written

    def _put(self, text: str) -> None:
        with contextlib.suppress(OSError):  # the terminal is gone: work goes on
            self.stream.write(text)
            self.stream.flush()

    def _text(self) -> str:
        pace, columns = self._pace, _columns(self.stream)
        bar = "" if pace.share is None or columns < _LEAST_COLUMNS else self._bar(pace.share)
        parts = (pace.stage, bar, *pace.facts(), pace.now)
        return printable("  ".join(filter(None, parts)))[: columns - 1]

    def _bar(self, share: float) -> str:
        full, empty = "━─" if (self.stream.encoding or "").lower() == "utf-8" else "#-"
        return round(share * _BAR) * full + (_BAR - round(share * _BAR)) * empty


class _Above:
    """A stream whose terminal has such a line: what is written to the stream stands above it."""

    def __init__(self, stream: TextIO, line: Line) -> None:
        self._stream, self._line = stream, line

    def write(self, text: str) -> int:
        return self._line.print(self._stream, text)

    def writelines(self, lines: list[str]) -> None:
        self.write("".join(lines))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextlib.contextmanager
def telling(arguments: argparse.Namespace, who: str, *, beside: bool = True) -> Iterator[Progress]:
    """Yields the `Progress` that shows how far the command is.

    who: the command, as "network plan". beside: whether a thread of its own keeps the display up
    to date, so that it moves on while the work reports nothing; False where times are measured
    that no thread may disturb: then only a report draws it.
    """
    stream = sys.stderr
    if stream is None or getattr(arguments, "quiet", False) or os.environ.get("RANK", "0") != "0":
        yield silent
        return
    line = Line(stream) if moves(stream) else None
    display: _Display = line or Lines(lambda text: say(text, f"gradwire {who}"))
    display("starting")
    with _above(line), _looking(display, beside):
        yield display


def moves(stream: TextIO | None) -> bool:
    """Whether a line can be drawn anew, on a terminal that knows how. None: closed."""
    kind = os.environ.get("TERM", "").lower()
    return stream is not None and stream.isatty() and kind not in ("", "dumb", "unknown")


def _columns(stream: TextIO) -> int:
    try:
        return os.get_terminal_size(stream.fileno()).columns or 80
    except (OSError, ValueError):
        return 80


@contextlib.contextmanager
def _above(line: Line | None) -> Iterator[None]:
    """Puts everything that is printed to the line's terminal above it; erases the line in the
    end."""
    if line is None:
        yield
        return
    before = sys.stdout, sys.stderr
    sys.stderr = _Above(before[1], line)
    if before[0] is not None and before[0].isatty():
        sys.stdout = _Above(before[0], line)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before
        line.erase()


@contextlib.contextmanager
def _looking(display: _Display, beside: bool) -> Iterator[None]:
    """Calls `display.look` a few times a second, from a thread of its own, if `beside`."""
    is_over = threading.Event()

    def look() -> None:
        while not is_over.wait(_TICK_SECONDS):
            display.look()

    thread = threading.Thread(target=look, name="gradwire progress", daemon=True)
    if beside:
        thread.start()
    try:
        yield
    finally:
        is_over.set()
        if beside:
            thread.join()

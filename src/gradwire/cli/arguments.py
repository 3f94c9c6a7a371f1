"""Arguments and checks that several commands share: what is wrong is refused before any work."""

from __future__ import annotations

import argparse
import contextlib
import os
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from gradwire.document import save_file
from gradwire.errors import UsageError
from gradwire.progress import to_stderr
from gradwire.report.terminal import printable

if TYPE_CHECKING:
    from gradwire.report.page import Page
    from gradwire.trace import Trace


def add_quiet(parser: argparse.ArgumentParser) -> None:
    """Declares --quiet, for a command that shows how far it is (`cli.progress`)."""
    parser.add_argument("--quiet", action="store_true", help="show no progress")


def whole(least: int, most: int = 1_000_000) -> Callable[[str], int]:
    """Returns what argparse reads a whole number by; it refuses numbers out of range."""

    def read(text: str) -> int:
        try:
            number = int(text)
        except ValueError:  # also for thousands of digits
            number = least - 1
        if not least <= number <= most:
            raise argparse.ArgumentTypeError(
                f"must be a whole number from {least} to {most:,}; got {text!r}"
            )
        return number

    return read


def add_perfetto(parser: argparse.ArgumentParser, what: str) -> None:
    """Declares --perfetto, for a command that can write the timeline of `what`."""
    export = f"write the timeline of {what} to FILE, for ui.perfetto.dev; .gz: compressed"
    parser.add_argument("--perfetto", type=Path, metavar="FILE", help=export)


def above_0(text: str) -> float:
    """Reads a number above zero, for an argument that need not be whole."""
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < float("inf"):
        raise argparse.ArgumentTypeError(f"must be a number above 0; got {text!r}")
    return number


def check_output(
    what: str, path: Path | None, reads: Iterable[str | Path | None] = (),
    beside: Iterable[Path | None] = (),
) -> None:  # fmt: skip
    """Raises UsageError unless a file can be written there: before the work, not after it. None:
    nothing is written.

    reads: the files that the command reads, which would be lost; also texts that may be names of
    files. beside: the other files that it writes.
    """
    if path is None:
        return
    if str(path) == "-":
        raise UsageError(
            f"{what} needs a file; got '-', which does not stand for standard output here. Name a "
            "file, such as /dev/stdout."
        )
    may_write = any(os.access(one, os.W_OK) for one in (path.parent, path))
    if not may_write or not _may_be_file(path):
        raise UsageError(
            f"{what} needs a file in a writable folder; {path} cannot be written. Make the "
            "folder, or name another file."
        )
    for use, others in (("read", reads), ("written", beside)):
        if any(other is not None and _is_same(path, Path(other)) for other in others):
            raise UsageError(
                f"{what} needs a file of its own; {path} is also {use} by this command. Name "
                "another file."
            )


def _may_be_file(path: Path) -> bool:
    try:
        return not path.is_dir()
    except OSError:  # such as a name that is too long
        return False


def _is_same(path: Path, other: Path) -> bool:
    """Whether both are the same file, so that writing one loses the other; a device or a pipe is
    not."""
    try:
        if path.exists() and other.exists():
            return path.is_file() and path.samefile(other)
        return path.resolve() == other.resolve()
    except (OSError, ValueError, RuntimeError):  # a text that is no name of a file
        return False


def repeats(arguments: argparse.Namespace) -> str:
    """Returns the command line as it was typed, to be run again."""
    return shlex.join(["gradwire", *arguments.typed])


def say(text: str, who: str = "gradwire") -> None:
    """Prints a line to standard error. If nobody reads that any more, the work goes on."""
    to_stderr(f"{who}: {printable(text)}")


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Raises UsageError if the block, which writes the file at `path`, fails."""
    try:
        yield
    except OSError as error:
        raise UsageError(
            f"the output needs a file that can be written; {path}: {error.strerror or error}. "
            "Name another file, or free some space."
        ) from error


@contextlib.contextmanager
def answering(answer: str, as_json: bool) -> Iterator[None]:
    """Prints the answer after the block, which writes files. If one cannot be written, a text is
    still printed, but not JSON: then the error is the JSON document."""
    try:
        yield
    except UsageError:
        if not as_json:
            print(answer)
        raise
    print(answer)


def write_page(page: Page, path: Path) -> None:
    """Writes the page; characters of file names that are no text become "?".

    Raises UsageError if it cannot be written.
    """
    text = page.html().encode(errors="replace")
    with writing(path):
        save_file(path, text)


def save_page(page: Page, path: Path) -> None:
    """Writes the page, and says so on standard error. Raises UsageError."""
    write_page(page, path)
    say(f"wrote {path}")


def save_timelines(
    traces: Mapping[str, Trace], path: Path, name: Callable[[int], str] = lambda rank: ""
) -> None:
    """Writes traces of simulated or predicted steps side by side, and says so on standard error.
    name: as in `perfetto.side_by_side`. Raises UsageError if the file cannot be written."""
    from gradwire.report import perfetto

    perfetto.save(perfetto.side_by_side(traces, name), path)
    say(f"wrote {path}; open it in ui.perfetto.dev")


def after_dashes(words: Sequence[str]) -> list[str]:
    """Returns the command to run, which may stand after "--"."""
    return list(words[1:] if words[:1] == ["--"] else words)

"""What several commands read from their command line, and refuse before any work."""

from __future__ import annotations

import argparse
import contextlib
import os
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from gradwire.errors import UsageError
from gradwire.report.terminal import printable

if TYPE_CHECKING:
    from gradwire.report.page import Page


def add_quiet(parser: argparse.ArgumentParser) -> None:
    """Declare --quiet, of a command that tells how far it is (`cli.progress`)."""
    parser.add_argument("--quiet", action="store_true", help="do not tell how far it is")


def whole(least: int, most: int = 1_000_000) -> Callable[[str], int]:
    """What argparse makes a number by; it refuses what is out of range."""

    def read(text: str) -> int:
        try:
            number = int(text)
        except ValueError:  # also of thousands of digits
            number = least - 1
        if not least <= number <= most:
            raise argparse.ArgumentTypeError(
                f"it is a whole number, {least} to {most:,}; got {text!r}"
            )
        return number

    return read


def above_0(text: str) -> float:
    """A parser of numbers above zero, for an argument that need not be whole."""
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < float("inf"):
        raise argparse.ArgumentTypeError(f"it is a number above 0; got {text!r}")
    return number


def check_output(
    what: str, path: Path | None, reads: Iterable[str | Path | None] = (),
    beside: Iterable[Path | None] = (),
) -> None:  # fmt: skip
    """UsageError unless a file can be written there: said before the work, not after it. None:
    nothing is written.

    reads: what the command reads, which would be lost; texts that may be names of files, too.
    beside: where it writes something else.
    """
    if path is None:
        return
    if not os.access(path.parent, os.W_OK) or not _may_be_file(path):
        raise UsageError(
            f"{what} is written to a file in a folder that is there; {path} is none. Make the "
            "folder, or say another file."
        )
    for use, others in (("read", reads), ("written", beside)):
        if any(other is not None and _is_same(path, Path(other)) for other in others):
            raise UsageError(
                f"{what} is written to a file of its own; {path} is also {use} by this command. "
                "Say another file."
            )


def _may_be_file(path: Path) -> bool:
    try:
        return not path.is_dir()
    except OSError:  # as of a name that is too long
        return False


def _is_same(path: Path, other: Path) -> bool:
    """Whether what is written to one is lost in the other: not in a device or a pipe."""
    try:
        if path.exists() and other.exists():
            return path.is_file() and path.samefile(other)
        return path.resolve() == other.resolve()
    except (OSError, ValueError, RuntimeError):  # of a text that is no name of a file
        return False


def repeats(arguments: argparse.Namespace) -> str:
    """The command as it was typed, to be run again."""
    return shlex.join(["gradwire", *arguments.typed])


def say(text: str, who: str = "gradwire") -> None:
    """Tell in a line of standard error. Where nobody reads it any more, the work goes on."""
    if sys.stderr is None:  # closed from the start; print would take standard output
        return
    with contextlib.suppress(OSError, ValueError):
        print(f"{who}: {printable(text)}", file=sys.stderr, flush=True)


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """The block writes this file: UsageError where that fails."""
    try:
        yield
    except OSError as error:
        raise UsageError(
            f"what is written needs a file that takes it; {path}: {error.strerror or error}. Say "
            "another file, or make room."
        ) from error


@contextlib.contextmanager
def answering(answer: str, as_json: bool) -> Iterator[None]:
    """The block writes files, and the answer is printed after it: also where one of them cannot
    be written, unless it is a JSON document, since then the error is one, and there is one."""
    try:
        yield
    except UsageError:
        if not as_json:
            print(answer)
        raise
    print(answer)


def write_page(page: Page, path: Path) -> None:
    """Write it; names of files that are no text are shown as far as they are.

    Raises UsageError where that cannot be.
    """
    text = page.html()
    with writing(path):
        path.write_text(text, encoding="utf-8", errors="replace")


def save_page(page: Page, path: Path) -> None:
    """Write it, and say so on standard error. Raises UsageError."""
    write_page(page, path)
    say(f"wrote {path}")


def after_dashes(words: Sequence[str]) -> list[str]:
    """The command that is to be run, which may stand after "--"."""
    return list(words[1:] if words[:1] == ["--"] else words)

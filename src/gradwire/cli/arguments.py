"""What several commands read from their command line, and refuse before any work."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from gradwire.errors import UsageError

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


def check_output(what: str, path: Path | None) -> None:
    """UsageError unless a file can be written there: said before the work, not after it. None:
    nothing is written."""
    if path is not None and (not os.access(path.parent, os.W_OK) or path.is_dir()):
        raise UsageError(
            f"{what} is written to a file in a folder that is there; {path} is none. Make the "
            "folder, or say another file."
        )


def repeats(arguments: argparse.Namespace) -> str:
    """The command as it was typed, to be run again."""
    return shlex.join(["gradwire", *arguments.typed])


def printable(text: str) -> str:
    """Text that came from files, without what would command a terminal."""
    return "".join(c if c.isprintable() or c == "\n" else "\ufffd" for c in text)


def write_page(page: Page, path: Path) -> None:
    """Write it; names of files that are no text are shown as far as they are."""
    path.write_text(page.html(), encoding="utf-8", errors="replace")


def save_page(page: Page, path: Path) -> None:
    """Write it, and say so on standard error."""
    write_page(page, path)
    print(f"gradwire: wrote {path}", file=sys.stderr, flush=True)


def after_dashes(words: Sequence[str]) -> list[str]:
    """The command that is to be run, which may stand after "--"."""
    return list(words[1:] if words[:1] == ["--"] else words)

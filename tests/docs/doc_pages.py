"""Reads the pages: fenced blocks, the commands in them, commands and links in the text."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDERS = ("docs", "benchmarks", "examples", "contrib", "recipes")
PAGES = [
    path.relative_to(ROOT).as_posix()
    for pattern in ("*.md", *(f"{folder}/**/*.md" for folder in FOLDERS))
    for path in sorted(ROOT.glob(pattern))
]
LANGUAGES = ("python", "console", "toml", "diff", "text")
"""The languages of blocks. `diff` and `text` (pictures, output) are shown and not run."""

_FENCE = re.compile(r"^ *```(\w*)\n(.*?)^ *```$", re.DOTALL | re.MULTILINE)
_SPAN = re.compile(r"`([^`]+)`")
_LINK = re.compile(r"\]\(([^)\s]+)\)")


@dataclass(frozen=True)
class Block:
    """One fenced block, and where it begins."""

    page: str
    line: int
    language: str
    text: str

    @property
    def place(self) -> str:
        return f"{self.page}:{self.line}"


def text_of(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def blocks(page: str) -> list[Block]:
    """The fenced blocks of a page, in its order."""
    text = text_of(page)
    return [
        Block(page, text.count("\n", 0, found.start()) + 1, found[1], found[2])
        for found in _FENCE.finditer(text)
    ]


def spans(page: str) -> list[str]:
    """The parts of the text that stand `like this`."""
    prose = _FENCE.sub("", text_of(page))
    return [" ".join(span.split()) for span in _SPAN.findall(prose)]


def links(page: str) -> list[str]:
    """The targets of links inside this repository."""
    prose = _SPAN.sub("", _FENCE.sub("", text_of(page)))
    return [link for link in _LINK.findall(prose) if "://" not in link]


def anchors(page: str) -> set[str]:
    """The headings, as links name them."""
    headings = re.findall(r"^#+ (.*)$", _FENCE.sub("", text_of(page)), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", each.lower()).replace(" ", "-") for each in headings}


def commands(text: str) -> Iterator[list[str]]:
    """Yields each command of a shell's lines, as words, without pipes and redirections."""
    for line in text.replace("\\\n", " ").splitlines():
        words = shlex.shlex(line, posix=True, punctuation_chars="&|;<>")
        words.whitespace_split = True
        command: list[str] = []
        for word in [*words, ";"]:
            if word not in ("&&", ";"):
                command.append(word)
                continue
            if found := _alone(command):
                yield found
            command = []


def _alone(command: list[str]) -> list[str]:
    """The command without variables in front and redirections behind."""
    while command and re.fullmatch(r"[A-Z_]+=.*", command[0]):
        command = command[1:]
    ends = [place for place, word in enumerate(command) if word in (">", "|", "<")]
    return command[: ends[0]] if ends else command

"""Checks that a command could be typed: the program's own parser reads it; nothing is started."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

from doc_pages import ROOT

from gradwire.cli import main as cli

OWN = {"train.py", "…"}
"""Scripts that are the reader's own."""

OTHERS = {"pip", "git", "."}
"""Programs whose commands are not checked."""


def check(command: list[str]) -> None:
    """Raises AssertionError unless the program that it names knows each word of the command."""
    program, *words = command
    if program in OTHERS:
        return
    readers = {"gradwire": _gradwire, "make": _make, "python": _python, "torchrun": _torchrun}
    assert program in readers, f"nobody checks commands of {program!r}"
    readers[program](words)
    if program == "gradwire" and "--" in words:
        check(words[words.index("--") + 1 :])


def mentioned(command: list[str]) -> None:
    """Checks a command in a sentence, which leaves out what the sentence is not about."""
    program, *words = command
    if program != "gradwire":
        check(command)
        return
    parser: argparse.ArgumentParser = cli._parser(words[0])
    for word in words[: words.index("--")] if "--" in words else words:
        if word in _below(parser):
            parser = _below(parser)[word]
        elif word.startswith("-"):
            any_of = [parser, *(_below(parser).values() if "…" in words else ())]
            known = {name for each in any_of for name in each._option_string_actions}
            assert word.partition("=")[0] in known, f"{parser.prog} has no {word}"


def _below(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """The commands of a parser, by name."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            return dict(action.choices)
    return {}


def _gradwire(words: list[str]) -> None:
    _parsed(cli._parser(words[0] if words else ""), words)


def _torchrun(words: list[str]) -> None:
    from torch.distributed.run import get_args_parser

    _script(_parsed(get_args_parser(), words).training_script)


def _parsed(parser: argparse.ArgumentParser, words: list[str]) -> argparse.Namespace:
    try:
        return parser.parse_args(words)
    except SystemExit:
        raise AssertionError(f"{parser.prog} cannot read {words}") from None


def _make(words: list[str]) -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for word in words:
        name, is_set, _ = word.partition("=")
        if is_set:
            assert re.search(rf"\b{name}\b", makefile), f"the Makefile knows no {name}"
        else:
            assert re.search(rf"^{re.escape(word)}:", makefile, re.MULTILINE), f"no target {word}"


def _python(words: list[str]) -> None:
    script, *options = words
    if script in OWN:
        return
    sources = "".join(path.read_text() for path in _script(script).parent.glob("*.py"))
    sources += "".join(path.read_text() for path in (ROOT / "benchmarks").glob("*.py"))
    for option in options:
        if option.startswith("--"):
            assert f'"{option}"' in sources, f"{script} has no {option}"


def _script(script: str) -> Path:
    assert script in OWN or (ROOT / script).is_file(), f"there is no {script}"
    return ROOT / script

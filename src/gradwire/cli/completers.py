"""Completes the word at the cursor: the shell asks with each Tab, by argcomplete's protocol.

A Tab must not wait for torch. So names of compressors, feedbacks and collectives are read in their
sources, where each is a class with a `name`; those of other packages, in their entry points.
"""

from __future__ import annotations

import argparse
import ast
import inspect
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

Completer: TypeAlias = Callable[..., Iterable[str]]
"""Takes what is typed so far of a word (`prefix`), and returns the words that begin so."""


class Name(NamedTuple):
    """A member's name, whether parameters may follow it, and whether it is a whole strategy."""

    text: str
    has_parameters: bool
    is_whole: bool = False


# -- members -------------------------------------------------------------------------------------


def members(family: str) -> list[Name]:
    """Returns the names in "compressors", "feedback" or "collectives", without loading these."""
    from importlib.metadata import entry_points

    import gradwire

    folders = [Path(root) / family for root in gradwire.__path__]  # an editable install has two
    found = (path for folder in folders for path in folder.glob("*.py"))
    files = sorted(path for path in found if not path.name.startswith("_"))
    own = [name for path in files for name in _named(path)]
    others = [Name(entry.name, True) for entry in entry_points(group=f"gradwire.{family}")]
    return [*own, *others]


def _named(path: Path) -> Iterator[Name]:
    """Yields the members in a file: the classes that have a name."""
    for node in ast.parse(path.read_text("utf-8")).body:
        if not isinstance(node, ast.ClassDef) or node.name.startswith("_"):
            continue
        fields = {
            own.target.id: own
            for own in node.body
            if isinstance(own, ast.AnnAssign) and isinstance(own.target, ast.Name)
        }
        name = _value(fields.get("name"))
        if isinstance(name, str):
            given = any("ClassVar" not in ast.unparse(own.annotation) for own in fields.values())
            yield Name(name, given, bool(_value(fields.get("compresses"))))


def _value(field: ast.AnnAssign | None) -> object:
    return field.value.value if field and isinstance(field.value, ast.Constant) else None


def _aliases() -> list[Name]:
    from gradwire.registry import ALIASES

    return [Name(text, _takes(made)) for text, made in ALIASES.items()]


def _takes(made: Callable[..., object]) -> bool:
    return bool(inspect.signature(made).parameters)


def _of(family: str, *, takes: bool = True) -> Completer:
    """Returns a completer of a family's members that does not load torch. takes: if one member is
    left, it completes the parameters, too."""

    def complete(prefix: str = "", **_: object) -> list[str]:
        from gradwire import families

        found: Mapping[str, Any] = getattr(families, family)
        fitting = [name for name in found if name.startswith(prefix)]
        if takes and len(fitting) == 1:
            return _called(fitting[0], found[fitting[0]])
        return fitting

    return complete


def _called(name: str, member: Callable[..., object]) -> list[str]:
    """Returns how a member's call may go on. Where there is a choice, the shell does not close a
    quotation."""
    parameters = inspect.signature(member).parameters.values()
    if any(own.default is own.empty for own in parameters):
        return [f"{name}({own.name}=" for own in parameters]
    return [name, f"{name}("] if parameters else [name]


# -- strategies ----------------------------------------------------------------------------------


def strategies(prefix: str = "", **_: object) -> list[str]:
    """Completes a strategy: `topk(0.01)+ef | al` may become `topk(0.01)+ef | allgather`. Offers
    compressors, after '+' feedbacks, after '|' collectives, and nothing for parameters. If one
    name is left, offers what may follow it."""
    sign, typed = _last(prefix)
    if sign == "(":
        return []
    ends: tuple[str, ...]
    if sign == "|":
        names, ends = members("collectives"), ("",)
    elif sign == "+":
        names, ends = members("feedback"), (" | ",)
    else:
        wholes = [name for name in members("collectives") if name.is_whole]
        names, ends = [*members("compressors"), *_aliases(), *wholes], (" | ", "+")
    before = prefix[: len(prefix) - len(typed)] + " " * prefix.endswith("|")
    fitting = [name for name in names if name.text.startswith(typed)]
    if len({name.text for name in fitting}) > 1:
        return [before + name.text for name in fitting]
    return [before + name.text + end for name in fitting for end in _following(name, ends)]


def _following(name: Name, ends: tuple[str, ...]) -> list[str]:
    after = ("",) if name.is_whole else ends
    return [*(["("] if name.has_parameters else []), *after]


def _last(text: str) -> tuple[str, str]:
    """Returns the last sign that divides a strategy, '(' if a parenthesis is open, "" if there is
    none; and what follows it."""
    depth, sign, begin = 0, "", 0
    for at, letter in enumerate(text):
        depth += (letter == "(") - (letter == ")")
        if letter in "|+" and depth == 0:
            sign, begin = letter, at + 1
    return "(" if depth > 0 else sign, text[begin:].lstrip()


def names(prefix: str = "", **_: object) -> list[str]:
    """Returns every member's name, without parameters."""
    families = ("compressors", "feedback", "collectives")
    own = [name.text for family in families for name in members(family)]
    return list(dict.fromkeys([*own, *(name.text for name in _aliases())]))


def optimizers(prefix: str = "", **_: object) -> list[str]:
    """Returns the optimizers that are known by name, one of each update rule."""
    from gradwire.soundness import ONE_OF_EACH_RULE

    return list(ONE_OF_EACH_RULE)


def _nothing(prefix: str = "", **_: object) -> list[str]:
    return []


# -- the command line ----------------------------------------------------------------------------

COMPLETERS: Mapping[str, Completer] = {
    "strategy": strategies, "strategies": strategies, "allow": strategies, "name": names,
    "optimizer": optimizers,
    "topology": _of("TOPOLOGIES"), "scheme": _of("ROUTING"), "step": _of("STEPS"),
    "traffic": _of("TRAFFIC", takes=False), "format": _of("EXPORTS", takes=False),
}  # fmt: skip
"""The completer of each argument, by its name, for all commands alike."""
_FILES = ("topology", "step", "flows", "jobs", "profile", "command_line")
"""Arguments that are files, or may be."""


def complete(make: Callable[[str], argparse.ArgumentParser]) -> None:
    """Answers the shell, and ends the process. make: returns a parser with a command's
    arguments."""
    import argcomplete
    from argcomplete.completers import DirectoriesCompleter, FilesCompleter

    line = os.environ["COMP_LINE"][: int(os.environ["COMP_POINT"])]
    words = line.split()
    parser = make(words[1] if len(words) > 1 else "")
    _prepare(parser, FilesCompleter(), DirectoriesCompleter())
    argcomplete.autocomplete(parser)


def _prepare(parser: argparse.ArgumentParser, files: Completer, folders: Completer) -> None:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for sub in action.choices.values():
                _prepare(sub, files, folders)
        elif not action.choices and action.nargs != 0:
            action.completer = _completer(action, files, folders)  # type: ignore[attr-defined]


def _completer(action: argparse.Action, files: Completer, folders: Completer) -> Completer:
    if action.metavar in ("RUN", "DIR"):
        return folders
    own = None if action.type is Path else COMPLETERS.get(action.dest)
    if own is None:
        return files if action.type is Path or action.dest in _FILES else _nothing
    if action.dest not in _FILES:
        return own
    return lambda prefix="", **more: [*own(prefix, **more), *files(prefix, **more)]

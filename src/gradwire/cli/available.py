"""gradwire available: the members of every family in a line each, one of them in full, or the
strategies that are known to be sound with an optimizer.

The member itself says what a parameter takes: it is given a value that no parameter takes, and
refuses that with its rule and an example, as it refuses any other mistake.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import inspect
import json
import re
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from gradwire.cli.arguments import add_quiet
from gradwire.cli.progress import telling
from gradwire.errors import GradwireError, UsageError

if TYPE_CHECKING:
    from gradwire.strategy import Strategy

_OPTIMIZERS = ("sgd", "sgdm", "adamw", "muon")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the command's arguments."""
    add = parser.add_argument
    member = "describe this one, such as topk: its parameters, what they take, an example"
    add("name", nargs="?", help=member)
    known = (
        "list strategies known to be sound with it, such as adamw or sgd, and how many times "
        "fewer bytes they send than DDP in fp32 among 4 ranks"
    )
    add("--optimizer", metavar="NAME", help=known)
    add("--json", action="store_true", help="print one JSON document to stdout")
    add_quiet(parser)


def run(arguments: argparse.Namespace) -> int:
    """Prints what is requested; returns the exit code. Raises UsageError for an unknown name."""
    if arguments.optimizer is not None:
        _show_sound(arguments)
        return 0
    with telling(arguments, "available"):
        from gradwire.registry import available

        families = available()
        found: Any = families
        if arguments.name is not None:
            found = describe(arguments.name, families)
    if arguments.json:
        print(json.dumps(found, indent=2))
    elif arguments.name is not None:
        print("\n\n".join(map(_text, found)))
    else:
        print("\n".join(_lines(families)))
    return 0


def _show_sound(arguments: argparse.Namespace) -> None:
    if arguments.name is not None:
        raise UsageError(
            "--optimizer lists all strategies that are sound with it, and takes no name; got "
            f"'{arguments.name}' beside it. Leave one of them out."
        )
    with telling(arguments, "available"):
        found = _found_sound(arguments.optimizer)
    if arguments.json:
        print(json.dumps(found, indent=2))
        return
    from gradwire.report.table import Table

    rows = [[str(value) for value in f.values()] for f in found]
    for row, f in zip(rows, found):
        row[1] = f"{f['times_fewer_bytes']:.1f}"
    print(Table(["sound", "times fewer bytes", "known by", "begins by"], rows).as_text())


def _found_sound(optimizer: str) -> list[dict[str, Any]]:
    from gradwire.soundness import sound
    from gradwire.training.recommend import frontier

    return [
        {
            "strategy": str(strategy),
            "times_fewer_bytes": times,
            "known_by": verdict.evidence.row if verdict.evidence else "its format",
            "begins": verdict.evidence.first if verdict.evidence else "",
        }
        for strategy, times in frontier(optimizer)
        for verdict in [sound(strategy, optimizer)]
    ]


def _lines(families: dict[str, dict[str, str]]) -> Iterable[str]:
    for family, members in families.items():
        yield family
        for name, line in members.items():
            yield f"  {name:16} {line}"


def describe(name: str, families: dict[str, dict[str, str]]) -> list[dict[str, Any]]:
    """Describes all members of this name: `dgc` is a feedback and an alias. Raises UsageError if
    there is none."""
    from gradwire import registry
    from gradwire.notation import nearest

    members = registry.families()
    found = [(family, among[name]) for family, among in members.items() if name in among]
    if not found:
        known = list(dict.fromkeys(each for among in families.values() for each in among))
        alone = name.partition("(")[0].partition("+")[0].partition("|")[0].strip()
        near = nearest(registry.NOTATION.others.get(alone.lower(), alone), known) or known[0]
        raise UsageError(
            f"the name must be one of {', '.join(known)}, without parameters; got '{name}'. Run "
            f"for example 'gradwire available {near}'."
        )
    return [_described(name, family, member) for family, member in found]


def _described(name: str, family: str, member: Any) -> dict[str, Any]:
    from gradwire.notation import signature

    parameters = inspect.signature(member).parameters.values()
    shortest = _shortest(name, member)
    return {
        "name": name,
        "family": family,
        "signature": re.sub(r"^\w+", name, signature(member)).removesuffix("()"),
        "text": inspect.getdoc(member) or "",
        "parameters": [
            {
                "name": p.name,
                "required": p.default is p.empty,
                "default": None if p.default is p.empty else p.default,
                "takes": _rule(member, p.name) or str(p.annotation),
            }
            for p in parameters
        ],
        "example": _example(shortest, family),
    }


class _Unfit:
    """A value that no parameter takes."""

    def __repr__(self) -> str:
        return "…"


def _refusal(member: Any, names: Iterable[str], **given: Any) -> str:
    """Returns the member's error for parameters with a value that they do not take, or ""."""
    try:
        member(**{**given, **{name: _Unfit() for name in names}})
    except GradwireError as error:
        return str(error)
    except TypeError:  # a member from elsewhere, which leaves the check to Python
        return ""
    return ""


def _required(member: Any) -> list[str]:
    parameters = inspect.signature(member).parameters.values()
    return [p.name for p in parameters if p.default is p.empty]


def _shortest(name: str, member: Any) -> str:
    """Returns the member as it is written with only the required parameters."""
    required = _required(member)
    if not required:
        return name
    shown = re.search(r"\w(\(.*\))", _refusal(member, required))
    return f"{name}{shown[1]}" if shown else f"{name}({', '.join(required)})"


def _rule(member: Any, parameter: str) -> str:
    """Returns what the parameter takes, in the member's own words."""
    given = {}
    if parameter not in (required := _required(member)) and required:
        call = ast.parse(_shortest("member", member), mode="eval").body
        assert isinstance(call, ast.Call)
        given = dict(zip(required, map(ast.literal_eval, call.args)))
    rule = re.split(r"; got |: cannot read", _refusal(member, [parameter], **given))[0]
    return re.sub(rf"^\w+'?s? {parameter} (is|are|must be) ", "", rule)


def _example(text: str, family: str) -> str:
    """Returns a whole strategy that has the member: of several possible ones the first that is
    known to be sound with some optimizer, or else the first."""
    from gradwire.soundness import sound

    possible = list(_possible(text, family))
    known = (
        strategy
        for strategy in possible
        if any(sound(strategy, name).kind == "sound" for name in _OPTIMIZERS)
    )
    return str(next(known, possible[0] if possible else text))


def _possible(text: str, family: str) -> Iterator[Strategy]:
    from gradwire.families import COLLECTIVES
    from gradwire.strategy import Strategy

    lefts = ("none", "topk(0.01)+ef", "nonzero", "sign", "int8")
    coarse = ("topk(0.01)", "lloyd(2)", "onebit", "sign")
    ways = {
        "collectives": [f"{left} | {text}" for left in lefts],
        "feedback": [f"{c}+{text} | {way}" for way in ("allgather", "alltoall") for c in coarse],
    }.get(
        family, [f"{text}{kept} | {way}" for kept in ("", "+ef", "+adam") for way in COLLECTIVES]
    )
    for example in ways:
        with contextlib.suppress(GradwireError):
            found = Strategy.parse(example)
            if found.feedback or not found.compressor.claims(1 << 20).wants_feedback:
                yield found


def _text(found: dict[str, Any]) -> str:
    lines = [f"{found['family']}: {found['signature']}", "", found["text"], ""]
    for p in found["parameters"]:
        default = "required" if p["required"] else repr(p["default"])
        lines.append(f"  {p['name']:12} {default:12} {p['takes']}")
    if not found["parameters"]:
        lines.append("  no parameters")
    return "\n".join([*lines, "", f"for example: {found['example']}"])

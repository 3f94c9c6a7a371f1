"""What others read and type must not change unnoticed: files, messages, the command line.

Each text lies beside this file and is written anew only by `pytest tests/golden --update-golden`.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator

import pytest
import torch

from gradwire import Plan, Strategy
from gradwire.buckets import Bucket, Parameter
from gradwire.cli import main as cli
from gradwire.errors import GradwireError
from gradwire.runtime.context import BucketContext
from gradwire.strategy import StepInfo

Golden = Callable[[str, str], None]

MODEL = [
    Parameter("embed.weight", (50, 8)),
    Parameter("head.weight", (10, 8), "bfloat16"),
    Parameter("head.bias", (10,)),
    Parameter("scale", ()),
]


# -- the command line --------------------------------------------------------------------------


def surface(parser: argparse.ArgumentParser, indent: str = "") -> Iterator[str]:
    """Yields a parser's arguments and, below, its commands: what can be typed, not the help."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, sub in action.choices.items():
                yield f"{indent}{name}"
                yield from surface(sub, indent + "    ")
        elif not isinstance(action, argparse._HelpAction):
            yield indent + argument(action)


def argument(action: argparse.Action) -> str:
    name = " ".join(action.option_strings) or action.dest.upper()
    many = f" [{action.nargs}]" if action.nargs not in (None, 0) else ""
    takes = "" if action.nargs == 0 or not action.option_strings else " VALUE"
    among = f" {{{','.join(map(str, action.choices))}}}" if action.choices else ""
    return f"{name}{takes}{many}{among}{' (required)' if action.required else ''}"


def test_the_command_line(golden: Golden) -> None:
    lines = ["gradwire"]
    lines += [f"    {line}" for line in surface(cli._parser("")) if line.startswith("--")]
    for command in cli.COMMANDS:
        parser = argparse.ArgumentParser()
        cli._declare(parser, command)
        lines += ["", f"gradwire {command}", *surface(parser, "    ")]
    golden("command_line.txt", "\n".join(lines) + "\n")


# -- files and messages ------------------------------------------------------------------------


def test_the_plan_file(golden: Golden) -> None:
    """A plan of another format number is refused, so a change here needs a new number."""
    plan = Plan.make(MODEL, Strategy.parse("dgc(0.001) | allgather"), lanes=2)
    golden("plan.json", plan.to_json() + "\n")
    assert Plan.from_json(plan.to_json()) == plan


def rows(raw: bytes) -> Iterator[str]:
    """Yields eight bytes a line, in hexadecimal."""
    for at in range(0, len(raw), 8):
        yield f"  {at:4}  {raw[at : at + 8].hex(' ')}"


def test_the_bytes_of_a_message(golden: Golden) -> None:
    """Ranks of different versions refuse each other by digest; the layout itself is fixed here."""
    bucket = Bucket((Parameter("a", (5,)), Parameter("b", (3,))))
    a, b = torch.tensor([0.5, -4.0, 0.0, 2.0, 1.0]), torch.tensor([1.0, -1.0, 0.25])
    lines = []
    for text in (
        "none | allgather",
        "fp16 | allgather",
        'topk(0.4, index="int32")+ef | allgather',
        "topk(0.4)+ef | allgather",
        'topk(0.4, values="bf16", index="gap16") | allgather',
        'topk(0.4, values="fp16", index="gap8") | allgather',
        'topk(0.4, index="elias_fano") | allgather',
    ):
        context = BucketContext(Strategy.parse(text), bucket, 1, 2, {})
        context.begin([a, b], [torch.empty(5), torch.empty(3)], StepInfo(step=258))
        raw = bytearray(context.message().tolist())
        assert int.from_bytes(raw[16:24], "little") == context.codec.digest
        raw[16:24] = bytes(8)  # the digest has tests of its own
        lines += [text, *rows(bytes(raw)), ""]
    golden("messages.txt", "\n".join(lines))


# -- errors ------------------------------------------------------------------------------------

WRONG_STRATEGIES = [
    "",
    "none",
    "topk(0.1) | allreduce",
    "dgc(0.1) | allreduce",
    "topkk(0.1) | allgather",
    "topk | allgather",
    "topk(1.5) | allgather",
    "dgc(0.1, momentum=1) | allgather",
    "dgc(0.1, nesterov=1) | allgather",
    "none | carrier_pigeon",
    "none + ef + ef | allgather",
    "topk(x) | allgather",
]


def test_what_errors_say(golden: Golden) -> None:
    lines = []
    for text in WRONG_STRATEGIES:
        with pytest.raises(GradwireError) as raised:
            Strategy.parse(text)
        lines += [f"{text!r}", f"    {type(raised.value).__name__}: {raised.value}", ""]
    plan = Plan.make(MODEL, Strategy.parse("none | allreduce"))
    changed = [Parameter("embed.weight", (51, 8)), *MODEL[1:3], Parameter("extra", (2,))]
    with pytest.raises(GradwireError) as raised:
        plan.check(changed)
    lines += ["a plan for another model", f"    {type(raised.value).__name__}: {raised.value}", ""]
    golden("errors.txt", "\n".join(lines))

"""gradwire: the command line. Commands import what they need when they run.

A command is a file beside this one, `<command>.py`; a command with several actions has a file for
each, `<command>_<action>.py`.
"""

from __future__ import annotations

import argparse
import importlib
import io
import json
import os
import select
import sys
from collections.abc import Sequence
from itertools import takewhile
from typing import Any, NoReturn, TextIO

from gradwire.cli.arguments import say
from gradwire.errors import GradwireError, UsageError

COMMANDS = {
    "demo": "train a real model over an emulated slow network, with and without gradwire",
    "doctor": "check torch, backends, kernels, interfaces, namespaces and the network's speed",
    "bench": "measure kernels, compressors and the conductor on this machine",
    "plan": "find the best plan for a profiled job, on its own cluster or on another",
    "explain": "explain what a plan does, why, and what it gains, group by group",
    "lab": "run a job on a cluster emulated on this machine, or measure its links",
    "profile": "measure a job's first steps, and what strategies cost on its network",
    "report": "show what recorded runs did: where their time went, and which is faster",
    "top": "watch a run while it trains, rank by rank, in the terminal",
    "network": "find paths for traffic between switches, and what they gain",
    "available": "list every compressor, feedback and collective, or describe one in full",
    "completion": "print a script that completes these commands in bash, zsh or fish",
}
ACTIONS = {
    "bench": {
        "kernels": "measure each kernel: time, GB/s, fraction of the memory limit, ratio to torch",
        "compressors": "measure how long compressors encode and decode, against the memory limit",
        "conductor": "measure the overhead of a bucket beyond its kernels and moves",
    },
    "network": {
        "plan": "compare routing schemes, and recommend one if it is worth a change",
        "simulate": "simulate how long schemes take: by the fullest link, fair shares or packets",
        "whatif": "compute what failures, other topologies and other placements of ranks cost",
        "export": "convert planned paths for a job, a simulator or another package",
        "heatmap": "draw the loads of every leaf and uplink, hashed beside planned, as SVG",
    },
}
"""The actions of each command that has several, in a line each."""
_REFUSE_SIGNS = ("strict", "surrogateescape")
"""The ways of a stream that raise an error for a sign that it lacks; the second is that of the
locale C."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command. Returns its exit code, or 2 for an error that a better call would
    avoid."""
    if "_ARGCOMPLETE" in os.environ and arguments is None:  # the shell asks for completions
        from gradwire.cli.completers import complete

        complete(_parser)
    asked = list(sys.argv[1:] if arguments is None else arguments)
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors in _REFUSE_SIGNS:
        sys.stdout.reconfigure(errors="replace")  # a locale may lack some of our signs: "?"
    try:
        return _told(asked)
    except BrokenPipeError:
        if not _reader_is_gone():
            raise
        _discard(sys.stdout)
        return 141
    except OSError as error:
        if error.filename is not None or (why := _not_taken()) is None:
            raise
        _discard(sys.stdout)
        say(
            f"standard output cannot be written: {why.strerror}. Redirect it elsewhere, or free "
            "some space."
        )
        return 1
    finally:
        _let_go_of_lost_notices()


def _told(asked: list[str]) -> int:
    """Runs the command and flushes what it printed; returns the exit code. Raises OSError if that
    cannot be written."""
    try:
        return _ran(asked)
    except KeyboardInterrupt:
        return 130
    finally:
        if sys.stdout is not None:  # closed from the start
            sys.stdout.flush()


def _ran(asked: list[str]) -> int:
    parser = _parser(asked[0] if asked else "")
    parsed = parser.parse_args(asked)
    parsed.typed = asked
    if parsed.command is None:
        parser.print_help()
        return 2
    try:
        _check_folder()
        return int(parsed.run(parsed))
    except GradwireError as error:
        return _fail(error, bool(getattr(parsed, "json", False)))


def _check_folder() -> None:
    """Raises UsageError in a folder that was deleted, in which not even torch can be imported."""
    try:
        os.getcwd()
    except FileNotFoundError:
        raise UsageError(
            "a command needs a folder to run in; this one was deleted. Change into another, for "
            "example by cd."
        ) from None


def _reader_is_gone() -> bool:
    """Whether the reader of standard output has closed it, as `head` does: then there is nobody to
    tell."""
    asked = select.poll()
    asked.register(sys.stdout.fileno(), 0)
    return any(event & select.POLLERR for _, event in asked.poll(0))


def _not_taken() -> OSError | None:
    """Returns why standard output takes nothing, as where its disk is full; None if it does."""
    if sys.stdout is None:
        return None
    try:
        sys.stdout.write("\n")
        sys.stdout.flush()
    except OSError as error:
        return error
    return None


def _discard(stream: TextIO) -> None:
    """Drops what the stream still holds, and all that follows: Python flushes it at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _let_go_of_lost_notices() -> None:
    """Keeps the exit code the command's, also where nobody reads standard error any more."""
    try:
        if sys.stderr is not None:
            sys.stderr.flush()
    except OSError:
        _discard(sys.stderr)
    except ValueError:  # closed meanwhile
        return


class _Parser(argparse.ArgumentParser):
    """Shows its own usage for an argument that it does not know, as do the commands, which
    argparse makes of the same class: it would leave that to the outermost."""

    _asked: Sequence[str] = ()

    def parse_known_args(self, args=None, namespace=None):  # type: ignore[no-untyped-def]
        self._asked = list(args or ())
        known, unknown = super().parse_known_args(args, namespace)
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}")
        return known, unknown

    def error(self, message: str) -> NoReturn:
        """Shows the usage and ends, as argparse does; for who asked for JSON, with a document."""
        if "--json" in takewhile(lambda word: word != "--", self._asked):
            said = f"{message.removesuffix('.')}. Run {self.prog} --help."
            print(_as_json(UsageError(said)))
        super().error(message)

    def _print_message(self, message: str, file: Any = None) -> None:
        """Writes help as any answer: argparse ignores it if standard output takes nothing."""
        if file is sys.stdout and file is not None:
            file.write(message)
        else:
            super()._print_message(message, file)


def _parser(command: str) -> argparse.ArgumentParser:
    """Returns a parser of all commands, in a line each, and of the arguments of the given one
    only."""
    import gradwire

    parser = _Parser(prog="gradwire", description=gradwire.__doc__.split("\n")[0])
    parser.add_argument("--version", action="version", version=f"gradwire {gradwire.__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    for name, line in COMMANDS.items():
        sub = _added(commands, name, line)
        if name == command:
            _declare(sub, name)
    return parser


def _declare(parser: argparse.ArgumentParser, command: str) -> None:
    """Declares the arguments of a command, or of all its actions, and what runs it."""
    if command not in ACTIONS:
        module = importlib.import_module(f"gradwire.cli.{command}")
        module.add_arguments(parser)
        parser.set_defaults(run=module.run)
        return
    metavar = "BENCHMARK" if command == "bench" else "ACTION"
    actions = parser.add_subparsers(dest="action", metavar=metavar, required=True)
    for action, line in ACTIONS[command].items():
        _declare(_added(actions, action, line), f"{command}_{action}")


def _added(commands: Any, name: str, line: str) -> argparse.ArgumentParser:
    added: argparse.ArgumentParser = commands.add_parser(
        name, help=line, description=line[0].upper() + line[1:] + "."
    )
    return added


def _fail(error: GradwireError, as_json: bool) -> int:
    if as_json:
        print(_as_json(error))
    say(str(error))
    return 2


def _as_json(error: GradwireError) -> str:
    return json.dumps({"error": type(error).__name__, "message": str(error)})

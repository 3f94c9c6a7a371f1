"""Saved documents: read from text and checked against a schema; errors name the wrong place.

    COST = Table({"seconds": Number(least=0)}, {"error": Number(least=0, most=1)}, make=Cost)
    COSTS = Document("a list of costs", Table({"costs": List(COST)}), PlanError, "Measure again")

    COSTS.read('{"costs": [{"seconds": -1}]}')
    PlanError: in a list of costs costs[0].seconds must be a finite number, 0 or more; got -1.
    Measure again.

A dictionary that torch.save wrote is a document, too: `take` reads it. `save_file` writes
any file.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import socket
import tomllib
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from gradwire.errors import GradwireError
from gradwire.schema import Broken, Schema, broken


class Syntax(NamedTuple):
    """A format of documents. parse: returns a text's plain values, or raises ValueError."""

    name: str
    parse: Callable[[str], Any]


def _no_number(token: str) -> NoReturn:
    raise ValueError(f"{token} is not a JSON number")


JSON = Syntax("JSON", lambda text: json.loads(text, parse_constant=_no_number))
TOML = Syntax("TOML", tomllib.loads)


class Kind(NamedTuple):
    """A kind of document: what it is called, keys that identify it, and how to use it."""

    name: str
    names: Set[str]
    use: str


KINDS = (
    Kind("a plan", {"lanes", "buckets"}, "Run `gradwire explain FILE`, or attach it"),
    Kind("a profile", {"backward_seconds", "parameters"}, "Run `gradwire plan --profile FILE`"),
    Kind(
        "a document of routes", {"topology", "flows", "pieces"},
        "Run `gradwire network export FILE`",
    ),
    Kind(
        "a document of pins", {"hosts", "pairs"}, "Pass it to gradwire.attach(…, planes='FILE')"
    ),
    Kind("a cluster", {"hosts", "cross"}, "Run `gradwire plan --profile … --topology FILE`"),
    Kind("a topology", {"topology"}, "Run `gradwire network plan --topology FILE`"),
    Kind("a topology", {"hosts", "cables"}, "Run `gradwire network plan --topology FILE`"),
    Kind(
        "an InfraGraph", {"instances", "edges"},
        "Run `gradwire network plan --topology 'infragraph(\"FILE\")'`",
    ),
    Kind("a parallel job", {"dp", "pp", "tp"}, "Run `gradwire network simulate --step FILE`"),
    Kind(
        "a handle's state", {"world", "taken", "ranks"},
        "Load it by handle.load_state_dict(state)",
    ),
    Kind(
        "a state of local steps", {"step", "fragments"},
        "Load it by LocalSteps.load_state_dict()",
    ),
    Kind(
        "an optimizer's state", {"state", "param_groups"},
        "Load it by optimizer.load_state_dict()",
    ),
)  # fmt: skip


@dataclass(frozen=True)
class Document:
    """One kind of document. again: the advice in its errors, without the full stop."""

    name: str
    schema: Schema
    error: type[GradwireError]
    again: str
    format: int | None = None
    syntax: Syntax = JSON

    def load(self, path: str | Path) -> Any:
        """Read a file. Raises the document's error, also if the file cannot be read."""
        try:
            text = Path(path).read_text(encoding="utf-8")
        except (OSError, ValueError, TypeError) as error:  # not UTF-8; no path, or NUL in it
            why = getattr(error, "strerror", None) or error
            again = f"{self.again[0].lower()}{self.again[1:]}"
            raise self.error(
                f"the path of {self.name} must name a readable file; got '{path}': {why}. Correct "
                f"it, or {again}."
            ) from error
        return self.read(text, str(path))

    def read(self, text: str, file: str = "") -> Any:
        """Returns the schema's value of a text, or raises the document's error. file: its name."""
        if not isinstance(text, str | bytes):
            self.refuse(broken("must be text", text), file)
        try:
            data = self.syntax.parse(text)
        except (ValueError, RecursionError) as error:
            self._refuse_kind(_parsed(text), file)
            self.refuse(Broken(f"must be written in {self.syntax.name}; {error}"), file)
        return self.take(data, file)

    def take(self, data: Any, file: str = "") -> Any:
        """Returns what the schema makes of plain values, as `read` does of a text."""
        try:
            if self.format is not None and isinstance(data, Mapping):
                found = data.get("format")
                if type(found) is not int or found != self.format:
                    rule = f"must have format {self.format} in this version of gradwire"
                    raise broken(rule, found)
                data = {name: value for name, value in data.items() if name != "format"}
            return self.schema.read(data)
        except Broken as problem:
            if not problem.place:
                self._refuse_kind(data, file)
            self.refuse(problem, file)

    def refuse(self, problem: Broken, file: str = "") -> NoReturn:
        """Raise the document's error for what is wrong with it."""
        place = problem.place.removeprefix(".")
        called = f"{self.name} ({file})" if file else self.name
        where = f"in {called} {place}" if place else called
        raise self.error(f"{where} {problem.said.rstrip('.')}. {self.again}.") from problem

    def _refuse_kind(self, data: object, file: str) -> None:
        """Raise if it has all keys of another kind, and not more keys of this one."""
        names = set(data) if isinstance(data, Mapping) else set()
        own = max((len(kind.names & names) for kind in KINDS if kind.name == self.name), default=0)
        for kind in KINDS:
            if kind.name != self.name and kind.names <= names and len(kind.names) >= own:
                use = kind.use.replace("FILE", file or "FILE")
                raise self.error(f"{self.name} is needed here; got {kind.name}. {use}.")


def save_file(path: str | Path, content: str | bytes) -> None:
    """Writes a file; text as UTF-8. A full disk or a crash leaves the former file as it was, and
    ranks on several machines may write to one shared folder.

    Raises OSError.
    """
    data, named = content.encode() if isinstance(content, str) else content, Path(path)
    if named.exists() and not named.is_file():  # a terminal or a pipe, which cannot be replaced
        named.write_bytes(data)
        return
    end = Path(os.path.realpath(path))  # a link stays one
    draft = end.with_name(f".{end.name}.{socket.gethostname()}.{os.getpid()}")
    try:
        draft.write_bytes(data)
        if end.exists():
            shutil.copymode(end, draft)
        draft.replace(end)
    except OSError as error:
        draft.unlink(missing_ok=True)
        # A folder that is not ours, or a single file that a container mounts.
        if error.errno not in (errno.EACCES, errno.EPERM, errno.EBUSY):
            raise
        end.write_bytes(data)


def _parsed(text: str) -> object:
    """Returns the plain values of a text in any syntax; None if there are none."""
    for syntax in (JSON, TOML):
        try:
            return syntax.parse(text)
        except (ValueError, RecursionError):
            continue
    return None

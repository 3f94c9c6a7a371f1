"""Saved documents: read from text, checked against a schema, refused with the place that is wrong.

    COST = Table({"seconds": Number(least=0)}, {"error": Number(least=0, most=1)}, make=Cost)
    COSTS = Document("a list of costs", Table({"costs": List(COST)}), PlanError, "Measure again")

    COSTS.read('{"costs": [{"seconds": -1}]}')
    PlanError: in a list of costs costs[0].seconds is a finite number, 0 or more; got -1. Measure
    again.

A dictionary that torch.save wrote is a document, too: `take`.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from gradwire.errors import GradwireError
from gradwire.schema import Broken, Schema, broken


class Syntax(NamedTuple):
    """How a document is written. parse: plain values of a text, or ValueError."""

    name: str
    parse: Callable[[str], Any]


def _no_number(token: str) -> NoReturn:
    raise ValueError(f"{token} is no number of JSON")


JSON = Syntax("JSON", lambda text: json.loads(text, parse_constant=_no_number))
TOML = Syntax("TOML", tomllib.loads)


class Kind(NamedTuple):
    """What a document is called, the names by which it is known, and what takes it."""

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
    """One kind of document. again: what to do about one that is wrong, without the full stop."""

    name: str
    schema: Schema
    error: type[GradwireError]
    again: str
    format: int | None = None
    syntax: Syntax = JSON

    def load(self, path: str | Path) -> Any:
        """Read a file. The document's error if it cannot be read, too."""
        try:
            text = Path(path).read_text(encoding="utf-8")
        except (OSError, ValueError) as error:  # of bytes that are no UTF-8, and of NUL in names
            why = getattr(error, "strerror", None) or error
            raise self.error(
                f"the path of {self.name} names a readable file; got '{path}': {why}. "
                f"{self.again}."
            ) from error
        return self.read(text, str(path))

    def read(self, text: str, file: str = "") -> Any:
        """What the schema makes of it; the document's error where it is none. file: its name."""
        try:
            data = self.syntax.parse(text)
        except (ValueError, RecursionError) as error:
            self._refuse_kind(_parsed(text), file)
            self.refuse(Broken(f"is written in {self.syntax.name}; {error}"), file)
        return self.take(data, file)

    def take(self, data: Any, file: str = "") -> Any:
        """The same of plain values."""
        try:
            if self.format is not None and isinstance(data, Mapping):
                found = data.get("format")
                if type(found) is not int or found != self.format:
                    rule = f"has format {self.format} in this version"
                    raise broken(rule, found)
                data = {name: value for name, value in data.items() if name != "format"}
            return self.schema.read(data)
        except Broken as problem:
            if not problem.place:
                self._refuse_kind(data, file)
            self.refuse(problem, file)

    def refuse(self, problem: Broken, file: str = "") -> NoReturn:
        """The document's error, of what is wrong with it."""
        place = problem.place.removeprefix(".")
        called = f"{self.name} ({file})" if file else self.name
        where = f"in {called} {place}" if place else called
        raise self.error(f"{where} {problem.said.rstrip('.')}. {self.again}.") from problem

    def _refuse_kind(self, data: object, file: str) -> None:
        """If it has all names of another kind, and not more of this one."""
        names = set(data) if isinstance(data, Mapping) else set()
        own = max((len(kind.names & names) for kind in KINDS if kind.name == self.name), default=0)
        for kind in KINDS:
            if kind.name != self.name and kind.names <= names and len(kind.names) >= own:
                use = kind.use.replace("FILE", file or "FILE")
                raise self.error(f"{self.name} is read here; this is {kind.name}. {use}.")


def _parsed(text: str) -> object:
    """The text's meaning in any syntax; None if it has none."""
    for syntax in (JSON, TOML):
        try:
            return syntax.parse(text)
        except (ValueError, RecursionError):
            continue
    return None

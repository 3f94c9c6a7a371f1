"""Schemas: rules for plain values, as JSON and TOML have them.

    COST = Table({"seconds": Number(least=0)}, {"error": Number(least=0, most=1)}, make=Cost)
    List(COST).read([{"seconds": 2.0}])    # [Cost(seconds=2.0)]
    List(COST).read([{"seconds": -1}])     # Broken: must be a finite number, 0 or more; got -1

A schema is anything with a method `read`, which returns what a value means or raises `Broken`.
`document` reads files with them.
"""

from __future__ import annotations

import math
import reprlib
import sys
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from gradwire.errors import GradwireError

DEPTH = 32
"""The deepest nesting of values that no schema describes."""
_FINITE = sys.float_info.max
_SHORT = reprlib.Repr()
_SHORT.maxlevel, _SHORT.maxdict, _SHORT.maxlist, _SHORT.maxstring = 2, 4, 4, 80


class Broken(Exception):
    """The error of a value that a schema refuses. said: "is text; got 3". place: where in the
    value, as ".shape[1]"; outer schemas extend it."""

    def __init__(self, said: str, place: str = "") -> None:
        super().__init__(said)
        self.said, self.place = said, place


class Schema(Protocol):
    """A rule for a value."""

    def read(self, value: Any) -> Any:
        """Returns what the value means, or raises Broken."""
        ...


def shown(value: object) -> str:
    """Returns a value's repr, cut where it is long or deep."""
    try:
        return _SHORT.repr(value)
    except ValueError:  # an integer with too many digits for str()
        return f"a huge {type(value).__name__}"


def broken(rule: str, value: object, place: str = "") -> Broken:
    """Returns the error for a rule and the value that breaks it."""
    return Broken(f"{rule}; got {shown(value)}", place)


# -- single values -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Number(Schema):
    """A finite number from least to most, and above a bound; read as float. Not True or False."""

    least: float = -_FINITE
    most: float = _FINITE
    above: float = -math.inf

    def read(self, value: Any) -> float:
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not (self.above < value and self.least <= value <= self.most):
            raise broken(f"must be a finite number{self._range()}", value)
        return float(value)

    def _range(self) -> str:
        if self.above > -math.inf:
            upto = "" if self.most == _FINITE else f", {self.most:g} at most"
            return f" above {self.above:g}{upto}"
        if self.least == -_FINITE:
            return ""
        return f", {self.least:g} {'or more' if self.most == _FINITE else f'to {self.most:g}'}"


@dataclass(frozen=True)
class Whole(Schema):
    """A whole number from least to most (None: no limit). Not 1.0 or True."""

    least: int = 0
    most: int | None = (1 << 63) - 1

    def read(self, value: Any) -> int:
        if not self.holds([value]):
            upto = " or more" if self.most is None else f" to {self.most}"
            raise broken(f"must be a whole number, {self.least}{upto}", value)
        return int(value)

    def holds(self, values: Collection[Any]) -> bool:
        """Whether all of many values are such numbers; fast for long columns."""
        return set(map(type, values)) <= {int} and (
            not values
            or (min(values) >= self.least and (self.most is None or max(values) <= self.most))
        )


@dataclass(frozen=True)
class Text(Schema):
    """Text that is not empty; among: the only texts allowed, if any are given."""

    among: Collection[str] = ()

    def read(self, value: Any) -> str:
        if not isinstance(value, str) or not value or (self.among and value not in self.among):
            rule = f"one of {', '.join(self.among)}" if self.among else "text, not empty"
            raise broken(f"must be {rule}", value)
        return value


class Flag(Schema):
    """True or False."""

    def read(self, value: Any) -> bool:
        if not isinstance(value, bool):
            raise broken("must be true or false", value)
        return value


class Plain(Schema):
    """Anything that JSON can express, nested at most DEPTH deep, with finite numbers only."""

    def read(self, value: Any) -> Any:
        level = [value]
        for _ in range(DEPTH):
            if any(isinstance(x, float) and not abs(x) <= _FINITE for x in level):
                raise broken("must have finite numbers only", value)
            level = [x for outer in level for x in _inside(outer)]
            if not level:
                return value
        raise broken(f"must be nested at most {DEPTH} deep", value)


def _inside(value: Any) -> Collection[Any]:
    if isinstance(value, Mapping):
        return value.values()
    return value if isinstance(value, list | tuple) else ()


class Anything(Schema):
    """Any value; it is checked elsewhere."""

    def read(self, value: Any) -> Any:
        return value


@dataclass(frozen=True)
class Maybe(Schema):
    """A value of another schema, or null."""

    of: Schema

    def read(self, value: Any) -> Any:
        return None if value is None else self.of.read(value)


@dataclass(frozen=True)
class Made(Schema):
    """The result of a function of the value; gradwire's errors in it become `Broken`."""

    of: Schema
    make: Callable[[Any], Any]

    def read(self, value: Any) -> Any:
        return _made(self.make, self.of.read(value))


# -- many values ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class List(Schema):
    """A list of items of one schema, with a least length."""

    of: Schema
    least: int = 0

    def read(self, value: Any) -> list[Any]:
        if not isinstance(value, list | tuple) or len(value) < self.least:
            at_least = f" of at least {self.least}" if self.least else ""
            raise broken(f"must be a list{at_least}", value)
        if isinstance(self.of, Whole) and self.of.holds(value):
            return list(value)
        return [read_in(self.of, item, i) for i, item in enumerate(value)]


class Row(Schema):
    """A list with one schema for each item; read as tuple."""

    def __init__(self, *of: Schema) -> None:
        self.of = of

    def read(self, value: Any) -> tuple[Any, ...]:
        if not isinstance(value, list | tuple) or len(value) != len(self.of):
            raise broken(f"must be a list of {len(self.of)}", value)
        return tuple(read_in(of, item, i) for i, (of, item) in enumerate(zip(self.of, value)))


@dataclass(frozen=True)
class Map(Schema):
    """A table with any keys, and values of one schema."""

    of: Schema
    key: Schema = field(default_factory=Text)

    def read(self, value: Any) -> dict[Any, Any]:
        if not isinstance(value, Mapping):
            raise broken("must be a table (names with values)", value)
        return {read_in(self.key, k, k): read_in(self.of, v, k) for k, v in value.items()}


@dataclass(frozen=True)
class Table(Schema):
    """A table with needed and optional keys. Other keys are ignored, as in files of a later
    version; by_hand: they are refused instead, as people write this table. make: is called with
    the values by key."""

    needed: Mapping[str, Schema]
    optional: Mapping[str, Schema] = field(default_factory=dict)
    make: Callable[..., Any] = dict
    by_hand: bool = False

    def read(self, value: Any) -> Any:
        named = {**self.needed, **self.optional}
        if not isinstance(value, Mapping):
            raise broken(f"must be a table of {', '.join(named)}", value)
        unknown = [name for name in value if name not in named] if self.by_hand else ()
        if unknown:
            raise broken(f"may have only {', '.join(named)}", unknown[0])
        missing = [name for name in self.needed if name not in value]
        if missing:
            raise Broken(f"must have {', '.join(self.needed)}; got no '{missing[0]}'")
        found = {n: read_in(of, value[n], n) for n, of in named.items() if n in value}
        return _made(self.make, **found)


@dataclass(frozen=True)
class Columns(Schema):
    """A table of lists of equal length, by name. make, optional: as of `Table`."""

    of: Mapping[str, Schema]
    make: Callable[..., Any] = dict
    optional: Mapping[str, Schema] = field(default_factory=dict)

    def read(self, value: Any) -> Any:
        needed, may_be = (
            {name: List(of) for name, of in named.items()} for named in (self.of, self.optional)
        )
        found = Table(needed, may_be).read(value)
        if len(set(map(len, found.values()))) > 1:
            lengths = ", ".join(f"{len(column)} of {name}" for name, column in found.items())
            raise Broken(f"must have the same number of each; got {lengths}")
        return _made(self.make, **found)


def read_in(of: Schema, value: Any, *keys: object) -> Any:
    """Read a value that lies inside another by these keys; errors name the place."""
    try:
        return of.read(value)
    except Broken as broken:
        broken.place = "".join(map(_step, keys)) + broken.place
        raise


def _step(key: object) -> str:
    is_name = isinstance(key, str) and key.replace("_", "a").isalnum()
    return f".{key}" if is_name and not key[0].isdigit() else f"[{shown(key)}]"  # type: ignore[index]


def _made(make: Callable[..., Any], *values: Any, **named: Any) -> Any:
    try:
        return make(*values, **named)
    except GradwireError as error:
        raise Broken(f"is not valid: {error}") from error

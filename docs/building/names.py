"""Public names: what each is, and how text speaks of it."""

from __future__ import annotations

import inspect
import re
from functools import cache
from importlib import import_module
from types import FunctionType, ModuleType
from typing import Any

from building.pages import documented


def found(name: str) -> Any:
    """The object of a dotted name that begins with a module's."""
    value: Any = import_module("gradwire")
    for part in name.split(".")[1:]:
        if isinstance(value, ModuleType) and not hasattr(value, part):
            value = import_module(f"{value.__name__}.{part}")
        else:
            value = getattr(value, part)
    return value


CALLABLES = (FunctionType, staticmethod, classmethod, property)


def kind_of(name: str) -> str:
    """As autodoc's directives are called."""
    value = found(name)
    if isinstance(value, ModuleType):
        return "module"
    if inspect.isclass(value):
        return "exception" if issubclass(value, BaseException) else "class"
    return "function" if callable(value) else "data"


@cache
def _spoken() -> dict[str, str]:
    """How text calls a name, and the name: `Plan`, `gradwire.Plan`."""
    whole = {name: name for name in documented()}
    short = {name.rpartition(".")[2]: name for name in whole}
    return {**{s: n for s, n in short.items() if s[:1].isupper()}, **whole}


def meant(text: str) -> str | None:
    """The documented name that a piece of code like `Handle.stats()` is, or None."""
    called = re.fullmatch(r"([\w.]+)(?:\(.*\))?", text, re.DOTALL)
    if not called:
        return None
    owner, _, member = called[1].rpartition(".")
    if name := _spoken().get(called[1]):
        return name
    if (name := _spoken().get(owner)) and kind_of(name) == "class":
        return _member(name, member)
    return None


def _member(name: str, member: str) -> str | None:
    """A method that the class itself documents; for all else that it has the class."""
    owner = found(name)
    own = vars(owner).get(member)
    if isinstance(own, CALLABLES) and inspect.getdoc(own):
        return f"{name}.{member}"
    has = hasattr(owner, member) or member in inspect.get_annotations(owner)
    return name if has else None

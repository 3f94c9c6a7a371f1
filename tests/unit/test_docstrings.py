"""Every public item has a docstring, its own or that of the item which it overrides."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterator
from functools import cached_property
from typing import Any

import pytest
from source import FILES

CPP = "core"
"""The module that declares the extension's functions, which the C++ documents."""
TABLE = "gradwire.kernels.table"
"""The table of operations, each documented by the face of the same name, or in the table."""
ROOMS = ("gradwire.kernels.cpu", "gradwire.kernels.torch", "gradwire.kernels.cuda")
"""The rooms, whose operations are those of `kernels.table.Room`."""
MODULES = [
    module
    for module in FILES
    if not any(part.startswith("_") for part in module.split("."))
    and module.split(".")[-1] != CPP
    and not module.startswith((*ROOMS, TABLE))
    and not module.endswith("integrations.ray")  # Ray is large, and not installed
]


def undocumented(module: Any) -> Iterator[str]:
    for name, item in vars(module).items():
        is_ours = getattr(item, "__module__", None) == module.__name__
        if name.startswith("_") or not is_ours:
            continue
        if inspect.isfunction(item) and not inspect.getdoc(item):
            yield name
        if inspect.isclass(item):
            if not item.__doc__ or item.__doc__.startswith(f"{name}("):  # a dataclass's own
                yield name
            yield from (f"{name}.{method}" for method in undocumented_methods(item))


def undocumented_methods(owner: type) -> Iterator[str]:
    for name, member in vars(owner).items():
        if name.startswith("_") or not is_method(member):
            continue
        bases = (vars(base).get(name) for base in owner.__mro__)
        if not any(inspect.getdoc(found) for found in bases if found is not None):
            yield name


def is_method(member: object) -> bool:
    kinds = (staticmethod, classmethod, property, cached_property)
    return inspect.isfunction(member) or isinstance(member, kinds)


@pytest.mark.parametrize("module", MODULES)
def test_every_public_item_says_what_it_is(module: str) -> None:
    assert not list(undocumented(importlib.import_module(module)))


def test_every_operation_of_the_table_says_what_it_is_or_its_face_does() -> None:
    faces = [m for m in MODULES if m.startswith("gradwire.kernels.")]
    told = {
        name
        for face in map(importlib.import_module, faces)
        for name, item in vars(face).items()
        if inspect.isfunction(item) and item.__module__ == face.__name__ and inspect.getdoc(item)
    }
    table = importlib.import_module(TABLE)
    silent = list(undocumented_methods(table.Room))
    assert len(silent) > 30
    assert not set(silent) - told


def test_what_says_nothing_is_found() -> None:
    class Silent:
        def method(self) -> None: ...
        @property
        def value(self) -> int:
            return 3

    class Louder(Silent):
        def method(self) -> None:
            """Says something."""

    class Inheriting(Louder):
        def method(self) -> None: ...

    assert list(undocumented_methods(Silent)) == ["method", "value"]
    assert not list(undocumented_methods(Inheriting))

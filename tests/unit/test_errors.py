"""The hierarchy of errors is public: users catch errors by it."""

from __future__ import annotations

import inspect

import pytest

from gradwire import errors

TREE = {
    "StrategyError": ValueError,
    "PlanError": ValueError,
    "UsageError": RuntimeError,
    "PayloadError": ValueError,
    "MoveError": RuntimeError,
    "PeerError": RuntimeError,
    "KernelError": ValueError,
    "NetworkError": ValueError,
    "LabError": RuntimeError,
}


def defined() -> dict[str, type]:
    found = inspect.getmembers(errors, inspect.isclass)
    return {name: c for name, c in found if c.__module__ == "gradwire.errors"}


def test_the_tree_is_complete() -> None:
    assert set(defined()) == {"GradwireError", *TREE}


@pytest.mark.parametrize("name", TREE)
def test_each_is_a_gradwire_error_and_one_of_pythons_own(name: str) -> None:
    error = defined()[name]
    assert error.__bases__ == (errors.GradwireError, TREE[name])
    assert error.__doc__


@pytest.mark.parametrize("name", TREE)
def test_the_drawing_in_the_docstring_shows_each(name: str) -> None:
    assert f"── {name} " in (errors.__doc__ or "")

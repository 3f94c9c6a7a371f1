"""Faces run on the twins, with all checks, as users have them who lack the extension."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

from gradwire.extension import TWIN
from gradwire.kernels.native import use

Given, Found = ParamSpec("Given"), TypeVar("Found")


def in_torch(face: Callable[Given, Found]) -> Callable[Given, Found]:
    """Returns the same function, run on the twins."""

    @wraps(face)
    def run(*given: Given.args, **named: Given.kwargs) -> Found:
        with use(TWIN):
            return face(*given, **named)

    return run

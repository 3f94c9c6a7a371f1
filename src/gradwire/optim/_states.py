"""Optimizers' states, checked before anything is taken over."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from numbers import Real
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from gradwire.document import Document
from gradwire.errors import UsageError
from gradwire.schema import (
    Anything,
    Broken,
    List,
    Made,
    Map,
    Number,
    Schema,
    Table,
    Text,
    broken,
    read_in,
)
from gradwire.training.documents import DENSE, FLOATS

_GROUPS = ".param_groups"


class Single:
    """A number that fits a schema, or a tensor with one such number."""

    def __init__(self, of: Schema) -> None:
        self.of = of

    def read(self, value: Any) -> Any:
        is_tensor = isinstance(value, Tensor) and value.numel() == 1 and not value.is_meta
        is_plain = is_tensor and value.layout == torch.strided
        return self.of.read(value.item() if is_plain else value)


class Like:
    """A finite floating-point tensor of a parameter's shape; complex if the parameter is."""

    def __init__(self, parameter: Tensor) -> None:
        self.shape, self.is_complex = parameter.shape, parameter.is_complex()

    def read(self, value: Any) -> Any:
        found: Tensor = DENSE.read(value)
        if not (self.is_complex and found.is_complex()):
            FLOATS.read(found)
        if found.shape != self.shape:
            raise broken(f"must have the shape {list(self.shape)}", list(found.shape))
        if not found.isfinite().all():
            raise broken("must be finite", found)
        return found


RATE = Single(Number(0, 1e9))
BELOW_1 = Number(0, math.nextafter(1, 0))
"""Schemas for numbers in parameter groups: a learning rate, and a momentum."""


def is_from_0(value: object, below: float | None = None) -> bool:
    """Whether a value, or the one number of a tensor, is a number of 0 or more, below another one
    if that is given. NaN is none."""
    if isinstance(value, Tensor) and value.numel() == 1:
        value = value.item()
    number = float(value) if isinstance(value, Real) else math.nan
    return number >= 0 and (below is None or number < below)


def are_betas(value: object) -> bool:
    """Whether a value is a pair of numbers, each at least 0 and below 1."""
    if not isinstance(value, list | tuple) or len(value) != 2:
        return False
    return all(is_from_0(beta, 1.0) for beta in value)


def _id(value: Any) -> Any:
    """A parameter's key in a state: torch's number, or a name."""
    return value if isinstance(value, int) else Text().read(value)


_ID = Made(Anything(), _id)
_STATE = Document(
    "an optimizer's state",
    Table({
        "state": Map(Map(Anything()), key=_ID),
        "param_groups": List(Table({"params": List(_ID)})),
    }),
    UsageError, "Load what this optimizer's state_dict() returned",
)  # fmt: skip


def check(
    optimizer: Optimizer, saved: Any, of_group: Schema,
    of_state: Callable[[Tensor, Mapping[str, Any]], Schema],
) -> None:  # fmt: skip
    """Raise UsageError unless `saved` is a state of this optimizer, with as many parameters in
    each group.

    of_group: the schema of a group. of_state: returns the schema of a parameter's state, given
    the parameter and its saved group; a parameter may have no state.
    """
    found = _STATE.take(saved)
    sizes = [len(group["params"]) for group in found["param_groups"]]
    here = [len(group["params"]) for group in optimizer.param_groups]
    try:
        if sizes != here:
            rule = f"must have groups with as many parameters as this optimizer's, {here}"
            raise broken(rule, sizes, _GROUPS)
        pairs = zip(saved["param_groups"], optimizer.param_groups)
        for i, (group, own) in enumerate(pairs):
            read_in(of_group, group, "param_groups", i)
            for key, parameter in zip(group["params"], own["params"]):
                if saved["state"].get(key):
                    read_in(of_state(parameter, group), saved["state"][key], "state", key)
    except Broken as problem:
        _STATE.refuse(problem)

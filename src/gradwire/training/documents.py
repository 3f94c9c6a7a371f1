"""Schemas of saved states; `state` and `local_steps` write these."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gradwire.document import Document
from gradwire.errors import PlanError, UsageError
from gradwire.schema import (
    Anything,
    Flag,
    List,
    Made,
    Map,
    Maybe,
    Number,
    Row,
    Table,
    Text,
    Whole,
    broken,
)
from gradwire.strategy import Strategy
from gradwire.training.trainable import own_name

FORMAT = 5
"""The version of the format of a handle's state."""


def _dense(value: Any) -> Any:
    if not isinstance(value, Tensor) or value.layout != torch.strided or value.is_meta:
        raise broken("must be a dense tensor", value)
    return value


def _floats(tensor: Tensor) -> Tensor:
    if not tensor.is_floating_point():
        raise broken("must be a tensor of floating-point numbers", tensor)
    return tensor


def _parsed(text: str) -> str:
    Strategy.parse(text)
    return text


def _rate(text: str) -> str:
    try:
        Number(above=0).read(float(text))
    except ValueError:
        raise broken("must be a learning rate (a number above 0)", text) from None
    return text


def _sent_first(value: Any) -> Any:
    """Reads a warm-up's steps, density, or strategy's text."""
    return _parsed(value) if isinstance(value, str) else Number(above=0).read(value)


def _real(value: Any) -> float:
    """Reads a number that may be inf or NaN, also one in a tensor."""
    is_one = isinstance(value, Tensor) and value.numel() == 1 and not value.is_meta
    if not is_one and type(value) not in (int, float):
        raise broken("must be a number", value)
    try:
        return float(value)
    except (OverflowError, RuntimeError):  # a large int; a complex tensor
        raise broken("must be a number", value) from None


DENSE = Made(Anything(), _dense)
"""A dense tensor that is not on the meta device."""
FLOATS = Made(DENSE, _floats)
"""A dense tensor of floating-point numbers."""
MOST_RANKS = 1 << 20
STEP = Whole(0, 1 << 48)
SEED = Whole(-(1 << 63), (1 << 64) - 1)
_NAME = Made(Text(), own_name)
_NAMES = Map(List(_NAME), key=Made(Text(), _parsed))
_RANK = Table(
    {"part": Row(Whole(), Whole(1)), "tensors": Whole()},
    {
        "state": Map(Map(DENSE), key=_NAME), "leftovers": Map(FLOATS, key=_NAME),
        "rates": Map(List(_NAME), key=Made(Text(), _rate)), "gradient_norm": Number(above=0),
    },
)  # fmt: skip
STATE = Document(
    "a handle's state",
    Table({
        "world": Whole(1, MOST_RANKS), "step": STEP, "taken": STEP,
        "seed": SEED, "loss_scale": Number(above=0), "plan": _NAMES,
        "aim": _NAMES, "warmup": List(Made(Anything(), _sent_first)), "ranks": Map(_RANK),
    }),
    PlanError, "Load what handle.state_dict() returned in this version", FORMAT,
)  # fmt: skip

_FRAGMENT = Table({
    "anchors": Map(FLOATS), "outer": Anything(), "kept": Whole(), "launched_at": STEP,
    "gradwire": Made(Anything(), STATE.take),
})  # fmt: skip
LOCAL_STEPS = Document(
    "a state of local steps",
    Table({"step": STEP, "every": Maybe(Whole(1)), "fragments": Map(_FRAGMENT)}),
    UsageError,
    "Pass what LocalSteps.state_dict() returned, or a list of all ranks' states",
)  # fmt: skip

ACCORDION = Document(
    "a state of Accordion",
    Table({
        "taken": STEP, "before": Made(Anything(), _real), "rate": Made(Anything(), _real),
        "is_critical": Flag(),
    }),
    UsageError, "Pass what Accordion.state_dict() returned",
)  # fmt: skip

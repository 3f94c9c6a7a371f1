"""A quick test of another package's feedback, before anything relies on it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from gradwire.local import OF_OTHER_SHAPE
from gradwire.strategy import Feedback, StepInfo

_SHAPE = (8, 12)


def trial(feedback: Feedback) -> str | None:
    """Try it in two steps on one small matrix. Returns what is wrong; None if nothing is. The laws
    of `gradwire.testing` check more."""
    x = torch.linspace(-1.0, 1.0, 96, dtype=torch.float32, device="cpu")
    state = dict[str, Tensor]()
    for step in range(2):
        given = x.clone()
        info = StepInfo(step, shape=_SHAPE)
        y, midway = feedback.before(x, state, info)
        sent = torch.where(torch.arange(len(y), device=y.device) % 3 == 0, y, torch.zeros_like(y))
        kept = dict(feedback.after(y, sent, midway))
        if y.shape != x.shape or y.dtype != x.dtype:
            return (
                f"before must return what to encode, float32 of shape {[*x.shape]}; got {y.dtype} "
                f"of shape {[*y.shape]}"
            )
        if not torch.equal(x, given):
            return "before and after must not change their inputs; the gradient was changed"
        if wrong := _wrong_state(kept, x):
            return wrong
        if feedback.makes_good and not torch.allclose(kept["residual"] + sent, y, atol=1e-6):
            return "with makes_good, residual + sent must equal what was encoded; it does not"
        mean = feedback.received(sent.clone(), kept)
        state = {**kept, **mean}
        if wrong := _wrong_state(state, x):
            return wrong
    return None


def _wrong_state(state: Mapping[str, Any], x: Tensor) -> str | None:
    for name, value in state.items():
        if not isinstance(value, Tensor):
            return f"a state must map names to tensors; '{name}' is {type(value).__name__}"
        if name not in OF_OTHER_SHAPE and value.shape != x.shape:
            return (
                "a state's tensors must be 1-D, with as many elements as the gradient; "
                f"'{name}' has the shape {[*value.shape]}"
            )
    return None

"""Which parameters are attached, and to what: one look-up for attach, optimizers and checks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

if TYPE_CHECKING:
    from gradwire.strategy import Feedback
    from gradwire.training.session import Session

_ATTACHED: Any = WeakIdKeyDictionary()
"""Parameter to its session and its name there."""


def enter(parameters: Mapping[str, Tensor], session: Session) -> None:
    """These are attached from now on."""
    for name, p in parameters.items():
        _ATTACHED[p] = (session, name)


def leave(parameters: Mapping[str, Tensor]) -> None:
    for p in parameters.values():
        _ATTACHED.pop(p, None)


def is_attached(parameter: Tensor) -> bool:
    return parameter in _ATTACHED


def feedback_of(parameter: Tensor) -> Feedback | None:
    """What its strategy remembers it by; None without, or where it is not attached."""
    found = _ATTACHED.get(parameter)
    if found is None:
        return None
    session, name = found
    feedback: Feedback | None = session.plan.strategy_of(name).feedback
    return feedback

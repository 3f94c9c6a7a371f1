"""Which parameters are attached, and to what: one look-up for attach, optimizers and checks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

if TYPE_CHECKING:
    from gradwire.strategy import Feedback, Strategy
    from gradwire.training.session import Session

_ATTACHED: Any = WeakIdKeyDictionary()
"""Parameter to its session and its name there; no session where local steps exchange it."""


def enter(parameters: Mapping[str, Tensor], session: Session | None) -> None:
    """These are attached from now on; without a session: by local steps."""
    for name, p in parameters.items():
        _ATTACHED[p] = (session, name)


def leave(parameters: Iterable[Tensor], session: Session | None) -> None:
    """They are not any more; but for those that have been attached anew since."""
    for p in parameters:
        if p in _ATTACHED and _ATTACHED[p][0] is session:
            del _ATTACHED[p]


def is_attached(parameter: Tensor) -> bool:
    return parameter in _ATTACHED


def velocity_of(parameter: Tensor) -> Tensor | None:
    """The momentum of all ranks that its plan remembers, in the unit, shape and dtype of `.grad`
    after `unscale_`, or of the part of it that this rank keeps of a sharded one; None where this
    rank does not remember all of that."""
    session, name = _ATTACHED.get(parameter, (None, ""))
    if session is None or not session.ledger.is_whole(name):
        return None
    velocity = session.ledger.memory[name].get("velocity")
    if velocity is None:
        return None
    found: Tensor = velocity.view(session.ledger.shapes[name]).div(session.loss_scale)
    return found.to(parameter.dtype)


def strategy_of(parameter: Tensor) -> Strategy | None:
    """By which its gradient travels now; None where it is not attached."""
    session, name = _ATTACHED.get(parameter, (None, ""))
    return None if session is None else session.plan.strategy_of(name)


def feedback_of(parameter: Tensor) -> Feedback | None:
    """What its strategy remembers it by; None without, or where it is not attached."""
    strategy = strategy_of(parameter)
    return None if strategy is None else strategy.feedback

"""Which parameters are attached, and to what: one look-up for attach, optimizers and checks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from torch import Tensor, nn
from torch.utils.weak import WeakIdKeyDictionary

from gradwire.errors import UsageError

if TYPE_CHECKING:
    from gradwire.strategy import Feedback, Strategy
    from gradwire.training.session import Session


class Entry(NamedTuple):
    """What is known of an attached parameter: its session, none where local steps exchange it, and
    its name there. detach: of the handle, which is kept so: whoever attached may drop it, while
    hooks stay."""

    session: Session | None
    name: str
    detach: Callable[[], None]


_ATTACHED: Any = WeakIdKeyDictionary()
"""Parameter to its Entry."""


def enter(
    parameters: Mapping[str, Tensor], session: Session | None, detach: Callable[[], None]
) -> None:
    """These are attached from now on; without a session: by local steps."""
    for name, p in parameters.items():
        _ATTACHED[p] = Entry(session, name, detach)


def leave(parameters: Iterable[Tensor], detach: Callable[[], None]) -> None:
    """They are not any more; but for those that have been attached anew since."""
    for p in parameters:
        if p in _ATTACHED and _ATTACHED[p].detach == detach:
            del _ATTACHED[p]


def is_attached(parameter: Tensor) -> bool:
    """Whether something exchanges its gradient."""
    return parameter in _ATTACHED


def detach(module: nn.Module) -> None:
    """Detach all that holds parameters of this module: `Handle.detach`, or `LocalSteps.detach`,
    where nobody has kept what `attach` returned. Not collective, but for all ranks to do between
    two steps.

    Raises:
        UsageError: none of its parameters is attached.
    """
    found = dict.fromkeys(_ATTACHED[p].detach for p in module.parameters() if p in _ATTACHED)
    if not found:
        raise UsageError(
            f"detach takes what is attached; no parameter of this {type(module).__name__} "
            "is. Pass the one that was given to attach, or a part of it."
        )
    for detach_all in found:
        detach_all()


def sessions_of(parameters: Iterable[Tensor]) -> list[Session]:
    """Those by which they are exchanged."""
    entries = (_ATTACHED.get(p) for p in parameters)
    found = {id(e.session): e.session for e in entries if e is not None}
    return [session for session in found.values() if session is not None]


def rest(parameters: Iterable[Tensor]) -> None:
    """They are where all ranks have them, not at this rank's own view."""
    for session in sessions_of(parameters):
        if session.view is not None:
            session.view.leave()


def velocity_of(parameter: Tensor) -> Tensor | None:
    """The momentum of all ranks that its plan remembers, in the unit, shape and dtype of `.grad`
    after `unscale_`, or of the part of it that this rank keeps of a sharded one; None where this
    rank does not remember all of that."""
    session, name, _ = _ATTACHED.get(parameter, (None, "", None))
    if session is None or not session.ledger.is_whole(name):
        return None
    velocity = session.ledger.memory[name].get("velocity")
    if velocity is None:
        return None
    found: Tensor = velocity.view(session.ledger.shapes[name]).div(session.loss_scale)
    return found.to(parameter.device, parameter.dtype)


def strategy_of(parameter: Tensor) -> Strategy | None:
    """The strategy by which its gradient travels now; None where it is not attached."""
    session, name, _ = _ATTACHED.get(parameter, (None, "", None))
    return None if session is None else session.plan.strategy_of(name)


def feedback_of(parameter: Tensor) -> Feedback | None:
    """What its strategy remembers it by; None without, or where it is not attached."""
    strategy = strategy_of(parameter)
    return None if strategy is None else strategy.feedback


def keeper_of(parameter: Tensor) -> Feedback | None:
    """The feedback that keeps its momentum in the optimizer's place; None where none does."""
    feedback = feedback_of(parameter)
    return feedback if feedback is not None and feedback.moments() else None

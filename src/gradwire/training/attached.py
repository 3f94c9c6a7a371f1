"""A registry of attached parameters and their sessions, for attach, optimizers and checks."""

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
    """An attached parameter's session, None if local steps exchange it, and its name there.

    detach: the handle's method, which also keeps the handle alive: callers may drop it, while its
    hooks stay.
    """

    session: Session | None
    name: str
    detach: Callable[[], None]


_ATTACHED: Any = WeakIdKeyDictionary()
"""Maps each attached parameter to its Entry."""


def enter(
    parameters: Mapping[str, Tensor], session: Session | None, detach: Callable[[], None]
) -> None:
    """Register parameters as attached to a session, or with None to local steps."""
    for name, p in parameters.items():
        _ATTACHED[p] = Entry(session, name, detach)


def leave(parameters: Iterable[Tensor], detach: Callable[[], None]) -> None:
    """Unregister parameters, except those that have been attached anew since."""
    for p in parameters:
        if p in _ATTACHED and _ATTACHED[p].detach == detach:
            del _ATTACHED[p]


def is_attached(parameter: Tensor) -> bool:
    """Whether something exchanges its gradient."""
    return parameter in _ATTACHED


def detach(module: nn.Module) -> None:
    """Call `Handle.detach` or `LocalSteps.detach` of all that holds parameters of this module, for
    callers that did not keep what `attach` returned. Not collective, but all ranks must call it,
    between two steps.

    Raises:
        UsageError: none of its parameters is attached.
    """
    found = dict.fromkeys(_ATTACHED[p].detach for p in module.parameters() if p in _ATTACHED)
    if not found:
        raise UsageError(
            f"detach needs an attached module; no parameter of this {type(module).__name__} is "
            "attached. Pass the module that was given to attach, or a part of it."
        )
    for detach_all in found:
        detach_all()


def sessions_of(parameters: Iterable[Tensor]) -> list[Session]:
    """Returns the sessions that exchange these parameters, each once."""
    entries = (_ATTACHED.get(p) for p in parameters)
    found = {id(e.session): e.session for e in entries if e is not None}
    return [session for session in found.values() if session is not None]


def after_closure(parameters: Iterable[Tensor]) -> None:
    """Do what comes before an optimizer's step and waits for the gradients, once a closure has
    made these: see `OptimizerCheck.after_closure`."""
    own = list(parameters)
    for session in sessions_of(own):
        if session.after_closure is not None:
            session.after_closure(own)


def velocity_of(parameter: Tensor) -> Tensor | None:
    """Returns the momentum of all ranks that the parameter's plan remembers, in the unit, shape
    and dtype of `.grad` after `unscale_`; of a sharded parameter, that of this rank's shard.
    Returns None if the plan keeps none, or this rank keeps a part only."""
    session, name, _ = _ATTACHED.get(parameter, (None, "", None))
    if session is None or not session.ledger.is_own(name):
        return None
    velocity = session.ledger.memory[name].get("velocity")
    if velocity is None:
        return None
    found: Tensor = velocity.view(session.ledger.shapes[name]).div(session.loss_scale)
    return found.to(parameter.device, parameter.dtype)


def strategy_of(parameter: Tensor) -> Strategy | None:
    """Returns the strategy that sends its gradient now; None if it is not attached."""
    session, name, _ = _ATTACHED.get(parameter, (None, "", None))
    return None if session is None else session.plan.strategy_of(name)


def feedback_of(parameter: Tensor) -> Feedback | None:
    """Returns its strategy's feedback; None if that has none, or it is not attached."""
    strategy = strategy_of(parameter)
    return None if strategy is None else strategy.feedback


def asked_of(parameter: Tensor) -> Feedback | None:
    """Returns the feedback of the strategy that its plan was made of, which may imply another one
    for this parameter; None if it keeps no momentum, or the parameter is not attached."""
    session, _, _ = _ATTACHED.get(parameter, (None, "", None))
    feedback = None if session is None else session.whole_plan.main_strategy.feedback
    return feedback if feedback is not None and feedback.moments() else None


def keeper_of(parameter: Tensor) -> Feedback | None:
    """Returns the feedback that keeps its momentum in the optimizer's place; None if none does."""
    feedback = feedback_of(parameter)
    return feedback if feedback is not None and feedback.moments() else None

"""What the feedbacks with a momentum share: the check of their parameters, what they keep."""

from collections.abc import Mapping

from gradwire.errors import StrategyError
from gradwire.member import Moments


def check_momentum(owner: str, momentum: object, **switches: object) -> None:
    """StrategyError unless 0 <= momentum < 1 and every switch is True or False."""
    if not isinstance(momentum, int | float) or not 0 <= momentum < 1:
        raise StrategyError(
            f"{owner}'s momentum is at least 0 and below 1; got {momentum!r}. "
            f"Use for example {owner}(momentum=0.9)."
        )
    check_switches(owner, switches)


def check_switches(owner: str, switches: Mapping[str, object]) -> None:
    """StrategyError unless every one is True or False."""
    for name, value in switches.items():
        if not isinstance(value, bool):
            raise StrategyError(
                f"{owner}'s {name} is True or False; got {value!r}. "
                f"Use for example {owner}({name}=True)."
            )


def momentum_of(momentum: float, nesterov: bool = False) -> Moments:
    """The momentum as SGD and Muon name it; nothing, where it is 0."""
    return {"momentum": momentum, "nesterov": nesterov} if momentum > 0 else {}

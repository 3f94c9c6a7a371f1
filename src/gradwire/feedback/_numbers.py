"""The numbers of feedbacks that keep a momentum or Adam's moments: checks and names."""

from collections.abc import Mapping

from gradwire.errors import StrategyError
from gradwire.member import Moments

LEAST_EPS = 2.0**-126  # float32, in which it is added, knows hardly any smaller number


def check_momentum(owner: str, momentum: object, **switches: object) -> None:
    """Raise StrategyError unless 0 <= momentum < 1 and every switch is True or False."""
    _check_below_1(owner, "momentum", momentum, "momentum=0.9")
    _check_switches(owner, switches)


def check_adam(owner: str, beta1: object, beta2: object, eps: object, **switches: object) -> None:
    """Raise StrategyError unless 0 <= betas < 1, 2^-126 <= eps < 1, and switches are True or
    False."""
    for name, beta in (("beta1", beta1), ("beta2", beta2)):
        _check_below_1(owner, name, beta, "beta1=0.9, beta2=0.999")
    if isinstance(eps, bool) or not isinstance(eps, int | float) or not LEAST_EPS <= eps < 1:
        raise StrategyError(
            f"{owner}'s eps must be at least {LEAST_EPS:.1e}, float32's smallest normal number, "
            f"and below 1; got {eps!r}. Use for example {owner}(eps=1e-8)."
        )
    _check_switches(owner, switches)


def momentum_of(momentum: float, nesterov: bool = False) -> Moments:
    """Returns the momentum with the names of SGD and Muon; nothing if it is 0."""
    return {"momentum": momentum, "nesterov": nesterov} if momentum > 0 else {}


def _check_below_1(owner: str, name: str, value: object, usual: str) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1:
        raise StrategyError(
            f"{owner}'s {name} must be at least 0 and below 1; got {value!r}. Use for example "
            f"{owner}({usual})."
        )


def _check_switches(owner: str, switches: Mapping[str, object]) -> None:
    for name, value in switches.items():
        if not isinstance(value, bool):
            raise StrategyError(
                f"{owner}'s {name} must be True or False; got {value!r}. "
                f"Use for example {owner}({name}=True)."
            )

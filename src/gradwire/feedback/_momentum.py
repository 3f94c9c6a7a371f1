"""What the feedbacks with a momentum share: the check of its range."""

from gradwire.errors import StrategyError


def check_momentum(owner: str, momentum: object) -> None:
    """StrategyError unless 0 <= momentum < 1."""
    if not isinstance(momentum, int | float) or not 0 <= momentum < 1:
        raise StrategyError(
            f"{owner}'s momentum is at least 0 and below 1; got {momentum!r}. "
            f"Use for example {owner}(momentum=0.9)."
        )

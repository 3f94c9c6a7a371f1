"""How targets are written: a function that draws the arguments of another."""

from __future__ import annotations

from collections.abc import Callable

from harness.calls import Same, Target, everything
from harness.draws import Draw

TARGETS: list[Target] = []
Drawing = Callable[[Draw], dict[str, object]]


def target(
    do: Callable[..., object], *, name: str = "", same: Same | None = everything,
    weight: int = 4, spoiled: float = 0.6,
) -> Callable[[Drawing], Drawing]:  # fmt: skip
    """Decorates the function that draws what `do` is called with, by name."""
    own = name or f"{do.__module__.removeprefix('gradwire.')}.{do.__name__}"

    def register(draw: Drawing) -> Drawing:
        TARGETS.append(Target(own, do, draw, same, weight, spoiled))
        return draw

    return register

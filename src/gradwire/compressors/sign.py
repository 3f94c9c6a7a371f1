"""sign: one bit per element."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from gradwire.compressors._codec import LEAST_KEPT, Codec
from gradwire.errors import StrategyError
from gradwire.kernels.formats import SIGNS, SIGNS1, Format
from gradwire.strategy import Claims


@dataclass(frozen=True)
class Sign(Codec):
    """Sends signs, -1 or 1; scaled: times the mean magnitude, which with `ef` is EF-SignSGD.

    1 bit per element, scaled 32 bits more. The sign of a zero is random, so that elements without
    gradient do not drift. Unscaled, what arrives is a direction and no gradient: the learning rate
    is the size of the step.
    Source: Bernstein et al. 2018 (unscaled); Karimireddy et al. 2019, algorithm 1 (scaled).
    """

    scaled: bool = False
    name: ClassVar[str] = "sign"
    goal: ClassVar[float] = 1.5
    examples: ClassVar[tuple[str, ...]] = ("sign", "sign(scaled=True)", "sign(scaled=True)+ef")

    def __post_init__(self) -> None:
        if not isinstance(self.scaled, bool):
            raise StrategyError(
                f"sign's scaled must be True or False; got {self.scaled!r}. Use sign(scaled=True)."
            )

    def format(self) -> Format:
        return SIGNS1 if self.scaled else SIGNS

    def claims(self, n: int, dtype: str = "float32") -> Claims:
        sections = self.sections(n)
        if not self.scaled:
            return Claims(sections, direction=True)
        return Claims(
            sections, contraction=LEAST_KEPT / max(n, 1), wants_feedback=True, read_again=(0, 8)
        )

"""onebit: one bit per element and two means."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from gradwire.compressors._codec import LEAST_KEPT, Codec
from gradwire.kernels.formats import SIGNS2, Format
from gradwire.strategy import Claims


@dataclass(frozen=True)
class OneBit(Codec):
    """Sends signs and two means, of negative and of other elements: 1 bit each.

    Source: Seide et al. 2014, section 3.2, with one pair of means per parameter.
    """

    name: ClassVar[str] = "onebit"
    goal: ClassVar[float] = 2.5  # for computing two means
    examples: ClassVar[tuple[str, ...]] = ("onebit", "onebit+ef")

    def format(self) -> Format:
        return SIGNS2

    def claims(self, n: int, dtype: str = "float32") -> Claims:
        return Claims(
            self.sections(n),
            contraction=LEAST_KEPT / max(n, 1),
            wants_feedback=True,
            read_again=(0, 8),
        )

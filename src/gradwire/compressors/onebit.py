"""onebit: one bit per element and two means."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from gradwire import kernels
from gradwire.compressors._signs import LEAST_KEPT, Signs
from gradwire.strategy import Claims, Key, Sections


@dataclass(frozen=True)
class OneBit(Signs):
    """The mean of the negative elements, or of the others: 1 bit per element.

    Source: Seide et al. 2014, section 3.2, with one pair of means per parameter.
    """

    name: ClassVar[str] = "onebit"
    goal: ClassVar[float] = 2.5  # two means
    examples: ClassVar[tuple[str, ...]] = ("onebit", "onebit+ef")

    def claims(self, n: int, dtype: str = "float32") -> Claims:
        sections = ("float32", 2 * int(n > 0)), ("uint8", kernels.sign_bytes(n))
        return Claims(
            sections, contraction=LEAST_KEPT / max(n, 1), wants_feedback=True, read_again=(0, 8)
        )

    def encode(self, x: Tensor, sections: Sections, key: Key, status: Tensor) -> None:
        means, bits = sections
        kernels.pack_signs(x, bits, means, status)

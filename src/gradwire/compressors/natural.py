"""natural: random rounding to powers of two, unbiased."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from gradwire.compressors._codec import Codec
from gradwire.kernels.formats import POWERS, Format
from gradwire.strategy import Claims


@dataclass(frozen=True)
class Natural(Codec):
    """Rounds at random to the next lower or higher power of two: 9 bits per element.

    Sign and exponent are sent. The probability of the higher one is the mantissa, exactly, so the
    mean is x (above 2^127, the largest power of two in fp32, it is rounded down). The variance is
    at most x²/8.
    Source: Horváth et al. 2019, "Natural Compression for Distributed Deep Learning", section 2.
    """

    name: ClassVar[str] = "natural"
    goal: ClassVar[float] = 2.5  # for random numbers

    def format(self) -> Format:
        return POWERS

    def claims(self, n: int, dtype: str = "float32") -> Claims:
        return Claims(self.sections(n), unbiased=True)

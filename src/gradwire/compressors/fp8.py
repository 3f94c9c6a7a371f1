"""fp8: 8-bit floats, one scale per block of 256; they travel as bytes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from gradwire.compressors._codec import Codec
from gradwire.errors import StrategyError
from gradwire.kernels.formats import E4M3, E5M2, Format
from gradwire.strategy import Claims

_FORMATS = {"e4m3": (E4M3, 0.99), "e5m2": (E5M2, 0.98)}


@dataclass(frozen=True)
class Float8(Codec):
    """Rounds to nearest even, scaled by the block's largest magnitude: 8.125 bits per element.

    e4m3 has 4 bits of precision, e5m2 3 and a wider range inside a block. Blocks whose largest
    magnitude is below 2^-96 are sent as zeros.
    Source: Micikevicius et al. 2022, "FP8 Formats for Deep Learning".
    """

    variant: str = "e4m3"
    name: ClassVar[str] = "fp8"
    examples: ClassVar[tuple[str, ...]] = ("fp8", 'fp8(variant="e5m2")')

    def __post_init__(self) -> None:
        if not isinstance(self.variant, str) or self.variant not in _FORMATS:
            raise StrategyError(
                f"fp8's variant must be one of {', '.join(_FORMATS)}; got {self.variant!r}. Use "
                'for example fp8(variant="e5m2").'
            )

    def format(self) -> Format:
        return _FORMATS[self.variant][0]

    def claims(self, n: int, dtype: str = "float32") -> Claims:
        return Claims(self.sections(n), contraction=_FORMATS[self.variant][1])

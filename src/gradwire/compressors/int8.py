"""int8: signed bytes, one scale per block of 256."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from gradwire.compressors._codec import Codec
from gradwire.kernels.formats import INT8, Format
from gradwire.strategy import Claims


@dataclass(frozen=True)
class Int8(Codec):
    """Sends the nearest of 255 levels up to the block's largest magnitude: 8.125 bits each.

    Blocks whose largest magnitude is below 2^-96 are sent as zeros.
    Source: blockwise absmax quantization, Dettmers et al. 2022, section 2.1, with even levels.
    """

    name: ClassVar[str] = "int8"
    goal: ClassVar[float] = 1.5
    examples: ClassVar[tuple[str, ...]] = ("int8", "int8+ef")

    def format(self) -> Format:
        return INT8

    def claims(self, n: int, dtype: str = "float32") -> Claims:
        return Claims(self.sections(n), contraction=0.995)

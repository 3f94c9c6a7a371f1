"""terngrad: -s, 0 or s at random, five elements in a byte."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from gradwire import kernels
from gradwire.compressors._codec import Codec, noise_of
from gradwire.errors import StrategyError
from gradwire.kernels.formats import TERNARY, Format
from gradwire.local import BlockCodes
from gradwire.strategy import Claims, Key, Sections


@dataclass(frozen=True)
class TernGrad(Codec):
    """sign(x)·s with probability |x|/s, else 0; s: the largest magnitude. 1.6 bits per element.

    clip: magnitudes above clip times the root mean square are cut to it first, which lowers the
    variance and adds bias (2.5 in the paper); None: no clipping, and the mean is x. Reads x twice.
    A parameter whose largest magnitude is below 2^-96 is sent as zeros.
    Source: Wen et al. 2017, sections 3.1 and 3.3.
    """

    clip: float | None = None
    name: ClassVar[str] = "terngrad"
    goal: ClassVar[float] = 2.5  # for random numbers

    def __post_init__(self) -> None:
        if self.clip is not None and not (
            type(self.clip) in (int, float) and 0 < self.clip < math.inf
        ):
            raise StrategyError(
                "terngrad's clip must be a number of root mean squares above 0, or None; got "
                f"{self.clip!r}. Use for example terngrad(clip=2.5)."
            )

    def format(self) -> Format:
        return TERNARY

    def claims(self, n: int, dtype: str = "float32") -> Claims:
        return Claims(self.sections(n), unbiased=self.clip is None, read_again=(4, 8))

    def blocks(self, sections: Sections, key: Key) -> Sequence[BlockCodes]:
        return [block._replace(clip=self.clip) for block in super().blocks(sections, key)]

    def encode(self, x: Tensor, sections: Sections, key: Key, status: Tensor) -> None:
        scales, codes = sections
        kernels.encode_codes(TERNARY, x, codes, scales, status, noise_of(key), self.clip)

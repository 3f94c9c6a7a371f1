"""nonzero: all elements that are not zero, without loss, for tensors that are sparse by nature."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from gradwire.compressors._ragged import Ragged
from gradwire.errors import StrategyError
from gradwire.strategy import Claims

_INDEX = ("auto", "int32")
_NAMES = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}


@dataclass(frozen=True)
class NonZero(Ragged):
    """Sends the places and values of all non-zero elements, in the gradient's own dtype: lossless.

    The size of a message depends on the data. -0 comes back as 0. A dense tensor takes an eighth
    of a byte per element more than `none`.
    Collectives exchange the lengths first.
    index: "auto": places in the smallest code; "int32": as other libraries send them, to compare.
    """

    index: str = "auto"
    name: ClassVar[str] = "nonzero"

    def __post_init__(self) -> None:
        if self.index not in _INDEX:
            raise StrategyError(
                f"nonzero's index must be one of {', '.join(_INDEX)}; got {self.index!r}. Use "
                'nonzero, or nonzero(index="int32").'
            )

    def least(self) -> float:
        return 2.0**-149

    def values(self, dtype: torch.dtype) -> str:
        return _NAMES[dtype]

    def claims(self, n: int, dtype: str = "float32") -> Claims:
        sections = (("uint8", self.capacity(n)),)
        listed = self.index == "int32"
        return Claims(sections, contraction=1.0, fixed=False, entries=True, listed=listed)

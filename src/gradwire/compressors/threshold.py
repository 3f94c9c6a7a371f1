"""threshold: every element of at least a given magnitude."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from gradwire.compressors._ragged import Ragged
from gradwire.errors import StrategyError
from gradwire.strategy import Claims


@dataclass(frozen=True)
class Threshold(Ragged):
    """Sends all elements with |x| >= value.

    The size of a message depends on the data; collectives exchange the lengths first. With `ef`
    large elements are sent at once, small ones once their residual is large. Memory: 10 bytes per
    entry and thread.
    Source: Strom 2015, "Scalable distributed DNN training using commodity GPU cloud computing".
    """

    value: float
    name: ClassVar[str] = "threshold"
    examples: ClassVar[tuple[str, ...]] = ("threshold(3.0)+ef", "threshold(2.0)+ef")

    def __post_init__(self) -> None:
        given = self.value
        if type(given) not in (int, float) or not 2.0**-126 <= given < 2.0**127:
            raise StrategyError(
                "threshold's value must be the least magnitude sent, at least 2^-126 and below "
                f"2^127; got {given!r}. Use for example threshold(0.001)."
            )

    def least(self) -> float:
        return self.value

    def values(self, dtype: torch.dtype) -> str:
        return "fp32"

    def claims(self, n: int, dtype: str = "float32") -> Claims:
        sections = (("uint8", self.capacity(n)),)
        return Claims(sections, contraction=0.0, wants_feedback=True, fixed=False, entries=True)

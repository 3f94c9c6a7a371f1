"""levels: rounds to the nearest of a number of levels up to the largest magnitude, a byte each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from gradwire.errors import StrategyError
from gradwire.strategy import Claims, Compressor, Key, Sections


@dataclass(frozen=True)
class Levels(Compressor):
    """round(x · count / most), most the parameter's largest magnitude: 8 bits per element.

    count: levels on each side of zero, 1 to 127.
    """

    count: int
    name: ClassVar[str] = "levels"
    examples: ClassVar[tuple[str, ...]] = ("levels(15)", "levels(15)+ef")

    def __post_init__(self) -> None:
        if type(self.count) is not int or not 1 <= self.count <= 127:
            raise StrategyError(
                f"levels' count is a whole number from 1 to 127; got {self.count!r}. Use for "
                "example levels(15)."
            )

    def claims(self, n: int, dtype: str = "float32") -> Claims:
        return Claims((("float32", int(n > 0)), ("int8", n)), wants_feedback=True)

    def encode(self, x: Tensor, sections: Sections, key: Key, status: Tensor) -> None:
        most, codes = sections
        if x.numel():
            torch.amax(x.float().abs(), 0, keepdim=True, out=most)
            codes.copy_((x.float() * (self.count / most.clamp(min=2.0**-96))).round())
            status |= ~most.isfinite()

    def decode(self, sections: Sections, x: Tensor, key: Key | None = None) -> None:
        most, codes = sections
        x.copy_(codes.float() * (most / self.count) if x.numel() else codes)

    def accumulate(
        self, payloads: Sequence[Sections], x: Tensor, divisor: float, key: Key | None = None
    ) -> None:
        total = torch.zeros(x.shape, device=x.device)
        for sections in payloads:
            sent = torch.empty_like(total)
            self.decode(sections, sent)
            total += sent
        x.copy_(total / divisor)

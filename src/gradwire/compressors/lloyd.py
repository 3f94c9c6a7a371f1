"""lloyd: one or two bits per element, with the levels that lose least of a normal distribution."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from gradwire import kernels
from gradwire.compressors._codec import LEAST_KEPT, Codec
from gradwire.errors import StrategyError, UsageError
from gradwire.kernels.formats import LLOYD1, LLOYD2, Format
from gradwire.local import BlockCodes
from gradwire.strategy import Claims, Key, Member, Sections

_FORMATS = {1: LLOYD1, 2: LLOYD2}


@dataclass(frozen=True)
class Lloyd(Codec):
    """Sends the nearest of 2^bits levels, in units of the mean magnitude of 512.

    bits: 1, the sign: it keeps 64 % of the squared norm of normally distributed elements; 2 keep
    88 %. 1.06 or 2.06 bits per element.
    turns: the number of steps until all elements are sent: each step sends a part of every tensor,
    the same on all ranks, so that no places travel and bits are as many times fewer.
    It needs a feedback: `adam` with AdamW.
    Source: Max 1960, "Quantizing for minimum distortion", table I; one bit with blocks: Zheng et
    al. 2019, "Blockwise momentum SGD with error-feedback", section 4.
    """

    bits: int
    turns: int = 1
    name: ClassVar[str] = "lloyd"
    goal: ClassVar[float] = 2.5  # for computing means
    varies: ClassVar[Mapping[str, Sequence[float]]] = {"bits": (1, 2)}
    examples: ClassVar[tuple[str, ...]] = ("lloyd(1)+ef", "lloyd(2)+ef")

    def __post_init__(self) -> None:
        if self.bits not in _FORMATS or type(self.bits) is not int:
            raise StrategyError(f"lloyd's bits must be 1 or 2; got {self.bits!r}. Use lloyd(2).")
        if isinstance(self.turns, bool) or not isinstance(self.turns, int) or self.turns < 1:
            raise StrategyError(
                f"lloyd's turns must be a whole number, at least 1; got {self.turns!r}. Use for "
                "example lloyd(2, turns=2)."
            )

    def format(self) -> Format:
        return _FORMATS[self.bits]

    def is_as_fine_as(self, other: Member) -> bool:
        """Whether it has at least as many bits, sent at least as often."""
        if not isinstance(other, Lloyd):
            return False
        return self.bits >= other.bits and self.turns <= other.turns

    def claims(self, n: int, dtype: str = "float32") -> Claims:
        size = self._size(n)
        by_turns = self.turns > 1 or self.bits > 1
        kept = None if by_turns else LEAST_KEPT / max(min(n, self.format().block), 1)
        return Claims(
            self.sections(size), elements=None if self.turns == 1 else size, contraction=kept,
            wants_feedback=True,
        )  # fmt: skip

    def encode(self, x: Tensor, sections: Sections, key: Key, status: Tensor) -> None:
        part = x[self._part(x.numel(), key)]
        super().encode(part, self._written(sections, part.numel()), key, status)
        if self.turns > 1:  # elements of other turns must not enter the residual as inf
            kernels.flag_non_finite(x, status)

    def blocks(self, sections: Sections, key: Key) -> Sequence[BlockCodes]:
        return super().blocks(sections, key) if self.turns == 1 else ()

    def added(
        self, payloads: Sequence[Sections], x: Tensor, divisor: float, key: Key
    ) -> Sequence[kernels.SumSegment]:
        return super().added(payloads, x, divisor, key) if self.turns == 1 else ()

    def add(self, sections: Sections, v: Tensor, factor: float, key: Key | None = None) -> None:
        part = v[self._part(v.numel(), key)]
        super().add(self._written(sections, part.numel()), part, factor)

    def accumulate(
        self, payloads: Sequence[Sections], x: Tensor, divisor: float, key: Key | None = None
    ) -> None:
        at = self._part(x.numel(), key)
        size = at.stop - at.start
        super().accumulate([self._written(own, size) for own in payloads], x[at], divisor)
        x[: at.start].zero_()
        x[at.stop :].zero_()

    def places(self, sections: Sections, n: int, key: Key) -> Tensor | None:
        if self.turns == 1:
            return None
        part, device = self._part(n, key), sections[0].device
        return torch.arange(part.start, part.stop, dtype=torch.int32, device=device)

    # -- turns -----------------------------------------------------------------------------

    def _size(self, n: int) -> int:
        """Returns the number of elements of the longest part, in whole blocks."""
        block = self.format().block
        blocks = -(-n // block)
        return min(n, -(-blocks // self.turns) * block)

    def _part(self, n: int, key: Key | None) -> slice:
        """Returns the range of the n elements that this step sends."""
        if self.turns == 1:
            return slice(0, n)
        if key is None:
            raise UsageError(
                f"decoding '{self}' needs the key it was encoded with; got none. Pass the key "
                "that encode got."
            )
        size, turn = self._size(n), key.step % self.turns
        return slice(min(n, turn * size), min(n, (turn + 1) * size))

    def _written(self, sections: Sections, m: int) -> Sections:
        """Returns the sections of the longest part, cut to those of a part of m elements."""
        if self.turns == 1:
            return sections
        scales, codes = sections
        form = self.format()
        return scales[: form.scales(m)], codes[: form.code_bytes(m)]

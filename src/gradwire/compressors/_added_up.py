"""The base of compressors whose payloads are summed by one kernel, for many parameters at once."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

from torch import Tensor

from gradwire import kernels
from gradwire.strategy import Compressor, Key, Sections


class AddedUp(Compressor):
    """A compressor for which the sum of payloads is one segment of `kernels.add_up`."""

    @abstractmethod
    def segment(
        self, payloads: Sequence[Sections], x: Tensor, divisor: float
    ) -> kernels.SumSegment:
        """Returns the segment that writes the divided sum of payloads to x; PayloadError."""

    def decode(self, sections: Sections, x: Tensor, key: Key | None = None) -> None:
        self.accumulate([sections], x, 1.0, key)

    def accumulate(
        self, payloads: Sequence[Sections], x: Tensor, divisor: float, key: Key | None = None
    ) -> None:
        kernels.add_up([self.segment(payloads, x, divisor)])

    def added(
        self, payloads: Sequence[Sections], x: Tensor, divisor: float, key: Key
    ) -> Sequence[kernels.SumSegment]:
        return [self.segment(payloads, x, divisor)]

"""What sign and onebit share: one bit per element, and the values that it stands for."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from gradwire import kernels
from gradwire.strategy import Compressor, Key, Sections

LEAST_KEPT = 1 - 1e-6
"""Means keep |x|₁²/n of |x|², which is at least |x|²/n, less the rounding of the mean."""


class Signs(Compressor):
    """Sections: reconstruction values in fp32, bits in bytes. No memory beside them."""

    def decode(self, sections: Sections, x: Tensor, key: Key | None = None) -> None:
        self.accumulate([sections], x, 1.0)

    def add(self, sections: Sections, v: Tensor, factor: float, key: Key | None = None) -> None:
        values, bits = sections
        kernels.add_signs(v, bits, values, factor)

    def accumulate(
        self, payloads: Sequence[Sections], x: Tensor, divisor: float, key: Key | None = None
    ) -> None:
        pairs = [(bits, values) for values, bits in payloads]
        kernels.accumulate_signs(x, pairs, divisor)

"""What the quantizers share: one of the kernels' formats, with one scale per block or in all."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

from torch import Tensor

from gradwire import kernels
from gradwire.kernels.formats import Format
from gradwire.local import BlockCodes
from gradwire.strategy import Claims, Compressor, Key, Sections


def noise_of(key: Key) -> kernels.Noise:
    """The random numbers of one parameter, step and rank."""
    return kernels.Noise.of(f"{key.seed}/{key.step}/{key.parameter}", key.rank)


class Codec(Compressor):
    """Sections: scales in fp32, codes in bytes. No memory beside them."""

    @abstractmethod
    def format(self) -> Format:
        """How a block is written."""

    @abstractmethod
    def claims(self, n: int, dtype: str = "float32") -> Claims: ...

    def sections(self, n: int) -> tuple[tuple[str, int], ...]:
        form = self.format()
        return ("float32", form.scales(n)), ("uint8", form.code_bytes(n))

    def encode(self, x: Tensor, sections: Sections, key: Key, status: Tensor) -> None:
        scales, codes = sections
        kernels.encode_codes(self.format(), x, codes, scales, status, noise_of(key))

    def blocks(self, sections: Sections, key: Key) -> Sequence[BlockCodes]:
        scales, codes = sections
        return [BlockCodes(self.format(), codes, scales, noise_of(key))]

    def decode(self, sections: Sections, x: Tensor, key: Key | None = None) -> None:
        self.accumulate([sections], x, 1.0)

    def add(self, sections: Sections, v: Tensor, factor: float, key: Key | None = None) -> None:
        scales, codes = sections
        kernels.add_codes(self.format(), v, codes, scales, factor)

    def accumulate(
        self, payloads: Sequence[Sections], x: Tensor, divisor: float, key: Key | None = None
    ) -> None:
        kernels.add_up([self._sum(payloads, x, divisor)])

    def added(
        self, payloads: Sequence[Sections], x: Tensor, divisor: float, key: Key
    ) -> Sequence[kernels.SumSegment]:
        return [self._sum(payloads, x, divisor)]

    def _sum(self, payloads: Sequence[Sections], x: Tensor, divisor: float) -> kernels.SumCodes:
        pairs = [(codes, scales) for scales, codes in payloads]
        return kernels.SumCodes(self.format(), x, pairs, divisor)

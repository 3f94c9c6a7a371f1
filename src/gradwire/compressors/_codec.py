"""The base of quantizers: one of the kernels' formats, with one scale per block or in all."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from functools import cache

from torch import Tensor

from gradwire import kernels
from gradwire.compressors._added_up import AddedUp
from gradwire.kernels.formats import Format
from gradwire.kernels.values import SILENCE
from gradwire.local import BlockCodes, stands_for
from gradwire.strategy import Claims, Key, Sections


@cache
def _are_blocks(kind: type[Codec]) -> bool:
    """Whether its `blocks` describes its `encode` and `add`, which no derived class changes."""
    return all(stands_for(kind, "blocks", one) for one in ("encode", "add"))


LEAST_KEPT = 1 - 1e-6
"""Means keep |x|₁²/n of |x|², which is at least |x|²/n; this allows for the mean's rounding."""


def noise_of(key: Key) -> kernels.Noise:
    """Returns the random numbers of one parameter, step and rank."""
    return kernels.Noise.of(f"{key.seed}/{key.step}/{key.parameter}", key.rank)


class Codec(AddedUp):
    """A quantizer with two sections: scales in fp32, codes in bytes. It needs no other memory."""

    @abstractmethod
    def format(self) -> Format:
        """Returns the format of a block."""

    def noise(self, key: Key) -> kernels.Noise:
        """Returns its random numbers, if the format is random."""
        return noise_of(key) if self.format().random else SILENCE

    @abstractmethod
    def claims(self, n: int, dtype: str = "float32") -> Claims: ...

    def sections(self, n: int) -> tuple[tuple[str, int], ...]:
        form = self.format()
        return ("float32", form.scales(n)), ("uint8", form.code_bytes(n))

    def encode(self, x: Tensor, sections: Sections, key: Key, status: Tensor) -> None:
        (scales, codes), form = sections, self.format()
        kernels.encode_codes(form, x, codes, scales, status, self.noise(key))

    def blocks(self, sections: Sections, key: Key) -> Sequence[BlockCodes]:
        if not _are_blocks(type(self)):
            return ()
        scales, codes = sections
        return [BlockCodes(self.format(), codes, scales, self.noise(key))]

    def add(self, sections: Sections, v: Tensor, factor: float, key: Key | None = None) -> None:
        scales, codes = sections
        kernels.add_codes(self.format(), v, codes, scales, factor)

    def segment(self, payloads: Sequence[Sections], x: Tensor, divisor: float) -> kernels.SumCodes:
        pairs = [(codes, scales) for scales, codes in payloads]
        return kernels.SumCodes(self.format(), x, pairs, divisor)

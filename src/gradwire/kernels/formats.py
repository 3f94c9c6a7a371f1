"""The formats of quantizers: how many bytes and scales elements take; and packing of bits.

A block of m elements with one scale becomes `code_bytes(m)` bytes. In a block of packed levels or
of ternary digits, part p of the block lies in the same bits (or the same digit) of every byte.
torch/formats.py defines the bytes of each format, and torch/signs.py those of signs.
"""

from dataclasses import dataclass
from functools import cached_property

import torch


@dataclass(frozen=True)
class Format:
    """One way to write a block. number: the extension's name for it.

    block: elements that are packed together and share a scale, unless there are `in_all` scales.
    steps: the scale is the largest magnitude over steps. mean: the scale is the mean magnitude,
    and levels are at most `steps` times as large. one: what a step is in `encode_rows`, a power of
    two. signs: a bit is set below zero, and the scales are the decoded values. random: dice round
    values between two levels, or choose the sign of zeros. mantissa: bits of Microscaling's
    floats; a byte for each 32 of them, their scale's exponent, comes before the codes of a block.
    """

    number: int
    block: int
    steps: float
    bits: int = 8
    in_all: int | None = None
    one: float = 1.0
    mean: bool = False
    signs: bool = False
    random: bool = False
    mantissa: int | None = None

    @cached_property
    def most_scale(self) -> float:
        """The largest scale for which scale times `steps` is finite in fp32."""
        most = torch.tensor(torch.finfo(torch.float32).max, dtype=torch.float32, device="cpu")
        scale = most / max(self.steps, 1.0)
        fits = bool((scale * self.steps).isfinite())
        return float(scale if fits else torch.nextafter(scale, torch.zeros_like(scale)))

    @property
    def knows_late(self) -> bool:
        """Whether all blocks must be read before any can be encoded and subtracted."""
        return self.signs or bool(self.in_all)

    def block_bytes(self, m: int) -> int:
        """Returns the bytes of a block of m elements."""
        if self is TERNARY:
            return -(-m // 5)
        if self.mantissa is not None:
            return -(-m // SHARED) + sum(-(-m * bits // 8) for _, bits in self.planes)
        return m + -(-m // 8) if self is POWERS else -(-m * self.bits // 8)

    @property
    def planes(self) -> tuple[tuple[int, int], ...]:
        """The bits of a block's codes that are packed together: (lowest, number) of each group."""
        return ((0, 4), (4, 2)) if self.bits == 6 else ((0, self.bits),)

    def code_bytes(self, n: int) -> int:
        """Returns the bytes of n elements, without the scales."""
        whole, rest = divmod(n, self.block)
        return whole * self.block_bytes(self.block) + self.block_bytes(rest)

    def scales(self, n: int) -> int:
        """Returns the number of scales that n elements have."""
        if self.in_all is None:
            return -(-n // self.block)
        return self.in_all if n else 0


INT8 = Format(0, 256, 127.0)
E4M3 = Format(1, 256, 448.0)
E5M2 = Format(2, 256, 57344.0)
LEVELS2 = Format(3, 512, 1.0, bits=2, one=2.0**24, random=True)
LEVELS4 = Format(4, 512, 7.0, bits=4, one=2.0**24, random=True)
LEVELS8 = Format(5, 512, 127.0, one=2.0**24, random=True)
TERNARY = Format(6, 1280, 1.0, in_all=1, random=True)
POWERS = Format(7, 512, 0.0, in_all=0, random=True)
LLOYD1 = Format(8, 512, 2.0, bits=1, mean=True)
LLOYD2 = Format(9, 512, 2.0, bits=2, mean=True)
SIGNS, SIGNS1, SIGNS2 = (
    Format(10 + count, 8, 0.0, bits=1, in_all=count, signs=True, random=count < 2)
    for count in range(3)
)
"""Decoded as -1 and 1; as minus and plus the mean magnitude; as the mean of the negative elements
and the mean of the others."""
E2M1X, E3M2X, E2M3X, E4M3X = (
    Format(13 + i, 256, 0.0, bits=bits, in_all=0, mantissa=mantissa)
    for i, (bits, mantissa) in enumerate([(4, 1), (6, 2), (6, 3), (8, 3)])
)
"""OCP Microscaling Formats (MX) Specification v1.0, section 5: MXFP4, both of MXFP6, MXFP8."""
SHARED = 32
"""The number of elements that share a scale in the MX formats."""

THRESHOLD, INNER, OUTER = 1.2303, 0.5675, 1.8925
"""The threshold between small and large magnitudes, and the level of each, over a normal
distribution's mean magnitude. Max 1960, table I: 0.9816, 0.4528 and 1.510 deviations."""

LEAST_SCALED = 2.0**-96
"""A block whose largest or mean magnitude is below this counts as zero, so that no scale and no
inverse leaves fp32's range."""


def parts_of_eight(flags: torch.Tensor) -> torch.Tensor:
    """Packs (blocks, m) booleans into (blocks, ceil(m / 8)) bytes, the first in the lowest bit."""
    blocks, m = flags.shape
    padded = torch.zeros((blocks, -(-m // 8) * 8), dtype=torch.long, device=flags.device)
    padded[:, :m] = flags
    worth = 1 << torch.arange(8, device=flags.device)
    return (padded.view(blocks, -1, 8) * worth).sum(2).to(torch.uint8)


def bits_of(packed: torch.Tensor, m: int) -> torch.Tensor:
    """Unpacks (blocks, bytes) to (blocks, m) booleans."""
    places = torch.arange(8, device=packed.device)
    return (packed.long().unsqueeze(2) >> places & 1).flatten(1)[:, :m].bool()


def pack_bits(flags: torch.Tensor) -> torch.Tensor:
    """Packs (n,) booleans into ceil(n / 8) bytes, the first in the lowest bit."""
    return parts_of_eight(flags.unsqueeze(0))[0]


def unpack_bits(packed: torch.Tensor, n: int) -> torch.Tensor:
    """The inverse of `pack_bits`."""
    return bits_of(packed.unsqueeze(0), n)[0]

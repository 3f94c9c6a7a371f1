"""One packed message: a header of 32 bytes, then the sections of every parameter.

    0        8        16       24       32
    │ magic  │ flags  │ digest │ step   │ p0.section0 p0.section1 p1.section0 …      │ pad to 16

Every section begins at a multiple of 16 bytes, so that a GPU loads four numbers at once. Codes of
4 KiB and more begin at a multiple of 64 (a cache line), and a message with such codes ends at one.
The sizes follow from the plan alone, so they are not sent; the digest of the plan is.
Bare numbers (for AllReduce, where the network adds) are the same buffer without its header.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from gradwire.member import ALIGNED
from gradwire.strategy import Claims

HEADER_BYTES = 32
WIRE_VERSION = 4
"""The version of the format; attaching a model refuses ranks with another one. Version 2: sections
begin at multiples of 16, not of their items' sizes. Version 3: lengths that ranks gather are told
twice, so that damage is seen. Version 4: owners of a table's rows are dealt them one by one."""
_LINE = 64
_LONG_CODE = 4096


def told_bytes(numbers: int, luggage: int = 0) -> int:
    """The size in bytes of a message that tells all ranks this many numbers: the header, the
    numbers, `luggage` more bytes, and a check."""
    return HEADER_BYTES + 8 * (numbers + 1) + luggage


@dataclass(frozen=True)
class Layout:
    """The offset and length of each section in a message."""

    sections: tuple[tuple[tuple[torch.dtype, int, int], ...], ...]  # (dtype, begin, end) in bytes
    bytes: int

    @staticmethod
    def of(claims: Sequence[Claims]) -> Layout:
        """Returns the layout for parameters with these claims, in order."""
        at, end, parameters = HEADER_BYTES, ALIGNED, []
        for claim in claims:
            sections = []
            for name, count in claim.sections:
                dtype: torch.dtype = getattr(torch, name)
                start = ALIGNED
                if claim.fixed and dtype == torch.uint8 and count >= _LONG_CODE:
                    start = end = _LINE
                at += -at % start
                sections.append((dtype, at, at + count * dtype.itemsize))
                at = sections[-1][2]
            parameters.append(tuple(sections))
        return Layout(tuple(parameters), at + -at % end)

    def views(self, message: Tensor) -> list[tuple[Tensor, ...]]:
        """Returns the sections of each parameter, sharing the message's memory."""
        return [
            tuple(message[begin:end].view(dtype) for dtype, begin, end in sections)
            for sections in self.sections
        ]

    def numbers(self, message: Tensor) -> Tensor:
        """Returns all values of a one-dtype layout as one tensor without the header, with zeros
        between the values of two parameters, as in the message."""
        dtype, begin, _ = self.sections[0][0]
        end = self.sections[-1][-1][2]
        return message[begin:end].view(dtype)

    def values(self, numbers: Tensor) -> list[Tensor]:
        """Returns the values of each parameter in a tensor from `numbers`, or in a sum of such."""
        if len(self.sections) == 1:
            return [numbers]
        first = self.sections[0][0][1]
        return [
            numbers[(begin - first) // dtype.itemsize : (end - first) // dtype.itemsize]
            for ((dtype, begin, end),) in self.sections
        ]

    @cached_property
    def longest(self) -> slice:
        """The slice of `numbers` with the largest parameter's values; each has one section."""
        first = self.sections[0][0][1]
        dtype, begin, end = max((one[0] for one in self.sections), key=lambda x: x[2] - x[1])
        return slice((begin - first) // dtype.itemsize, (end - first) // dtype.itemsize)

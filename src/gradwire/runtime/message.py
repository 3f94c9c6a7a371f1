"""One packed message: a header of 32 bytes, then the sections of every parameter.

    0        8        16       24       32
    │ magic  │ flags  │ digest │ step   │ p0.section0 p0.section1 p1.section0 …      │ pad to 8

The sizes follow from the plan alone, so nothing about them travels; the digest of the plan does.
Bare numbers (for AllReduce, where the network adds) are the same buffer without its header.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gradwire.errors import PayloadError
from gradwire.strategy import Claims

HEADER_BYTES = 32
_MAGIC = 0x31455249_57445247  # "GRDWIRE1", little endian
_NON_FINITE = 1


@dataclass(frozen=True)
class Layout:
    """Where each section lies in a message, and how long it is."""

    sections: tuple[tuple[tuple[torch.dtype, int, int], ...], ...]  # (dtype, begin, end) in bytes
    bytes: int

    @staticmethod
    def of(claims: Sequence[Claims]) -> Layout:
        """The layout for parameters with these claims, in order."""
        at, parameters = HEADER_BYTES, []
        for claim in claims:
            sections = []
            for name, count in claim.sections:
                dtype: torch.dtype = getattr(torch, name)
                at += -at % dtype.itemsize
                sections.append((dtype, at, at + count * dtype.itemsize))
                at = sections[-1][2]
            parameters.append(tuple(sections))
        return Layout(tuple(parameters), at + -at % 8)

    def views(self, message: Tensor) -> list[tuple[Tensor, ...]]:
        """The sections of each parameter, sharing the message's memory."""
        return [
            tuple(message[begin:end].view(dtype) for dtype, begin, end in sections)
            for sections in self.sections
        ]

    def numbers(self, message: Tensor) -> Tensor:
        """All values of a one-dtype layout, as one tensor without the header."""
        dtype, begin, _ = self.sections[0][0]
        end = self.sections[-1][-1][2]
        return message[begin:end].view(dtype)


def write_header(message: Tensor, digest: int, step: int, finite: bool) -> None:
    """Stamp a message."""
    facts = [_MAGIC, 0 if finite else _NON_FINITE, digest, step]
    message[:HEADER_BYTES].view(torch.int64).copy_(torch.tensor(facts))


def check_size(messages: Tensor, world: int, size: int) -> None:
    """PayloadError unless there is one message of that many bytes per rank."""
    if tuple(messages.shape) != (world, size):
        raise PayloadError(
            f"{world} ranks send {size} bytes each, by the plan; {tuple(messages.shape)} arrived. "
            "Attach the same plan everywhere."
        )


def read_headers(messages: Tensor, digest: int, step: int) -> bool:
    """Check the headers of (n, bytes) messages; True if every rank was finite.

    Raises:
        PayloadError: naming the rank whose message is of another plan, another step, or broken.
    """
    headers = messages[:, :HEADER_BYTES].view(torch.int64).tolist()
    for rank, (magic, flags, theirs, when) in enumerate(headers):
        if magic != _MAGIC or flags not in (0, _NON_FINITE):
            raise PayloadError(
                f"a message begins with gradwire's header; rank {rank}'s begins with "
                f"{magic:#x}, {flags:#x}. The network or another collective corrupted it: run "
                "`gradwire doctor`, and issue no other collectives on gradwire's groups."
            )
        if theirs != digest:
            raise PayloadError(
                f"all ranks follow one plan; rank {rank} sent a message of another bucket "
                f"(digest {theirs:#x}, expected {digest:#x}). Attach the same plan everywhere."
            )
        if when != step:
            raise PayloadError(
                f"all ranks take the same steps; rank {rank} is at step {when}, this one at "
                f"{step}. Call backward() equally often on every rank (see no_sync)."
            )
    return all(flags == 0 for _, flags, _, _ in headers)

"""Writes the header of a message, and checks messages before their use.

`layout.message` says where things lie in one. The digest of the plan is sent, its sizes are not.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from gradwire import kernels
from gradwire.errors import PayloadError
from gradwire.kernels import DAMAGED, NON_FINITE
from gradwire.layout.message import HEADER_BYTES, WIRE_VERSION, Layout
from gradwire.member import ALIGNED, padded
from gradwire.strategy import Sections

_MAGIC = int.from_bytes(b"GRDWIRE%d" % WIRE_VERSION, "little")


class Header:
    """The header of one bucket's messages, written in place step after step.

    others: messages with the same header. status: the flags, (1,) int64; encoders raise them in
    place between `write` and `spread`.
    """

    def __init__(self, message: Tensor, *others: Tensor) -> None:
        self._stamp, self._others = header_of(message), [header_of(other) for other in others]
        self.status = self._stamp[1:2]

    def write(self, digest: int, step: int, flags: int = 0) -> None:
        """Writes the header of the first message. flags: NON_FINITE; DAMAGED if the sender cannot
        use what it received, so that no rank goes on."""
        kernels.stamp(self._stamp, (_MAGIC, flags, digest, step))

    def spread(self) -> None:
        """Copies the first message's header, with its flags, into the others."""
        for other in self._others:
            other.copy_(self._stamp)


def facts_of(digest: int, step: int) -> tuple[int, int, int]:
    """Returns the words that all headers of a step share; flags are not among them."""
    return _MAGIC, digest, step


def header_of(messages: Tensor) -> Tensor:
    """Returns the four words of a message's header, or of each of (n, bytes) messages, as a
    view."""
    return messages[..., :HEADER_BYTES].view(torch.int64)


def used(section: Tensor) -> int:
    """Returns the bytes used of a ragged payload, its own 8 bytes of length included."""
    return int(section[:8].view(torch.int64))


def check_size(messages: Tensor, world: int, size: int) -> None:
    """Raises PayloadError unless there is one message of `size` bytes per rank."""
    if tuple(messages.shape) != (world, size):
        raise PayloadError(
            f"by the plan each of {world} ranks sends {size} bytes; {tuple(messages.shape)} "
            "arrived. Attach the same plan on every rank."
        )


def check_headers(headers: Tensor, digest: int, step: int) -> bool:
    """Checks the (n, 4) headers of n ranks' messages. Returns whether every rank was finite.

    Raises:
        PayloadError: a message is of another plan or step, or broken; the error names the rank.
    """
    facts = headers.tolist()
    for rank, (magic, flags, theirs, _) in enumerate(facts):
        if magic != _MAGIC or flags & ~(NON_FINITE | DAMAGED):
            raise PayloadError(
                f"a message must begin with gradwire's header; rank {rank}'s begins with "
                f"{magic:#x}, {flags:#x}. The network or another collective corrupted it: run "
                "`gradwire doctor`, and issue no other collectives on gradwire's groups."
            )
        if theirs != digest:
            raise PayloadError(
                f"all ranks must follow one plan; rank {rank} sent a message of another bucket "
                f"(digest {theirs:#x}, expected {digest:#x}). Attach the same plan on every rank."
            )
    others = [f"rank {rank} is at step {at}" for rank, (*_, at) in enumerate(facts) if at != step]
    if others:
        raise PayloadError(
            f"all ranks must take the same steps; {', '.join(others)}, this one at {step}. Call "
            "backward() equally often on every rank (see no_sync)."
        )
    damaged = [rank for rank, (_, flags, _, _) in enumerate(facts) if flags & DAMAGED]
    if damaged:
        raise PayloadError(
            f"every payload must arrive undamaged; rank {damaged[0]} received a damaged payload "
            f"in step {step}. Look at that rank's own log."
        )
    return all(flags == 0 for _, flags, _, _ in facts)


class Inbox:
    """The messages that arrived for one bucket, one per rank, as views of the network's buffer.
    Views are kept from step to step while the buffer stays the same.

    layouts: of each rank's message. ragged: messages are as long as the longest of the step, and
    payloads follow one another.
    """

    def __init__(self, layouts: Sequence[Layout], ragged: bool = False) -> None:
        self._layouts, self.world, self.ragged = layouts, len(layouts), ragged
        self.bytes = max(layout.bytes for layout in layouts)  # of the longest message
        self._seen: tuple[int, bool, torch.Size] | None = None  # the buffer that views are of
        self._headers: Tensor | None = None
        self._payloads: list[list[Sections]] | None = None

    def check(self, messages: Tensor) -> None:
        """Raises PayloadError unless there is one message per rank, of a size that it may have."""
        world, most = self.world, self.bytes
        if not self.ragged:
            check_size(messages, world, most)
            return
        count, size = messages.shape
        if count != world or not HEADER_BYTES <= size <= most or size % ALIGNED:
            raise PayloadError(
                f"each of {world} ranks sends {HEADER_BYTES} to {most} bytes, a multiple of "
                f"{ALIGNED}; {tuple(messages.shape)} arrived. The lengths that were exchanged are "
                "damaged: run `gradwire doctor`."
            )

    def headers(self, messages: Tensor) -> Tensor:
        """Returns the headers of all messages, (world, 4)."""
        self._look(messages, as_numbers=False)
        if self._headers is None:
            self._headers = header_of(messages)
        return self._headers

    def payloads(self, messages: Tensor) -> Sequence[Sequence[Sections]]:
        """Returns the payloads, by parameter, then by rank. Raises PayloadError."""
        if self.ragged:
            capacities = [end - begin for ((_, begin, end),) in self._layouts[0].sections]
            ragged = [_split(message, capacities, r) for r, message in enumerate(messages)]
            return [[(part,) for part in parts] for parts in zip(*ragged)]
        self._look(messages, as_numbers=False)
        if self._payloads is None:
            arrived = zip(self._layouts, messages)
            by_rank = [layout.views(message[: layout.bytes]) for layout, message in arrived]
            self._payloads = [list(parts) for parts in zip(*by_rank)]
        return self._payloads

    def values(self, total: Tensor) -> Sequence[Sequence[Sections]]:
        """Returns the sums of a one-dtype layout's numbers, as one payload for each parameter."""
        layout = self._layouts[0]
        if len(layout.sections) == 1:  # it may be a gradient, which is new every step
            return [[(total,)]]
        self._look(total, as_numbers=True)
        if self._payloads is None:
            self._payloads = [[(part,)] for part in layout.values(total)]
        return self._payloads

    def _look(self, arrived: Tensor, as_numbers: bool) -> None:
        """Forgets views of another buffer. Views keep their buffer's memory alive, so an equal
        address means the same buffer."""
        before, self._seen = self._seen, (arrived.data_ptr(), as_numbers, arrived.shape)
        if before != self._seen:
            self._headers = self._payloads = None


def _split(message: Tensor, capacities: Sequence[int], rank: int) -> list[Tensor]:
    """Splits a ragged message into its payloads, without padding. Raises PayloadError at a length
    that no payload can have."""
    at, parts = HEADER_BYTES, []
    for capacity in capacities:
        size = used(message[at : at + 8]) if at + 8 <= len(message) else 0
        if not 8 <= size <= capacity or at + size > len(message):
            raise PayloadError(
                f"a payload of rank {rank} must have 8 to {capacity} bytes, within a message of "
                f"{len(message)}; got {size} at byte {at}. The message is damaged: run `gradwire "
                "doctor`."
            )
        parts.append(message[at : at + size])
        at += padded(size)
    return parts

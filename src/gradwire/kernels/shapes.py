"""The size in bytes of a list whose places come in crowds; `crowds` defines its code."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from gradwire.errors import PayloadError
from gradwire.kernels.core import Part, Parts
from gradwire.kernels.dealing import CHUNK
from gradwire.kernels.index_codes import INDEX_CODES, code_bytes, smallest
from gradwire.kernels.tensors import check_index_range

CROWD = 3
"""The number of places from which on a chunk is crowded."""
MASK_BYTES = CHUNK // 8


class Shape(NamedTuple):
    """The counts that determine the size of a list's code.

    entries: all places. crowded: crowded chunks. full: how many of these are full. thin: the
    places outside of crowded chunks. If coding crowds takes no fewer bytes, crowded and full are
    0, and thin is all places.
    """

    entries: int
    crowded: int
    full: int
    thin: int

    def is_possible(self, n: int) -> bool:
        """Whether a list of places below n can have this shape."""
        masks, chunks = self.crowded - self.full, -(-n // CHUNK)
        least, most = (self.thin + CHUNK * self.full + p * masks for p in (CROWD, CHUNK - 1))
        return (
            min(self) >= 0 and self.full <= self.crowded <= chunks
            and least <= self.entries <= min(most, n)
        )  # fmt: skip


@lru_cache(256)  # called several times for each message
def parts_of(n: int, shape: Shape) -> Parts:
    """Returns the codes and the sizes of a section's lists."""
    return (
        _part(-(-n // CHUNK), shape.crowded), _part(shape.crowded, shape.full),
        _part(n, shape.thin),
    )  # fmt: skip


def _part(n: int, k: int) -> Part:
    code = smallest(n, k)
    return INDEX_CODES.index(code), n, k, code_bytes(code, n, k)


def bytes_of(n: int, shape: Shape) -> int:
    """Returns the bytes that a list of this shape takes; the shape is known to be possible."""
    masks = MASK_BYTES * (shape.crowded - shape.full)
    return masks + sum(size for *_, size in parts_of(n, shape))


def shaped_bytes(n: int, shape: Shape) -> int:
    """Returns the bytes that a list of this shape takes. Raises PayloadError if no list of places
    below n can have it."""
    check_index_range(n)
    if not shape.is_possible(n):
        raise PayloadError(
            f"no list of places below {n} has {tuple(shape)} entries, crowded and full chunks of "
            f"{CHUNK}, and places outside of them; the message is damaged: run `gradwire doctor`"
        )
    return bytes_of(n, shape)

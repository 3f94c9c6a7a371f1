"""How many bytes a list takes whose places come in crowds: `crowds` says how it is coded."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from gradwire.errors import PayloadError
from gradwire.kernels.core import Part, Parts
from gradwire.kernels.dealing import CHUNK
from gradwire.kernels.index_codes import INDEX_CODES, code_bytes, smallest
from gradwire.kernels.tensors import check_index_range

CROWD = 3
"""So many places of a chunk are a crowd."""
MASK_BYTES = CHUNK // 8


class Shape(NamedTuple):
    """What the size of a list's code follows from.

    entries: all places. crowded: chunks; full: so many of these. thin: the places that are in
    none of them. Crowds that do not pay are not counted: then thin is all places.
    """

    entries: int
    crowded: int
    full: int
    thin: int

    def is_possible(self, n: int) -> bool:
        """Whether a list of places below n can have it."""
        masks, chunks = self.crowded - self.full, -(-n // CHUNK)
        least, most = (self.thin + CHUNK * self.full + p * masks for p in (CROWD, CHUNK - 1))
        return (
            min(self) >= 0 and self.full <= self.crowded <= chunks
            and least <= self.entries <= min(most, n)
        )  # fmt: skip


@lru_cache(256)  # a message's are asked for again and again
def parts_of(n: int, shape: Shape) -> Parts:
    """The lists of a section: their codes and their sizes."""
    return (
        _part(-(-n // CHUNK), shape.crowded), _part(shape.crowded, shape.full),
        _part(n, shape.thin),
    )  # fmt: skip


def _part(n: int, k: int) -> Part:
    code = smallest(n, k)
    return INDEX_CODES.index(code), n, k, code_bytes(code, n, k)


def bytes_of(n: int, shape: Shape) -> int:
    """The bytes that a list of this shape takes; it is known to be possible."""
    masks = MASK_BYTES * (shape.crowded - shape.full)
    return masks + sum(size for *_, size in parts_of(n, shape))


def shaped_bytes(n: int, shape: Shape) -> int:
    """The bytes that a list of this shape takes. PayloadError if none below n can have it."""
    check_index_range(n)
    if not shape.is_possible(n):
        raise PayloadError(
            f"no list of places below {n} has {tuple(shape)} entries, crowded and full chunks of "
            f"{CHUNK}, and places outside of them; the message is damaged: run `gradwire doctor`"
        )
    return bytes_of(n, shape)

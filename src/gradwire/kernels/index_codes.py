"""Codes of sorted index lists: k indices, strictly ascending in 0 ... n-1, without loss.

The bytes of each code depend on n and k alone, so the size of a message is known before the step;
every list has one code, and a section that is not the code of a list is refused. In this order:

int32       the indices, 4 bytes each.
gap16       16-bit words: one below 65535 skips that many places and names the next; 65535 skips
            65535 places and names none. k + (n-k) // 65535 words, the unused ones 0.
gap8        the same in 8-bit words, with 255 for 65535.
elias_fano  with l = floor(log2(n/k)): the low l bits of each index, one after the other; then, in
            whole bytes again, k + ((n-1) >> l) bits with ones at (index >> l) + position in list.
bitmap      n bits with ones at the indices. (The other codes take no bytes for k = 0.)

Words are little endian, bits fill a byte from the lowest, and the rest of a last byte is 0.
Source of elias_fano: Elias, JACM 21(2), 1974, and Fano, MIT memo 61, 1971.
"""

from collections.abc import Callable
from functools import lru_cache

from gradwire.errors import KernelError
from gradwire.kernels.tensors import check_index_range

GAP_BYTES = {"gap16": 2, "gap8": 1}


def escape_of(code: str) -> int:
    """Returns the largest word: it skips this many places, and the gap continues."""
    return (1 << 8 * GAP_BYTES[code]) - 1


def whole_bytes(bits: int) -> int:
    """Returns the number of bytes that hold so many bits."""
    return -(-bits // 8)


def low_width(n: int, k: int) -> int:
    """Returns the number of low bits of an index in elias_fano, floor(log2(n/k))."""
    return (n // k).bit_length() - 1


def _gaps(code: str, n: int, k: int) -> int:
    """Returns the bytes of a gap code: k words name an index, and escapes skip the n-k others."""
    return GAP_BYTES[code] * (k + (n - k) // escape_of(code)) if k else 0


def _elias_fano(n: int, k: int) -> int:
    if k == 0:
        return 0
    low = low_width(n, k)
    return whole_bytes(k * low) + whole_bytes(k + (n - 1 >> low))


_BYTES: dict[str, Callable[[int, int], int]] = {
    "int32": lambda n, k: 4 * k,
    "gap16": lambda n, k: _gaps("gap16", n, k),
    "gap8": lambda n, k: _gaps("gap8", n, k),
    "elias_fano": _elias_fano,
    "bitmap": lambda n, k: whole_bytes(n),
}

INDEX_CODES = tuple(_BYTES)
"""The names, in the order that settles ties; position = the number that the extension uses."""


def check_list(n: int, k: int) -> None:
    """Raises KernelError unless n elements can have a list of k indices."""
    check_index_range(n)
    if not 0 <= k <= n:
        raise KernelError(
            f"k must be between 0 and the number of elements, {n}, not {k}; lower the density"
        )


@lru_cache(1 << 14)  # called for each payload, with the same numbers in every step
def code_bytes(code: str, n: int, k: int) -> int:
    """Returns the bytes that k indices of n elements take in this code. Raises KernelError."""
    if code not in _BYTES:
        raise KernelError(
            f"index code must be one of {', '.join(INDEX_CODES)}, not {code!r}; choose one"
        )
    check_list(n, k)
    return _BYTES[code](n, k)


@lru_cache(1 << 14)
def smallest(n: int, k: int) -> str:
    """Returns the code with the fewest bytes for k indices of n elements; ties go to the first in
    the order of INDEX_CODES.

    Raises KernelError.
    """
    check_list(n, k)
    return min(INDEX_CODES, key=lambda code: _BYTES[code](n, k))

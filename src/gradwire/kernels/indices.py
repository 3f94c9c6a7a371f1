"""Codes of sorted index lists: k indices, strictly ascending in 0 ... n-1, without loss.

The bytes of each code depend on n and k alone, so the size of a message is known before the step;
every list has one code, and a section that is not the code of a list is refused. In this order:

int32       the indices, 4 bytes each.
gap16       16-bit words: one below 65535 leaves out that many places and names the next; 65535
            leaves out 65535 places and names none. k + (n-k) // 65535 words, the unused ones 0.
gap8        the same in 8-bit words, with 255 for 65535.
elias_fano  with l = floor(log2(n/k)): the low l bits of each index, one after the other; then, in
            whole bytes again, k + ((n-1) >> l) bits with ones at (index >> l) + position in list.
bitmap      n bits with ones at the indices. (The others take nothing for k = 0.)

Words are little endian, bits fill a byte from the lowest, and the rest of a last byte is 0.
Source of elias_fano: Elias, JACM 21(2), 1974, and Fano, MIT memo 61, 1971.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from gradwire.errors import KernelError, PayloadError
from gradwire.kernels.core import Core
from gradwire.kernels.native import core_for
from gradwire.kernels.sparse import first_violation
from gradwire.kernels.tensors import (
    check_apart,
    check_buffer,
    check_index_range,
    check_memory,
    check_places,
    check_same_device,
    pointer,
)

_GAP_BYTES = {"gap16": 2, "gap8": 1}


def _escape(code: str) -> int:
    """The largest word: this many places are left out, and the gap goes on."""
    return (1 << 8 * _GAP_BYTES[code]) - 1


def _whole(bits: int) -> int:
    """The bytes that hold so many bits."""
    return -(-bits // 8)


def _width(n: int, k: int) -> int:
    """Low bits of an index in elias_fano, floor(log2(n/k))."""
    return (n // k).bit_length() - 1


def _gaps(code: str, n: int, k: int) -> int:
    """k words name an index; an escape leaves out places, of which there are n-k."""
    return _GAP_BYTES[code] * (k + (n - k) // _escape(code)) if k else 0


def _elias_fano(n: int, k: int) -> int:
    if k == 0:
        return 0
    width = _width(n, k)
    return _whole(k * width) + _whole(k + (n - 1 >> width))


_BYTES: dict[str, Callable[[int, int], int]] = {
    "int32": lambda n, k: 4 * k,
    "gap16": lambda n, k: _gaps("gap16", n, k),
    "gap8": lambda n, k: _gaps("gap8", n, k),
    "elias_fano": _elias_fano,
    "bitmap": lambda n, k: _whole(n),
}

INDEX_CODES = tuple(_BYTES)
"""The names, in the order that settles ties; position = the number that the extension uses."""


def check_list(n: int, k: int) -> None:
    """KernelError unless n elements can have a list of k indices."""
    check_index_range(n)
    if not 0 <= k <= n:
        raise KernelError(
            f"k must be between 0 and the number of elements, {n}, not {k}; lower the density"
        )


def code_bytes(code: str, n: int, k: int) -> int:
    """The bytes that k indices of n elements take. Raises KernelError."""
    if code not in _BYTES:
        raise KernelError(
            f"index code must be one of {', '.join(INDEX_CODES)}, not {code!r}; choose one"
        )
    check_list(n, k)
    return _BYTES[code](n, k)


def smallest(n: int, k: int) -> str:
    """The code with the fewest bytes for k indices of n elements, of equals the first in order.

    Raises KernelError.
    """
    check_list(n, k)
    return min(INDEX_CODES, key=lambda code: _BYTES[code](n, k))


def check_encode(indices: Tensor, n: int, section: Tensor, size: int, core: Core | None) -> None:
    """KernelError unless they are a list below n, and the section has room for its code."""
    check_places("indices", indices)
    check_buffer("section", section, torch.uint8, size)
    check_same_device(indices, section=section)
    check_apart("section", section, indices)
    position = first_violation(indices, n, core)
    if position < indices.numel():
        raise KernelError(
            f"indices must ascend strictly within 0 ... {n - 1}, but entry {position} is "
            f"{int(indices[position])}; sort them, and check n"
        )


def encode_indices(indices: Tensor, n: int, code: str, section: Tensor) -> None:
    """Writes the code of the indices, every byte of the section.

    indices: (k,) int32, strictly ascending within 0 ... n-1. code: one of INDEX_CODES. section:
    (code_bytes(code, n, k),) uint8, contiguous, written. Raises KernelError.
    """
    found = core_for(indices, section)
    if found is None:
        encode_indices_twin(indices, n, code, section)
        return
    core, _ = found
    check_encode(indices, n, section, code_bytes(code, n, indices.numel()), core)
    indices = indices.contiguous()
    number, k, size = INDEX_CODES.index(code), indices.numel(), section.numel()
    core.encode_indices(number, n, k, pointer(indices), pointer(section), size)


def encode_indices_twin(indices: Tensor, n: int, code: str, section: Tensor) -> None:
    """`encode_indices` in torch."""
    check_encode(indices, n, section, code_bytes(code, n, indices.numel()), None)
    if indices.numel() == 0:
        section.zero_()
    elif code == "int32":
        section.copy_(_apart(indices).view(torch.uint8))
    elif code == "bitmap":
        section.copy_(_packed(_ones(indices.long(), n)))
    elif code == "elias_fano":
        section.copy_(_elias_fano_twin(indices.long(), n))
    else:
        words = _words_twin(indices.long(), _escape(code), section.numel() // _GAP_BYTES[code])
        section.copy_(_bytes_of_words(words, _GAP_BYTES[code]))


def _count(k: int, like: Tensor) -> Tensor:
    return torch.arange(k, device=like.device)


def _ones(places: Tensor, size: int) -> Tensor:
    """(size,) zeros, with ones at the places."""
    bits = torch.zeros(size, dtype=torch.uint8, device=places.device)
    bits[places] = 1
    return bits


def _packed(bits: Tensor) -> Tensor:
    """(m,) zeros and ones as (ceil(m/8),) bytes."""
    whole = torch.nn.functional.pad(bits, (0, -bits.numel() % 8)).reshape(-1, 8)
    return (whole << _count(8, bits)).sum(1).to(torch.uint8)


def _bits(section: Tensor) -> Tensor:
    """(b,) bytes as (8 b,) zeros and ones, int64."""
    return (section.long().unsqueeze(1) >> _count(8, section) & 1).flatten()


def _elias_fano_twin(indices: Tensor, n: int) -> Tensor:
    k = indices.numel()
    width = _width(n, k)
    low = (indices.unsqueeze(1) >> _count(width, indices) & 1).flatten()
    high = _ones((indices >> width) + _count(k, indices), k + (n - 1 >> width))
    return torch.cat([_packed(low), _packed(high)])


def _words_twin(indices: Tensor, escape: int, count: int) -> Tensor:
    """(count,) words, int64: each gap's escapes, then its rest."""
    left_out = indices.diff(prepend=indices.new_full((1,), -1)) - 1
    last = (left_out // escape + 1).cumsum(0) - 1
    words = indices.new_zeros(count)
    words[: int(last[-1])] = escape
    words[last] = left_out % escape
    return words


def _bytes_of_words(words: Tensor, width: int) -> Tensor:
    shifts = 8 * _count(width, words)
    return (words.unsqueeze(1) >> shifts & 255).flatten().to(torch.uint8)


def _check_decode(section: Tensor, n: int, code: str, indices_out: Tensor) -> None:
    k = indices_out.numel()
    check_buffer("indices_out", indices_out, torch.int32, k)
    check_section(f"{code} code of {k} indices below {n}", section, code_bytes(code, n, k))
    check_same_device(section, indices_out=indices_out)
    check_apart("indices_out", indices_out, section)


def check_section(what: str, section: Tensor, size: int) -> None:
    """PayloadError unless a section that arrived is so many bytes."""
    if section.dtype != torch.uint8 or section.shape != (size,):
        raise PayloadError(
            f"the {what} must be uint8 of shape ({size},), not {section.dtype} of shape "
            f"{tuple(section.shape)}; check the sender's format"
        )
    check_memory(what, section)


def _check_decoded(position: int, n: int, code: str, k: int) -> None:
    """PayloadError for what decoding returned: a bad entry's position, or k + 1; k is right."""
    if position == k:
        return
    if position < k:
        wrong = f"entry {position} is missing, out of range or not above the one before"
    else:
        wrong = "what follows the last entry is not 0"
    raise PayloadError(
        f"the {code} code must hold {k} indices that ascend strictly within 0 ... {n - 1}, and "
        f"then zeros, but {wrong}; the message is damaged or belongs to another parameter"
    )


def decode_indices(section: Tensor, n: int, code: str, indices_out: Tensor) -> None:
    """Reads the k indices from their code, whatever bytes the section holds.

    section: (code_bytes(code, n, k),) uint8. n: elements. code: one of INDEX_CODES. indices_out:
    (k,) int32, contiguous, written: strictly ascending within 0 ... n-1.
    Raises PayloadError when no list of k indices has this code, naming the first entry that is
    wrong, and indices_out then means nothing; KernelError for indices_out, n and code.
    """
    found = core_for(section, indices_out)
    if found is None:
        decode_indices_twin(section, n, code, indices_out)
        return
    core, which = found
    _check_decode(section, n, code, indices_out)
    section = section.contiguous()
    number, k, size = INDEX_CODES.index(code), indices_out.numel(), section.numel()
    position = core.decode_indices(
        which, number, n, k, pointer(section), size, pointer(indices_out)
    )
    _check_decoded(position, n, code, k)


def decode_indices_twin(section: Tensor, n: int, code: str, indices_out: Tensor) -> None:
    """`decode_indices` in torch."""
    _check_decode(section, n, code, indices_out)
    k = indices_out.numel()
    entries, clean = _read(section, n, code, k)
    position = first_violation(entries, n, None)
    _check_decoded(position if position < k or clean else k + 1, n, code, k)
    indices_out.copy_(entries)


def _apart(x: Tensor) -> Tensor:
    """A copy: a view of another type must be aligned, and one element may have any stride."""
    return x.clone(memory_format=torch.contiguous_format)


def _read(section: Tensor, n: int, code: str, k: int) -> tuple[Tensor, bool]:
    """The first entries, at most k, int64, unchecked; and whether all that follows them is 0."""
    if code == "int32":
        return _apart(section).view(torch.int32).long(), True
    if code == "bitmap" or k == 0:
        places = _bits(section).nonzero().flatten()
        return places[:k], places.numel() <= k
    if code == "elias_fano":
        return _read_elias_fano(section, n, k)
    return _read_gaps(section, code, k)


def _read_elias_fano(section: Tensor, n: int, k: int) -> tuple[Tensor, bool]:
    width = _width(n, k)
    low, high = section.tensor_split([_whole(k * width)])
    low_bits, places = _bits(low), _bits(high).nonzero().flatten()
    rest = (low_bits[: k * width].view(k, width) << _count(width, low)).sum(1)
    found = places[:k]
    entries = (found - _count(found.numel(), low) << width) | rest[: found.numel()]
    return entries, places.numel() <= k and not bool(low_bits[k * width :].any())


def _read_gaps(section: Tensor, code: str, k: int) -> tuple[Tensor, bool]:
    width, escape = _GAP_BYTES[code], _escape(code)
    words = (section.long().view(-1, width) << 8 * _count(width, section)).sum(1)
    names = words != escape
    after = (words + names.long()).cumsum(0)
    places = names.nonzero().flatten()[:k]
    used = int(places[-1]) + 1 if places.numel() else 0
    return after[places] - 1, not bool(words[used:].any())

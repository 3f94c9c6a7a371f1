"""Codes of index lists in torch."""

from collections.abc import Sequence

import torch
from torch import Tensor

from gradwire.kernels.held import held_by
from gradwire.kernels.index_codes import GAP_BYTES, escape_of, low_width, whole_bytes
from gradwire.kernels.segments import SumCoded, WriteEntries
from gradwire.kernels.torch.sparse import accumulate, add, first_violation


def encode_indices(indices: Tensor, n: int, code: str, section: Tensor) -> None:
    if indices.numel() == 0:
        section.zero_()
    elif code == "int32":
        section.copy_(_apart(indices).view(torch.uint8))
    elif code == "bitmap":
        section.copy_(_packed(_ones(indices.long(), n)))
    elif code == "elias_fano":
        section.copy_(_elias_fano(indices.long(), n))
    else:
        words = _words(indices.long(), escape_of(code), section.numel() // GAP_BYTES[code])
        section.copy_(_bytes_of_words(words, GAP_BYTES[code]))


def _count(k: int, like: Tensor) -> Tensor:
    return torch.arange(k, device=like.device)


def _ones(places: Tensor, size: int) -> Tensor:
    """Returns (size,) zeros, with ones at the places."""
    bits = torch.zeros(size, dtype=torch.uint8, device=places.device)
    bits[places] = 1
    return bits


def _packed(bits: Tensor) -> Tensor:
    """Packs (m,) zeros and ones into (ceil(m/8),) bytes."""
    whole = torch.nn.functional.pad(bits, (0, -bits.numel() % 8)).reshape(-1, 8)
    return (whole << _count(8, bits)).sum(1).to(torch.uint8)


def _bits(section: Tensor) -> Tensor:
    """Unpacks (b,) bytes to (8 b,) zeros and ones, int64."""
    return (section.long().unsqueeze(1) >> _count(8, section) & 1).flatten()


def _elias_fano(indices: Tensor, n: int) -> Tensor:
    k = indices.numel()
    width = low_width(n, k)
    low = (indices.unsqueeze(1) >> _count(width, indices) & 1).flatten()
    high = _ones((indices >> width) + _count(k, indices), k + (n - 1 >> width))
    return torch.cat([_packed(low), _packed(high)])


def _words(indices: Tensor, escape: int, count: int) -> Tensor:
    """Returns (count,) words, int64: each gap's escapes, then its rest."""
    left_out = indices.diff(prepend=indices.new_full((1,), -1)) - 1
    last = (left_out // escape + 1).cumsum(0) - 1
    words = indices.new_zeros(count)
    words[: int(last[-1])] = escape
    words[last] = left_out % escape
    return words


def _bytes_of_words(words: Tensor, width: int) -> Tensor:
    shifts = 8 * _count(width, words)
    return (words.unsqueeze(1) >> shifts & 255).flatten().to(torch.uint8)


def write_entries(segments: Sequence[WriteEntries]) -> int:
    for number_of, one in enumerate(segments):
        places, values, n, code, section, out, sent, residual = one
        if first_violation(places, n) < places.numel():
            return number_of
        if section.dtype == torch.int32:
            section.copy_(places)
        else:
            encode_indices(places, n, code, section)
        out.copy_(values)
        if out.dtype != torch.float32:
            largest = torch.finfo(out.dtype).max
            out.clamp_(-largest, largest)
        if sent is not None:
            sent.copy_(out)
        if sent is not None and residual is not None:
            residual[places.long()] += values.sub_(sent)
    return len(segments)


def decode_indices(section: Tensor, n: int, code: str, indices_out: Tensor) -> int:
    k = indices_out.numel()
    entries, clean = _read(section, n, code, k)
    position = first_violation(entries, n)
    if position < k or not clean:
        return position if position < k else k + 1
    indices_out.copy_(entries)
    return k


def _apart(x: Tensor) -> Tensor:
    """Returns a copy: a view of another dtype must be aligned, and one element may have any
    stride."""
    return x.clone(memory_format=torch.contiguous_format)


def _read(section: Tensor, n: int, code: str, k: int) -> tuple[Tensor, bool]:
    """Returns the first entries, at most k, int64, unchecked; and whether all that follows them
    is 0."""
    if code == "int32":
        return _apart(section).view(torch.int32).long(), True
    if code == "bitmap" or k == 0:
        places = _bits(section).nonzero().flatten()
        return places[:k], places.numel() <= k
    if code == "elias_fano":
        return _read_elias_fano(section, n, k)
    return _read_gaps(section, code, k)


def _read_elias_fano(section: Tensor, n: int, k: int) -> tuple[Tensor, bool]:
    width = low_width(n, k)
    low, high = section.tensor_split([whole_bytes(k * width)])
    low_bits, places = _bits(low), _bits(high).nonzero().flatten()
    rest = (low_bits[: k * width].view(k, width) << _count(width, low)).sum(1)
    found = places[:k]
    entries = (found - _count(found.numel(), low) << width) | rest[: found.numel()]
    return entries, places.numel() <= k and not bool(low_bits[k * width :].any())


def _read_gaps(section: Tensor, code: str, k: int) -> tuple[Tensor, bool]:
    width, escape = GAP_BYTES[code], escape_of(code)
    words = (section.long().view(-1, width) << 8 * _count(width, section)).sum(1)
    names = words != escape
    after = (words + names.long()).cumsum(0)
    places = names.nonzero().flatten()[:k]
    used = int(places[-1]) + 1 if places.numel() else 0
    return after[places] - 1, not bool(words[used:].any())


def add_coded(v: Tensor, section: Tensor, code: str, values: Tensor, factor: float) -> bool:
    places = torch.empty(values.numel(), dtype=torch.int32, device=v.device)
    given = section.contiguous().view(torch.uint8)
    if decode_indices(given, v.numel(), code, places) != values.numel():
        return False
    add(v, places, values.float(), factor)
    return True


def _accumulate_coded(segments: Sequence[SumCoded]) -> int:
    """Sums list after list; returns how many segments are valid."""
    for number, (out, codes, sections, values, divisor) in enumerate(segments):
        lists = []
        for code, section, value in zip(codes, sections, values):
            lists.append(torch.empty(value.numel(), dtype=torch.int32, device=out.device))
            given = section.contiguous().view(torch.uint8)
            if decode_indices(given, out.numel(), code, lists[-1]) != value.numel():
                return number
        accumulate(out, lists, values, divisor)
    return len(segments)


def accumulate_coded(segments: Sequence[SumCoded], status: Tensor | None = None) -> int:
    return held_by(status, _accumulate_coded, segments)

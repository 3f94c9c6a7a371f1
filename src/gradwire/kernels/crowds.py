"""Codes of sorted lists whose places come in crowds: crowds as masks, the others as numbers.

A chunk is 16 places, from a multiple of 16 on. It is crowded if the list has three of them or
more: then 16 bits are less than three numbers. A section holds, one after the other,

crowded  which chunks are crowded;
full     which of these, counted among them, have all 16;
masks    16 bits for each of the others, ones at the places, little endian;
thin     the places in chunks that are not crowded,

lists in their smallest code of `indices`. So whole rows take a few bits for 16 places, and places
at random what they take in one list. Where one list of all places is no more bytes, it is the
code: then nothing counts as crowded. All sizes follow from a list's `Shape`, which is a function
of the list: every list has one code, and a section that is not the code of a list is refused.
Source of the idea: Roaring bitmaps, whose containers are arrays, bitmaps and runs (Chambi et al.
2016, "Better bitmap performance with Roaring bitmaps").
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

from gradwire.errors import KernelError, PayloadError
from gradwire.kernels.core import Core
from gradwire.kernels.core_streams import Part
from gradwire.kernels.indices import (
    INDEX_CODES,
    check_encode,
    check_section,
    code_bytes,
    decode_indices_twin,
    encode_indices_twin,
    smallest,
)
from gradwire.kernels.native import core_for
from gradwire.kernels.streams import CHUNK
from gradwire.kernels.tensors import (
    check_apart,
    check_buffer,
    check_index_range,
    check_places,
    check_same_device,
    pointer,
)

_CROWD = 3
_MASK_BYTES = CHUNK // 8
_DAMAGED = (
    "", "the list of crowded chunks", "the list of full chunks", "the list of other places",
    "what they are together",
)  # fmt: skip

Parts: TypeAlias = tuple[Part, Part, Part]


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
        least, most = (self.thin + CHUNK * self.full + p * masks for p in (_CROWD, CHUNK - 1))
        return (
            min(self) >= 0 and self.full <= self.crowded <= chunks
            and least <= self.entries <= min(most, n)
        )  # fmt: skip


def shape_of(places: Tensor, n: int) -> Shape:
    """The shape of a list: of its crowds, if they pay.

    places: (k,) int32, strictly ascending within 0 ... n-1, of which the first alone is looked at.
    Raises KernelError.
    """
    check_index_range(n)
    check_places("places", places)
    if places.numel() and int(places[0]) < 0:
        raise KernelError(f"places are from 0 on, but the first is {int(places[0])}; leave it out")
    k, found = places.numel(), core_for(places)
    if found is None:
        crowds = _count_twin(places)
    else:
        places = places.contiguous()
        crowds = found[0].count_crowds(pointer(places), k)
    flat, crowded = Shape(k, 0, 0, k), Shape(k, *crowds)
    counts = crowds[0] > 0 and crowded.is_possible(n)  # what is no list may have any number
    return min([flat, crowded] if counts else [flat], key=lambda shape: _bytes(n, shape))


def _count_twin(places: Tensor) -> tuple[int, int, int]:
    """Crowded chunks, full ones, and places outside of them."""
    inside = _by_chunk(places)[2]
    crowded, full = inside >= _CROWD, inside == CHUNK
    return int(crowded.sum()), int(full.sum()), int(inside[~crowded].sum())


def _by_chunk(places: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Chunks that hold anything; which of them each place is in; how many places each has."""
    chunks = places // CHUNK
    begins = chunks.diff(prepend=chunks.new_full((1,), -1)) > 0
    number = begins.cumsum(0) - 1
    return chunks[begins], number, number.bincount()


@lru_cache(256)  # a message's are asked for again and again
def _parts(n: int, shape: Shape) -> Parts:
    return (
        _part(-(-n // CHUNK), shape.crowded), _part(shape.crowded, shape.full),
        _part(n, shape.thin),
    )  # fmt: skip


def _part(n: int, k: int) -> Part:
    code = smallest(n, k)
    return INDEX_CODES.index(code), n, k, code_bytes(code, n, k)


def _bytes(n: int, shape: Shape) -> int:
    masks = _MASK_BYTES * (shape.crowded - shape.full)
    return masks + sum(size for *_, size in _parts(n, shape))


def shaped_bytes(n: int, shape: Shape) -> int:
    """The bytes that a list of this shape takes. PayloadError if none below n can have it."""
    check_index_range(n)
    if not shape.is_possible(n):
        raise PayloadError(
            f"no list of places below {n} has {tuple(shape)} entries, crowded and full chunks of "
            f"{CHUNK}, and places outside of them; the message is damaged: run `gradwire doctor`"
        )
    return _bytes(n, shape)


# -- there ---------------------------------------------------------------------------------------


def encode_shaped(places: Tensor, n: int, shape: Shape, section: Tensor) -> None:
    """Writes the code of a list, every byte of the section.

    places: (k,) int32, strictly ascending within 0 ... n-1. shape: theirs, as `shape_of` says.
    section: (shaped_bytes(n, shape),) uint8, contiguous, written. Raises KernelError.
    """
    found = core_for(places, section)
    if found is None:
        encode_shaped_twin(places, n, shape, section)
        return
    core, _ = found
    _check_encode(places, n, shape, section, core)
    places = places.contiguous()
    parts = _parts(n, shape)
    k = places.numel()
    _check_shape(core.encode_crowds(parts, pointer(places), k, pointer(section)), shape)


def _check_encode(
    places: Tensor, n: int, shape: Shape, section: Tensor, core: Core | None
) -> None:
    check_encode(places, n, section, shaped_bytes(n, shape), core)
    _check_shape(places.numel() == shape.entries, shape)


def _check_shape(right: bool, shape: Shape) -> None:
    if not right:
        raise KernelError(f"the places have not the shape {tuple(shape)}; pass that of shape_of")


def encode_shaped_twin(places: Tensor, n: int, shape: Shape, section: Tensor) -> None:
    """`encode_shaped` in torch."""
    _check_encode(places, n, shape, section, None)
    if not shape.crowded:
        _check_shape(shape.thin == places.numel(), shape)
        encode_indices_twin(places, n, smallest(n, shape.thin), section)
        return
    _check_shape(_count_twin(places) == shape[1:], shape)
    chunks, number, inside = _by_chunk(places)
    crowded = inside >= _CROWD
    masks = torch.zeros_like(inside).index_add_(0, number, 1 << (places % CHUNK).long())
    full = (inside[crowded] == CHUNK).nonzero().flatten().int()
    masks = masks[crowded & (inside < CHUNK)]
    lists = chunks[crowded], full, places[~crowded[number]]
    *outs, mask_bytes, thin = _sections(section, n, shape)
    for own, (code, size, _, _), out in zip(lists, _parts(n, shape), (*outs, thin)):
        encode_indices_twin(own, size, INDEX_CODES[code], out)
    mask_bytes.copy_(torch.stack([masks & 255, masks >> 8], 1).flatten())


def _sections(section: Tensor, n: int, shape: Shape) -> list[Tensor]:
    """Crowded, full, masks, thin."""
    crowded, full, thin = (size for *_, size in _parts(n, shape))
    masks = _MASK_BYTES * (shape.crowded - shape.full)
    return list(torch.split(section, [crowded, full, masks, thin]))


# -- and back ------------------------------------------------------------------------------------


def decode_shaped(section: Tensor, n: int, shape: Shape, places_out: Tensor) -> None:
    """Reads a list from its code, whatever bytes the section holds.

    section: (shaped_bytes(n, shape),) uint8. shape: of what was encoded, or anything that arrived
    as one. places_out: (shape.entries,) int32, contiguous, written.
    Raises PayloadError when no list of this shape has this code, and places_out then means
    nothing; KernelError for places_out and n.
    """
    found = core_for(section, places_out)
    if found is None:
        decode_shaped_twin(section, n, shape, places_out)
        return
    _check_decode(section, n, shape, places_out)
    core, which = found
    section, k = section.contiguous(), shape.entries
    parts = _parts(n, shape)
    damage = core.decode_crowds(which, parts, pointer(section), k, pointer(places_out))
    _check_decoded(_DAMAGED[damage], places_out, n, shape)


def _check_decode(section: Tensor, n: int, shape: Shape, places_out: Tensor) -> None:
    check_section(f"code of {shape} below {n}", section, shaped_bytes(n, shape))
    check_buffer("places_out", places_out, torch.int32, shape.entries)
    check_same_device(section, places_out=places_out)
    check_apart("places_out", places_out, section)


def _check_decoded(damaged: str, places: Tensor, n: int, shape: Shape) -> None:
    """A list that has the shape that was told has no other code: what is called crowded is."""
    if not damaged and shape_of(places, n) != shape:
        damaged = _DAMAGED[-1]
    if damaged:
        raise PayloadError(
            f"the code of {shape.entries} places below {n} is not one: {damaged} cannot be; the "
            "message is damaged or belongs to another parameter"
        )


def decode_shaped_twin(section: Tensor, n: int, shape: Shape, places_out: Tensor) -> None:
    """`decode_shaped` in torch."""
    _check_decode(section, n, shape, places_out)
    crowded, full, masks, thin = _sections(section, n, shape)
    lists = list[Tensor]()
    for number, (own, part) in enumerate(zip((crowded, full, thin), _parts(n, shape)), 1):
        code, size, k, _ = part
        lists.append(torch.empty(k, dtype=torch.int32, device=section.device))
        try:
            decode_indices_twin(own, size, INDEX_CODES[code], lists[-1])
        except PayloadError:
            _check_decoded(_DAMAGED[number], places_out, n, shape)
    places = _together(lists, masks, shape)
    if not _is_list(places, n, shape.entries):
        _check_decoded(_DAMAGED[-1], places_out, n, shape)
    places_out.copy_(places)
    _check_decoded("", places_out, n, shape)


def _together(lists: list[Tensor], masks: Tensor, shape: Shape) -> Tensor:
    """int64, ascending; what is there twice, twice."""
    chunks, full, thin = (own.long() for own in lists)
    bits = torch.full((shape.crowded,), (1 << CHUNK) - 1, device=masks.device)
    others = torch.ones_like(bits, dtype=torch.bool)
    others[full] = False
    low, high = masks.long().view(-1, _MASK_BYTES).unbind(1)
    bits[others] = low | high << 8
    ones = (bits[:, None] >> torch.arange(CHUNK, device=masks.device) & 1).nonzero()
    places = CHUNK * chunks[ones[:, 0]] + ones[:, 1]
    return torch.cat([places, thin]).sort().values


def _is_list(places: Tensor, n: int, k: int) -> bool:
    inside = places.numel() == k and bool((places < n).all())
    return inside and bool((places.diff() > 0).all())

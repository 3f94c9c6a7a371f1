"""Codes of sorted lists whose places come in crowds: crowds as masks, the others as numbers.

A chunk is 16 places that begin at a multiple of 16. It is crowded if three or more of them are in
the list: a mask of 16 bits is then smaller than three numbers. A section holds, in this order,

crowded  which chunks are crowded;
full     which of these, counted among them, have all 16;
masks    16 bits for each of the others, ones at the places, little endian;
thin     the places in chunks that are not crowded.

The lists are in their smallest code of `indices`. So whole rows take a few bits for 16 places, and
random places take what they take in one list. Where one list of all places takes no more bytes, it
is the code: then no chunk counts as crowded. All sizes follow from a list's `Shape`, a function of
the list: every list has one code, and a section that is not the code of a list is refused.
Source of the idea: Roaring bitmaps, whose containers are arrays, bitmaps and runs (Chambi et al.
2016, "Better bitmap performance with Roaring bitmaps").
"""

import torch
from torch import Tensor

from gradwire.errors import KernelError, PayloadError
from gradwire.kernels.indices import check_encode, check_section
from gradwire.kernels.rooms import room_of
from gradwire.kernels.shapes import Shape, bytes_of, shaped_bytes
from gradwire.kernels.tensors import (
    check_apart,
    check_buffer,
    check_index_range,
    check_places,
    check_same_device,
)

_DAMAGED = (
    "", "the list of crowded chunks", "the list of full chunks", "the list of other places",
    "the combination of these lists",
)  # fmt: skip


def shape_of(places: Tensor, n: int) -> Shape:
    """Returns the shape of a list: the one with crowds if it takes fewer bytes.

    places: (k,) int32, strictly ascending within 0 ... n-1; only the first one is checked.
    Raises KernelError.
    """
    check_index_range(n)
    check_places("places", places)
    if places.numel() and int(places[0]) < 0:
        raise KernelError(
            f"places must be 0 or more, but the first is {int(places[0])}; leave it out"
        )
    k, crowds = places.numel(), room_of(places).count_crowds(places)
    flat, crowded = Shape(k, 0, 0, k), Shape(k, *crowds)
    counts = crowds[0] > 0 and crowded.is_possible(n)  # unsorted places give arbitrary counts
    return min([flat, crowded] if counts else [flat], key=lambda shape: bytes_of(n, shape))


def encode_shaped(places: Tensor, n: int, shape: Shape, section: Tensor) -> None:
    """Writes the code of a list, every byte of the section.

    places: (k,) int32, strictly ascending within 0 ... n-1. shape: what `shape_of` returns.
    section: (shaped_bytes(n, shape),) uint8, contiguous, written. Raises KernelError.
    """
    room = room_of(places, section)
    check_encode(places, n, section, shaped_bytes(n, shape), room)
    if places.numel() != shape.entries or not room.encode_shaped(places, n, shape, section):
        raise KernelError(
            f"the places must have the shape {tuple(shape)}, but have another; pass what shape_of "
            "returns for them"
        )


def decode_shaped(section: Tensor, n: int, shape: Shape, places_out: Tensor) -> None:
    """Reads a list from its code, whatever bytes the section holds.

    section: (shaped_bytes(n, shape),) uint8. shape: the shape that the sender stated; it may be
    wrong. places_out: (shape.entries,) int32, contiguous, written.
    Raises PayloadError when no list of this shape has this code, and places_out then means
    nothing; KernelError for places_out and n.
    """
    room = room_of(section, places_out)
    check_section(f"code of {shape} below {n}", section, shaped_bytes(n, shape))
    check_buffer("places_out", places_out, torch.int32, shape.entries)
    check_same_device(section, places_out=places_out)
    check_apart("places_out", places_out, section)
    damaged = _DAMAGED[room.decode_shaped(section, n, shape, places_out)]
    # Otherwise chunks could be sent as crowded that are not, and a list would have two codes.
    if not damaged and shape_of(places_out, n) != shape:
        damaged = _DAMAGED[-1]
    if damaged:
        raise PayloadError(
            f"the code of {shape.entries} places below {n} is invalid: {damaged} cannot be right; "
            "the message is damaged or belongs to another parameter"
        )

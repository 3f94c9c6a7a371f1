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
    "what they are together",
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
    k, crowds = places.numel(), room_of(places).count_crowds(places)
    flat, crowded = Shape(k, 0, 0, k), Shape(k, *crowds)
    counts = crowds[0] > 0 and crowded.is_possible(n)  # what is no list may have any number
    return min([flat, crowded] if counts else [flat], key=lambda shape: bytes_of(n, shape))


def encode_shaped(places: Tensor, n: int, shape: Shape, section: Tensor) -> None:
    """Writes the code of a list, every byte of the section.

    places: (k,) int32, strictly ascending within 0 ... n-1. shape: theirs, as `shape_of` says.
    section: (shaped_bytes(n, shape),) uint8, contiguous, written. Raises KernelError.
    """
    room = room_of(places, section)
    check_encode(places, n, section, shaped_bytes(n, shape), room)
    if places.numel() != shape.entries or not room.encode_shaped(places, n, shape, section):
        raise KernelError(f"the places have not the shape {tuple(shape)}; pass that of shape_of")


def decode_shaped(section: Tensor, n: int, shape: Shape, places_out: Tensor) -> None:
    """Reads a list from its code, whatever bytes the section holds.

    section: (shaped_bytes(n, shape),) uint8. shape: of what was encoded, or anything that arrived
    as one. places_out: (shape.entries,) int32, contiguous, written.
    Raises PayloadError when no list of this shape has this code, and places_out then means
    nothing; KernelError for places_out and n.
    """
    room = room_of(section, places_out)
    check_section(f"code of {shape} below {n}", section, shaped_bytes(n, shape))
    check_buffer("places_out", places_out, torch.int32, shape.entries)
    check_same_device(section, places_out=places_out)
    check_apart("places_out", places_out, section)
    damaged = _DAMAGED[room.decode_shaped(section, n, shape, places_out)]
    # A list that has the shape that was told has no other code: what is called crowded is.
    if not damaged and shape_of(places_out, n) != shape:
        damaged = _DAMAGED[-1]
    if damaged:
        raise PayloadError(
            f"the code of {shape.entries} places below {n} is not one: {damaged} cannot be; the "
            "message is damaged or belongs to another parameter"
        )

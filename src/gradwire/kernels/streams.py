"""Streams: sorted sparse vectors, cut among owners and put in place.

A stream is places, (k,) int32, strictly ascending, and values, (k,) fp32, bf16 or fp16. Owners
are dealt chunks of 16 elements, one line of the cache, in rounds:

    round   0        1        2        3          a round begins with an owner drawn from its
    chunk   0  1  2  3  4  5  6  7  8  9  10      number and a seed, and goes on to the next
    owner   2  0  1  1  2  0  2  0  1  0  1

An owner's elements are those of its chunks, one after the other, and a place of the owner's counts
them. So an owner's r-th chunk is one of round r: nothing is kept, and sorted lists stay sorted.
"""

import torch
from torch import Tensor

from gradwire.errors import KernelError
from gradwire.kernels.dealing import CHUNK, owners_of
from gradwire.kernels.rooms import room_of
from gradwire.kernels.sparse import check_payload
from gradwire.kernels.tensors import (
    check_apart,
    check_buffer,
    check_contiguous,
    check_float,
    check_memory,
    check_places,
    check_same_device,
)

_MOST_OWNERS = 1 << 16
_MOST_CHUNKS = (1 << 31) // CHUNK


def check_stream(name: str, places: Tensor, values: Tensor) -> None:
    """KernelError unless these are places and values of one stream; entries are not looked at."""
    check_places(name, places)
    check_float("values", values)
    if values.shape != places.shape:
        raise KernelError(
            f"values must have the shape of the {name}, {tuple(places.shape)}, not "
            f"{tuple(values.shape)}; pass one value for each place"
        )
    check_same_device(places, values=values)


def _check_deal(owners: int, seed: int) -> None:
    if not 1 <= owners <= _MOST_OWNERS or not 0 <= seed < 1 << 32:
        raise KernelError(
            f"owners must be 1 to {_MOST_OWNERS} and the seed have 32 bits, but there are "
            f"{owners} owners, and the seed is {seed}; pass the world's size and a digest's half"
        )


def split_stream(
    places: Tensor, values: Tensor, owners: int, seed: int, places_out: Tensor, values_out: Tensor
) -> list[int]:
    """Cuts a stream among owners: owner after owner, in their order, with places of the owner's.

    places: (k,) int32, strictly ascending: of one's own, only the first and the last are checked.
    values: (k,) fp32, bf16 or fp16, moved as they are. owners: at most 65,536. seed: of 32 bits.
    places_out, values_out: (k,), contiguous, written; neither is an input.
    Returns the count of each owner. Raises KernelError, with nothing written.
    """
    room, k = room_of(places), places.numel()
    check_stream("places", places, values)
    check_buffer("places_out", places_out, torch.int32, k)
    check_buffer("values_out", values_out, values.dtype, k)
    check_same_device(places, places_out=places_out, values_out=values_out)
    _check_deal(owners, seed)
    check_apart("places_out", places_out, values_out, places, values)
    check_apart("values_out", values_out, places, values)
    if k > 0 and not 0 <= int(places[0]) <= int(places[-1]):
        raise KernelError(
            f"places must ascend from 0 on, but go from {int(places[0])} to {int(places[-1])}; "
            "pass a stream"
        )
    return room.split_stream(places, values, owners, seed, places_out, values_out)


def flat_places(places: Tensor, owner: int, owners: int, seed: int, places_out: Tensor) -> None:
    """The inverse for places: an owner's, as `split_stream` gives them, in the whole.

    places: (k,) int32, strictly ascending: only the first and the last are checked. places_out:
    (k,) int32, contiguous, written; may be places. Raises KernelError, with nothing written.
    """
    room = room_of(places)
    _check_deal(owners, seed)
    check_buffer("places_out", places_out, torch.int32, places.numel())
    check_same_device(places, places_out=places_out)
    if places.dtype != torch.int32 or places.dim() != 1 or not 0 <= owner < owners:
        raise KernelError(
            f"places must be int32 with one dimension, and the owner one of {owners}, not "
            f"{places.dtype} of shape {tuple(places.shape)} and {owner}; pass an owner's places"
        )
    check_memory("places", places)
    if places.numel():
        _check_owned(places, owner, owners, seed)
    room.flat_places(places, owner, owners, seed, places_out)


def _check_owned(places: Tensor, owner: int, owners: int, seed: int) -> None:
    first, last = int(places[0]), int(places[-1])
    rounds = last // CHUNK
    turn = (owner - int(owners_of(torch.tensor(rounds), owners, seed))) % owners
    if not 0 <= first <= last or rounds * owners + turn >= _MOST_CHUNKS:
        raise KernelError(
            f"places must ascend from 0 to what owner {owner} of {owners} can have of 2^31 "
            f"elements, but go from {first} to {last}; pass an owner's places"
        )


def place_stream(out: Tensor, places: Tensor, values: Tensor) -> None:
    """out[places] = values.

    out: (n,) fp32, bf16 or fp16, contiguous; not cleared. places: (k,) int32, strictly ascending,
    below n. values: (k,) fp32, bf16 or fp16, rounded to out's dtype.
    Raises PayloadError, with out untouched, naming the entry; KernelError for out.
    """
    room = room_of(out)
    check_float("out", out)
    check_contiguous("out", out)
    check_payload(0, out.numel(), out, places, values, room)
    check_apart("out", out, places)
    room.place_stream(out, places, values)


def check_capacity(places_out: Tensor, values_out: Tensor, least: int) -> None:
    """KernelError unless a stream of up to `least` entries can be written."""
    check_stream("places_out", places_out, values_out)
    check_contiguous("places_out", places_out)
    check_contiguous("values_out", values_out)
    if places_out.numel() < least:
        raise KernelError(
            f"places_out and values_out must hold the largest result, {least} entries, not "
            f"{places_out.numel()}; allocate them so"
        )

"""Streams: sorted sparse vectors, cut among owners, put in place, added up and compared.

A stream is places, (k,) int32, strictly ascending, and values, (k,) fp32, bf16 or fp16. Owners
are dealt chunks of 16 elements, one cache line, in rounds:

    round   0        1        2        3          a round begins with an owner drawn from its
    chunk   0  1  2  3  4  5  6  7  8  9  10      number and a seed, and goes on to the next
    owner   2  0  1  1  2  0  2  0  1  0  1

An owner's elements are those of its chunks, one after the other, and an owner's place is an index
among them. So an owner's r-th chunk is one of round r: no table is needed, and sorted lists stay
sorted.

Payloads to be summed come from other ranks, so they are checked before anything is written. The
selection of `top_of_two` is that of gTop-k S-SGD (Shi et al., 2019), with an order that makes it
the same on both sides.
"""

import torch
from torch import Tensor

from gradwire.errors import KernelError, PayloadError
from gradwire.kernels.dealing import CHUNK, owners_of
from gradwire.kernels.rooms import room_of
from gradwire.kernels.sparse import check_ascending, check_payload, check_payloads
from gradwire.kernels.table import Room
from gradwire.kernels.tensors import (
    INDEX_LIMIT,
    check_apart,
    check_buffer,
    check_contiguous,
    check_count,
    check_divisor,
    check_domain,
    check_float,
    check_memory,
    check_places,
    check_same_device,
)

_MOST_OWNERS = 1 << 16
_MOST_CHUNKS = (1 << 31) // CHUNK


def check_stream(name: str, places: Tensor, values: Tensor) -> None:
    """Raises KernelError unless these can be the places and values of one stream; the entries are
    not checked."""
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
            f"owners must be 1 to {_MOST_OWNERS} and the seed must have 32 bits, but there are "
            f"{owners} owners, and the seed is {seed}; pass the world size and half of a digest"
        )


def split_stream(
    places: Tensor, values: Tensor, owners: int, seed: int, places_out: Tensor, values_out: Tensor
) -> list[int]:
    """Cuts a stream among owners: owner after owner, in ascending order, with the owner's places.

    places: (k,) int32, strictly ascending; this rank's own, so only the first and the last are
    checked. values: (k,) fp32, bf16 or fp16, moved as they are. owners: at most 65,536. seed: 32
    bits. places_out, values_out: (k,), contiguous, written; neither is an input.
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
            f"places must ascend and be 0 or more, but go from {int(places[0])} to "
            f"{int(places[-1])}; sort them"
        )
    return room.split_stream(places, values, owners, seed, places_out, values_out)


def flat_places(places: Tensor, owner: int, owners: int, seed: int, places_out: Tensor) -> None:
    """Converts an owner's places, as `split_stream` writes them, back to places in the whole.

    places: (k,) int32, strictly ascending: only the first and the last are checked. places_out:
    (k,) int32, contiguous, written; may be places. Raises KernelError, with nothing written.
    """
    room = room_of(places)
    _check_deal(owners, seed)
    check_buffer("places_out", places_out, torch.int32, places.numel())
    check_same_device(places, places_out=places_out)
    if places.dtype != torch.int32 or places.dim() != 1 or not 0 <= owner < owners:
        raise KernelError(
            f"places must be int32 with one dimension, and owner must be one of {owners}, not "
            f"{places.dtype} of shape {tuple(places.shape)} and {owner}; pass an owner's places"
        )
    check_memory("places", places)
    if places.numel():
        _check_owned(places, owner, owners, seed)
    room.flat_places(places, owner, owners, seed, places_out)


def _check_owned(places: Tensor, owner: int, owners: int, seed: int) -> None:
    first, last = int(places[0]), int(places[-1])
    rounds = last // CHUNK
    begins = owners_of(torch.tensor(rounds, dtype=torch.int64, device="cpu"), owners, seed)
    turn = (owner - int(begins)) % owners
    if not 0 <= first <= last or rounds * owners + turn >= _MOST_CHUNKS:
        raise KernelError(
            f"places must ascend from 0 to what owner {owner} of {owners} can have of 2^31 "
            f"elements, but go from {first} to {last}; pass an owner's places"
        )


def place_stream(out: Tensor, places: Tensor, values: Tensor) -> None:
    """Writes out[places] = values.

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
    """Raises KernelError unless a stream of up to `least` entries can be written."""
    check_stream("places_out", places_out, values_out)
    check_contiguous("places_out", places_out)
    check_contiguous("values_out", values_out)
    if places_out.numel() < least:
        raise KernelError(
            f"places_out and values_out must hold the largest result, {least} entries, not "
            f"{places_out.numel()}; allocate them so"
        )


def merge_streams(
    n: int,
    places: list[Tensor],
    values: list[Tensor],
    divisor: float,
    places_out: Tensor,
    values_out: Tensor,
) -> int:
    """Writes the sum of streams over n elements, divided by the divisor, as one stream; returns
    how many entries it has.

    places: one (k_r,) int32 per payload, strictly ascending within 0 ... n-1. values: one (k_r,)
    fp32, bf16 or fp16 per payload. The sum is taken in list order in fp32, from zero; a zero sum
    makes no entry; inf and NaN stay. places_out: int32, values_out: fp32, bf16 or fp16,
    contiguous, not among the inputs, min(n, all entries) long or longer; they are not changed
    beyond the result.
    Raises PayloadError, with nothing written, naming the payload and the entry; KernelError for
    n, divisor and the outputs. Memory: 276 KiB per thread, kept.
    """
    outs = places_out, values_out
    by = check_divisor(divisor)
    check_domain(n)
    check_capacity(*outs, min(n, sum(v.numel() for v in values)))
    room = room_of(places_out)
    check_payloads(n, places_out, places, values, room)
    _check_outs(outs, *places, *values)
    return room.merge_streams(n, places, values, by, *outs)


def _check_outs(outs: tuple[Tensor, Tensor], *given: Tensor) -> None:
    """Raises KernelError if an output shares memory with an input or with the other output."""
    check_apart("places_out", outs[0], outs[1], *given)
    check_apart("values_out", outs[1], *given)


def top_of_two(
    n: int,
    a_places: Tensor,
    a_values: Tensor,
    b_places: Tensor,
    b_values: Tensor,
    k: int,
    places_out: Tensor,
    values_out: Tensor,
) -> int:
    """Writes the k entries of largest magnitude in the sum of two streams; returns how many: fewer
    than k if it has fewer.

    a, b: streams within 0 ... n-1, of any dtypes. Places of both are added in fp32 (an entry whose
    sum is zero stays one); the k largest of the union are written by ascending place, ties go to
    the lower place. NaN is larger than inf, and becomes the one quiet NaN; so swapping a and b
    changes no bit. places_out: int32; values_out: fp32, bf16 or fp16, rounded after the selection;
    contiguous, not among the inputs, min(k, n, all entries) long or longer.
    Raises PayloadError, with nothing written, naming the stream (0: a, 1: b) and the entry;
    KernelError for n, k and the outputs. Memory: 16 bytes per entry and thread, kept.
    """
    outs, room = (places_out, values_out), room_of(places_out)
    places, values = [a_places, b_places], [a_values, b_values]
    check_domain(n)
    check_count("k", k)
    check_capacity(*outs, min(k, n, sum(v.numel() for v in values)))
    check_payloads(n, places_out, places, values, room)
    _check_outs(outs, *places, *values)
    return room.top_of_two(n, a_places, a_values, b_places, b_values, k, *outs)


def _check_contained(places: Tensor, among: Tensor, out: Tensor, room: Room) -> None:
    check_buffer("out", out, torch.bool, places.numel())
    check_same_device(out, places=places, among=among)
    for name, given_ in (("places", places), ("among", among)):
        check_places(name, given_, "check the sender's format", PayloadError)
        check_ascending(name, given_, INDEX_LIMIT, room, "the message is damaged")


def contained(places: Tensor, among: Tensor, out: Tensor) -> None:
    """Writes to out[j] whether places[j] is in the other list.

    places: (k,) int32, among: (m,) int32, both strictly ascending from 0 on. out: (k,) bool,
    contiguous. Raises PayloadError, with out untouched; KernelError for out.
    """
    room = room_of(out)
    _check_contained(places, among, out, room)
    room.contained(places, among, out)

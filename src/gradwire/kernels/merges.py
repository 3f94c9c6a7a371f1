"""Sums of streams that stay sparse, and what is common to two lists of places.

What is summed comes from other ranks, so it is checked before anything is written. The selection
of `top_of_two` is that of gTop-k S-SGD (Shi et al., 2019), with an order that makes it the same
on both sides.
"""

import torch
from torch import Tensor

from gradwire.errors import PayloadError
from gradwire.kernels.rooms import room_of
from gradwire.kernels.sparse import check_ascending, check_payloads
from gradwire.kernels.streams import check_capacity
from gradwire.kernels.table import Room
from gradwire.kernels.tensors import (
    INDEX_LIMIT,
    check_apart,
    check_buffer,
    check_count,
    check_divisor,
    check_domain,
    check_places,
    check_same_device,
)


def merge_streams(
    n: int,
    places: list[Tensor],
    values: list[Tensor],
    divisor: float,
    places_out: Tensor,
    values_out: Tensor,
) -> int:
    """The sum of streams over n elements, divided, as one stream; returns how many entries it has.

    places: one (k_r,) int32 per payload, strictly ascending within 0 ... n-1. values: one (k_r,)
    fp32, bf16 or fp16 per payload. The sum is taken in list order in fp32, from zero; where it is
    zero there is no entry; inf and NaN stay. places_out: int32, values_out: fp32, bf16 or fp16,
    contiguous, no inputs themselves, min(n, all entries) long or longer; what they hold beyond
    the result is untouched.
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
    """KernelError if what is written is an input, or places are values."""
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
    """The k of largest magnitude in the sum of two streams; returns how many: fewer if it has.

    a, b: streams within 0 ... n-1, of any dtypes. Their union, shared places added in fp32 (an
    entry whose sum is zero stays one); of these the k largest, ties to the lower place, by
    ascending place. NaN is larger than inf, and becomes the one quiet NaN; so swapping a and b
    changes no bit. places_out: int32, values_out: fp32, bf16 or fp16, rounded to after the
    selection; contiguous, no inputs themselves, min(k, n, all entries) long or longer.
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
    """out[j] = whether places[j] is in the other list.

    places: (k,) int32, among: (m,) int32, both strictly ascending from 0 on. out: (k,) bool,
    contiguous. Raises PayloadError, with out untouched; KernelError for out.
    """
    room = room_of(out)
    _check_contained(places, among, out, room)
    room.contained(places, among, out)

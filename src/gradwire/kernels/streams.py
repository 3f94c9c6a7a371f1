"""Streams: sorted sparse vectors, cut among owners and put in place.

A stream is places, (k,) int32, strictly ascending, and values, (k,) fp32, bf16 or fp16. Owners
are dealt chunks of 16 elements, one line of the cache: an owner's elements are those of its
chunks, one chunk after the other, and a local place counts them.
"""

import torch
from torch import Tensor

from gradwire.errors import KernelError
from gradwire.kernels.core import Core
from gradwire.kernels.core_streams import Given
from gradwire.kernels.native import core_for
from gradwire.kernels.sparse import check_payload, first_violation
from gradwire.kernels.tensors import (
    CODES,
    check_buffer,
    check_contiguous,
    check_float,
    check_index_range,
    check_same_device,
    pointer,
)

CHUNK = 16
"""Elements that are dealt together."""
_MOST_BITS = 16


def given(places: Tensor, values: Tensor) -> Given:
    """A stream for the extension; both contiguous."""
    return pointer(places), pointer(values), places.numel(), CODES[values.dtype]


def check_stream(name: str, places: Tensor, values: Tensor) -> None:
    """KernelError unless these are places and values of one stream; entries are not looked at."""
    if places.dtype != torch.int32 or places.dim() != 1:
        raise KernelError(
            f"{name} must be int32 with one dimension, not {places.dtype} of shape "
            f"{tuple(places.shape)}; convert them first"
        )
    check_float("values", values)
    if values.shape != places.shape:
        raise KernelError(
            f"values must have the shape of the {name}, {tuple(places.shape)}, not "
            f"{tuple(values.shape)}; pass one value for each place"
        )
    check_same_device(places, values=values)


def _check_split(
    places: Tensor,
    values: Tensor,
    table: Tensor,
    bits: int,
    owners: int,
    outs: tuple[Tensor, Tensor],
) -> None:
    check_stream("places", places, values)
    k = places.numel()
    check_buffer("table", table, torch.int32, table.numel())
    check_buffer("places_out", outs[0], torch.int32, k)
    check_buffer("values_out", outs[1], values.dtype, k)
    check_same_device(places, table=table, places_out=outs[0], values_out=outs[1])
    if not 0 <= bits <= _MOST_BITS or not 1 <= owners <= 1 << bits:
        raise KernelError(
            f"bits must be at most {_MOST_BITS} and hold the owners, but there are {bits} bits "
            f"for {owners} owners; pass (owners - 1).bit_length()"
        )
    size = CHUNK * table.numel()
    if k > 0 and not 0 <= int(places[0]) <= int(places[-1]) < size:
        raise KernelError(
            f"places must be within 0 ... {size - 1}, the elements of the table, but go from "
            f"{int(places[0])} to {int(places[-1])}; pass the table of this tensor"
        )


def _check_owned(counts: list[int], owners: int) -> list[int]:
    if counts:
        return counts
    raise KernelError(
        f"an entry's owner must be below the number of owners, {owners}, but one is not; check "
        "the table's lowest bits when it is made"
    )


def split_stream(
    places: Tensor,
    values: Tensor,
    table: Tensor,
    bits: int,
    owners: int,
    places_out: Tensor,
    values_out: Tensor,
) -> list[int]:
    """Cuts a stream among owners: owner after owner, in their order, with local places.

    places: (k,) int32, strictly ascending: of one's own, only the first and the last are checked.
    values: (k,) fp32, bf16 or fp16, moved as they are. table: (chunks,) int32, contiguous; for
    each 16 elements of the whole (number among the owner's chunks << bits) | owner. Whoever makes
    a table checks once that its numbers are right: an owner that is not below `owners` is refused
    here where an entry meets it, a wrong number is not. places_out, values_out: (k,), contiguous,
    written; neither is an input.
    Returns the count of each owner. Raises KernelError, with nothing written.
    """
    outs = places_out, values_out
    found = core_for(places)
    if found is None:
        return split_stream_twin(places, values, table, bits, owners, *outs)
    _check_split(places, values, table, bits, owners, outs)
    places, values = places.contiguous(), values.contiguous()
    counts = found[0].split(
        given(places, values), pointer(table), bits, owners, pointer(outs[0]), pointer(outs[1])
    )
    return _check_owned(counts, owners)


def split_stream_twin(
    places: Tensor,
    values: Tensor,
    table: Tensor,
    bits: int,
    owners: int,
    places_out: Tensor,
    values_out: Tensor,
) -> list[int]:
    """`split_stream` in torch."""
    _check_split(places, values, table, bits, owners, (places_out, values_out))
    entries = table[places.long() // CHUNK].long() & 0xFFFFFFFF
    owner = entries & (1 << bits) - 1
    if bool((owner >= owners).any()):
        return _check_owned([], owners)
    order = owner.sort(stable=True).indices
    local = (entries >> bits) * CHUNK + places % CHUNK
    places_out.copy_(local[order])
    values_out.copy_(values[order])
    counts: list[int] = torch.bincount(owner, minlength=owners).tolist()
    return counts


def _local_elements(out: Tensor, chunks: Tensor | None, core: Core | None) -> int:
    """How many elements of out the chunks hold: only the last one may be cut."""
    n = out.numel()
    if chunks is None:
        return n
    check_buffer("chunks", chunks, torch.int32, chunks.numel())
    check_same_device(out, chunks=chunks)
    whole = -(-n // CHUNK)
    position = first_violation(chunks, whole, core)
    if position < chunks.numel():
        raise KernelError(
            f"chunks must ascend strictly within 0 ... {whole - 1}, the chunks of {n} elements, "
            f"but chunk {position} is {int(chunks[position])}; pass the owner's own, for this out"
        )
    if chunks.numel() == 0:
        return 0
    return CHUNK * (chunks.numel() - 1) + min(CHUNK, n - CHUNK * int(chunks[-1]))


def _check_place(
    out: Tensor, places: Tensor, values: Tensor, chunks: Tensor | None, core: Core | None
) -> None:
    check_float("out", out)
    check_contiguous("out", out)
    check_payload(0, _local_elements(out, chunks, core), out, places, values, core)


def place_stream(out: Tensor, places: Tensor, values: Tensor, chunks: Tensor | None) -> None:
    """out[chunks[p // 16] * 16 + p % 16] = value; out[p] = value where chunks is None.

    out: (n,) fp32, bf16 or fp16, contiguous; not cleared. places: (k,) int32, strictly ascending,
    within the owner's elements. values: (k,) fp32, bf16 or fp16, rounded to out's dtype. chunks:
    (c,) int32, contiguous, the owner's chunks in ascending order; the last one of out may be cut.
    Raises PayloadError, with out untouched, naming the entry; KernelError for out and chunks.
    """
    found = core_for(out)
    if found is None:
        place_stream_twin(out, places, values, chunks)
        return
    core, _ = found
    _check_place(out, places, values, chunks, core)
    places, values = places.contiguous(), values.contiguous()
    core.put_in_place(given(places, values), pointer(chunks), CODES[out.dtype], pointer(out))


def place_stream_twin(out: Tensor, places: Tensor, values: Tensor, chunks: Tensor | None) -> None:
    """`place_stream` in torch."""
    _check_place(out, places, values, chunks, None)
    where = places.long()
    if chunks is not None:
        where = chunks.long()[where // CHUNK] * CHUNK + where % CHUNK
    out[where] = values.to(out.dtype)


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


def check_domain(n: int) -> None:
    """KernelError unless n can be the number of elements."""
    check_count("n", n)
    check_index_range(n)


def check_count(name: str, count: int) -> None:
    """KernelError for a negative one."""
    if count < 0:
        raise KernelError(f"{name} must not be negative, but is {count}; pass a count")

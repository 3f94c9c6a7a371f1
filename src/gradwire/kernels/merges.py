"""Sums of streams that stay sparse, and what is common to two lists of places.

What is summed comes from other ranks, so it is checked before anything is written. The selection
of `top_of_two` is that of gTop-k S-SGD (Shi et al., 2019), with an order that makes it the same
on both sides.
"""

import torch
from torch import Tensor

from gradwire.errors import PayloadError
from gradwire.kernels.core import Core
from gradwire.kernels.native import core_for
from gradwire.kernels.sparse import (
    check_divisor,
    check_payloads,
    first_violation,
    quotient,
)
from gradwire.kernels.streams import check_capacity, given
from gradwire.kernels.tensors import (
    CODES,
    INDEX_LIMIT,
    check_apart,
    check_buffer,
    check_count,
    check_domain,
    check_places,
    check_same_device,
    pointer,
)

_NO_SUM = -0.0  # what adds nothing to any value, -0 included


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
    found = core_for(places_out)
    check_payloads(n, places_out, places, values, None if found is None else found[0])
    _check_outs(outs, *places, *values)
    if found is None:
        return _merge_twin(n, places, values, by, outs)
    core, which = found
    held = [(p.contiguous(), v.contiguous()) for p, v in zip(places, values)]
    payloads = [given(p, v) for p, v in held]
    type_ = CODES[values_out.dtype]
    return core.merge(which, payloads, n, by, type_, pointer(places_out), pointer(values_out))


def _check_outs(outs: tuple[Tensor, Tensor], *given_: Tensor) -> None:
    """KernelError if what is written is an input, or places are values."""
    check_apart("places_out", outs[0], outs[1], *given_)
    check_apart("values_out", outs[1], *given_)


def _merge_twin(
    n: int, places: list[Tensor], values: list[Tensor], by: float, outs: tuple[Tensor, Tensor]
) -> int:
    total = torch.zeros(n, dtype=torch.float32, device=outs[0].device)
    for place, value in zip(places, values):
        total[place.long()] += value.float()
    kept = total.nonzero().flatten()
    return _write(outs, kept, quotient(total[kept], by))


def _write(outs: tuple[Tensor, Tensor], places: Tensor, values: Tensor) -> int:
    count = places.numel()
    outs[0][:count] = places
    outs[1][:count] = values
    return count


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
    outs = places_out, values_out
    found = core_for(places_out)
    if found is None:
        return top_of_two_twin(n, a_places, a_values, b_places, b_values, k, *outs)
    core, which = found
    places, values = [a_places, b_places], [a_values, b_values]
    _check_top(n, places, values, k, outs, core)
    held = [(p.contiguous(), v.contiguous()) for p, v in zip(places, values)]
    a, b = (given(p, v) for p, v in held)
    type_ = CODES[outs[1].dtype]
    return core.top_of_two(which, a, b, min(k, n), pointer(outs[0]), type_, pointer(outs[1]))


def _check_top(
    n: int,
    places: list[Tensor],
    values: list[Tensor],
    k: int,
    outs: tuple[Tensor, Tensor],
    core: Core | None,
) -> None:
    check_domain(n)
    check_count("k", k)
    check_capacity(*outs, min(k, n, sum(v.numel() for v in values)))
    check_payloads(n, outs[0], places, values, core)
    _check_outs(outs, *places, *values)


def top_of_two_twin(
    n: int,
    a_places: Tensor,
    a_values: Tensor,
    b_places: Tensor,
    b_values: Tensor,
    k: int,
    places_out: Tensor,
    values_out: Tensor,
) -> int:
    """`top_of_two` in torch."""
    outs = places_out, values_out
    _check_top(n, [a_places, b_places], [a_values, b_values], k, outs, None)
    both = torch.cat([a_places, b_places]).sort().values
    union = both[both.diff(prepend=both.new_full((1,), -1)) != 0]
    total = torch.full(union.shape, _NO_SUM, dtype=torch.float32, device=union.device)
    total[torch.searchsorted(union, a_places)] += a_values.float()
    total[torch.searchsorted(union, b_places)] += b_values.float()
    total = torch.where(total.isnan(), torch.full_like(total, torch.nan), total)
    order = total.abs().sort(descending=True, stable=True).indices
    chosen = order[:k].sort().values
    return _write(outs, union[chosen], total[chosen])


def _check_contained(places: Tensor, among: Tensor, out: Tensor, core: Core | None) -> None:
    check_buffer("out", out, torch.bool, places.numel())
    check_same_device(out, places=places, among=among)
    for name, given_ in (("places", places), ("among", among)):
        check_places(name, given_, "check the sender's format", PayloadError)
        position = first_violation(given_, INDEX_LIMIT, core)
        if position < given_.numel():
            raise PayloadError(
                f"{name} must ascend strictly from 0 on, but entry {position} is "
                f"{int(given_[position])}; the message is damaged"
            )


def contained(places: Tensor, among: Tensor, out: Tensor) -> None:
    """out[j] = whether places[j] is in the other list.

    places: (k,) int32, among: (m,) int32, both strictly ascending from 0 on. out: (k,) bool,
    contiguous. Raises PayloadError, with out untouched; KernelError for out.
    """
    found = core_for(out)
    if found is None:
        contained_twin(places, among, out)
        return
    core, _ = found
    _check_contained(places, among, out, core)
    places, among = places.contiguous(), among.contiguous()
    core.contained(pointer(places), places.numel(), pointer(among), among.numel(), pointer(out))


def contained_twin(places: Tensor, among: Tensor, out: Tensor) -> None:
    """`contained` in torch."""
    _check_contained(places, among, out, None)
    out.copy_(torch.isin(places, among, assume_unique=True))

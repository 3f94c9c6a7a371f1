"""Sums of sparse payloads whose places are coded: decoded, checked once, and added up; and adding
one payload that this rank wrote."""

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from gradwire.errors import KernelError, PayloadError
from gradwire.kernels.index_codes import check_list, code_bytes
from gradwire.kernels.indices import check_section, decode_indices
from gradwire.kernels.known import Known
from gradwire.kernels.memory import scratch
from gradwire.kernels.rooms import room_of
from gradwire.kernels.segments import SumCoded
from gradwire.kernels.sparse import check_ascending, check_layout, check_target, check_values
from gradwire.kernels.status import check_word
from gradwire.kernels.table import Room
from gradwire.kernels.tensors import (
    check_apart,
    check_buffer,
    check_memory_of_all,
    check_same_device,
    divided,
    facts_of_all,
    finite_number,
)


def accumulate_coded(
    segments: Sequence[SumCoded], status: Tensor | None = None, known: Known | None = None
) -> None:
    """Writes all averages, up to the first segment with a bad payload, if there is one: then
    raises PayloadError, which names the payload, with that out untouched. Raises KernelError for
    out, divisor, unknown codes, and lists that differ in length. Memory: 4 bytes per entry and
    thread, kept. status, known: as in `add_up`."""
    checked, outs = divided(segments), [one.out for one in segments]
    check_memory_of_all("out", outs)
    facts = facts_of_all(outs), [(tuple(one.codes), len(one.sections)) for one in segments]
    parts = [part for one in segments for part in (*one.sections, *one.values)]
    (known or Known()).check("sum_coded", facts, parts, partial(_check, segments))
    check_word(status, *(one.out for one in checked[:1]))
    room = room_of(*(one.out for one in checked[:1]))
    bad = room.accumulate_coded(checked, status)
    if bad < len(checked):
        _tell_bad(checked[bad], room)


def _tell_bad(one: SumCoded, room: Room) -> None:
    """Raises PayloadError for the first payload whose places are not a list; all else has been
    checked."""
    n = one.out.numel()
    for payload, (code, section, value) in enumerate(zip(one.codes, one.sections, one.values)):
        if code == "int32" and section.dtype == torch.int32:
            check_ascending(f"payload {payload}: indices", section, n, room)
        else:
            decoded_places(payload, section, n, code, value.numel())


def _check(segments: Sequence[SumCoded]) -> None:
    for one in segments:
        check_target(one.out, one.divisor)
    for out, codes, sections, values, _ in segments:
        if not len(codes) == len(sections) == len(values):
            raise KernelError(
                f"each payload needs a code, places and values, but there are {len(codes)}, "
                f"{len(sections)} and {len(values)} of them; pass lists of equal length"
            )
        for payload, (code, section, value) in enumerate(zip(codes, sections, values)):
            _check_coded(payload, out.numel(), out, code, section, value)
        check_apart("out", out, *sections)


def _check_coded(
    payload: int, n: int, like: Tensor, code: str, section: Tensor, value: Tensor
) -> None:
    k = value.numel()
    if k > n:
        raise PayloadError(
            f"payload {payload} must have at most {n} entries, one for each element, but has "
            f"{k}; the message is damaged or belongs to another parameter"
        )
    if code == "int32" and section.dtype == torch.int32:
        check_layout(payload, section, value)
    else:
        what = f"payload {payload}: {code} code of {k} indices below {n}"
        check_section(what, section, code_bytes(code, n, k))
        check_values(payload, (k,), value)
    check_same_device(like, indices=section, values=value)


def add_coded(v: Tensor, section: Tensor, code: str, values: Tensor, factor: float) -> None:
    """Computes v[places] += factor · values, at coded places that a kernel of this rank wrote:
    they are not checked where the host would have to wait for the device.

    v: (n,) fp32, contiguous. section, code: as in `decode_indices`, or (k,) int32 and "int32".
    values: (k,) fp32, bf16 or fp16. Raises KernelError; also PayloadError, with v untouched, if
    the host sees without waiting that the section is not a list.
    """
    check_buffer("v", v, torch.float32, v.numel())
    _check_coded(0, v.numel(), v, code, section, values)
    check_apart("v", v, section, values)
    room, by = room_of(v), finite_number("factor", factor)
    if not room.add_coded(v, section, code, values, by):
        _tell_bad(SumCoded(v, [code], [section], [values], 1.0), room)


def decoded_places(payload: int, section: Tensor, n: int, code: str, k: int) -> Tensor:
    """Returns the places, (k,) int32, valid until this thread's next call for that payload. Raises
    PayloadError, naming it."""
    check_list(n, k)
    places = scratch(f"places {payload}", k, torch.int32, section.device)
    try:
        decode_indices(section, n, code, places)
    except PayloadError as error:
        raise PayloadError(f"payload {payload}: {error}") from error
    return places

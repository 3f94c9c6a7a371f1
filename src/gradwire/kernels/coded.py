"""Sums of sparse payloads whose places are coded: decoded, checked once, and added up."""

from collections.abc import Sequence

import torch
from torch import Tensor

from gradwire.errors import KernelError, PayloadError
from gradwire.kernels.index_codes import check_list, code_bytes
from gradwire.kernels.indices import check_section, decode_indices
from gradwire.kernels.memory import scratch
from gradwire.kernels.rooms import room_of
from gradwire.kernels.segments import SumCoded
from gradwire.kernels.sparse import check_layout, check_payload, check_target, check_values
from gradwire.kernels.status import check_word
from gradwire.kernels.table import Room
from gradwire.kernels.tensors import check_same_device


def accumulate_coded(segments: Sequence[SumCoded], status: Tensor | None = None) -> None:
    """Write all averages, until the first with a bad payload, if there is one: PayloadError, with
    its out untouched, naming the payload. KernelError for out and divisor. Memory: 4 bytes per
    entry and thread, kept. status: as of `add_up`."""
    checked = [_checked(one) for one in segments]
    check_word(status, *(one.out for one in checked[:1]))
    room = room_of(*(one.out for one in checked[:1]))
    bad = room.accumulate_coded(checked, status)
    if bad < len(checked):
        out, codes, sections, values, _ = checked[bad]
        checked_places(out.numel(), out, codes, sections, values, room)  # which says what is wrong


def _checked(one: SumCoded) -> SumCoded:
    out, codes, sections, values, divisor = one
    by = check_target(out, divisor)
    _check_lists(codes, sections, values)
    for payload, (code, section, value) in enumerate(zip(codes, sections, values)):
        _check_coded(payload, out.numel(), out, code, section, value)
    return SumCoded(out, codes, sections, values, by)


def _check_lists(codes: Sequence[str], sections: list[Tensor], values: list[Tensor]) -> None:
    if not len(codes) == len(sections) == len(values):
        raise KernelError(
            f"each payload has a code, places and values, but there are {len(codes)}, "
            f"{len(sections)} and {len(values)}; pass lists of equal length"
        )


def _check_coded(
    payload: int, n: int, like: Tensor, code: str, section: Tensor, value: Tensor
) -> None:
    k = value.numel()
    if code == "int32" and section.dtype == torch.int32:
        check_layout(payload, section, value)
    else:
        what = f"payload {payload}: {code} code of {k} indices below {n}"
        check_section(what, section, code_bytes(code, n, k))
        check_values(payload, (k,), value)
    check_same_device(like, indices=section, values=value)


def checked_places(
    n: int,
    like: Tensor,
    codes: Sequence[str],
    sections: list[Tensor],
    values: list[Tensor],
    room: Room,
) -> list[Tensor]:
    """The places of each payload, decoded and checked, as long as those of decoded_places live."""
    _check_lists(codes, sections, values)
    places = []
    for payload, (code, section, value) in enumerate(zip(codes, sections, values)):
        if code == "int32" and section.dtype == torch.int32:
            places.append(section)
            check_payload(payload, n, like, section, value, room)
        else:
            places.append(decoded_places(payload, section, n, code, value.numel()))
            check_payload(payload, n, like, places[-1], value, None)
    return places


def decoded_places(payload: int, section: Tensor, n: int, code: str, k: int) -> Tensor:
    """(k,) int32, valid until the thread's next for that payload; PayloadError, naming it."""
    check_list(n, k)
    places = scratch(f"places {payload}", k, torch.int32, section.device)
    try:
        decode_indices(section, n, code, places)
    except PayloadError as error:
        raise PayloadError(f"payload {payload}: {error}") from error
    return places

"""Places and values of many sparse payloads, written as messages hold them."""

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from gradwire.errors import KernelError
from gradwire.kernels.index_codes import code_bytes
from gradwire.kernels.known import Known
from gradwire.kernels.rooms import room_of
from gradwire.kernels.segments import WriteEntries
from gradwire.kernels.tensors import (
    check_apart,
    check_buffer,
    check_float,
    check_places,
    check_same_device,
)


def write_entries(
    segments: Sequence[WriteEntries], status: Tensor | None = None, known: Known | None = None
) -> None:
    """Writes all payloads. Raises KernelError; for places that do not ascend strictly within
    0 ... n-1 only on the CPU: on a device the payload is then invalid. status: not used. known:
    earlier steps' checks."""

    def told() -> tuple[object, list[Tensor | None]]:
        facts = [(one.n, one.code) for one in segments]
        return facts, [x for one in segments for x in (one.places, one.values, *one[4:])]

    (known or Known()).check_segments("write_entries", segments, told, partial(_check, segments))
    bad = room_of(*(one.places for one in segments[:1])).write_entries(segments)
    if bad < len(segments):
        raise KernelError(
            f"places must ascend strictly within 0 ... {segments[bad].n - 1}, but those of "
            f"segment {bad} do not; sort them, and check n"
        )


def _check(segments: Sequence[WriteEntries]) -> None:
    for one in segments:
        places, values, n, code, section, out, sent, residual = one
        k = places.numel()
        check_places("places", places)
        check_buffer("values", values, torch.float32, k)
        size = code_bytes(code, n, k)
        if code == "int32" and section.dtype == torch.int32:
            check_buffer("section", section, torch.int32, k)
        else:
            check_buffer("section", section, torch.uint8, size)
        check_float("out", out)
        check_buffer("out", out, out.dtype, k)
        check_same_device(places, values=values, section=section, out=out)
        check_apart("section", section, places, values, out)
        check_apart("out", out, places, values)
        _check_sent(one, sent, residual)


def _check_sent(one: WriteEntries, sent: Tensor | None, residual: Tensor | None) -> None:
    if sent is not None:
        check_buffer("sent", sent, torch.float32, one.places.numel())
        check_same_device(one.places, sent=sent, residual=residual)
        check_apart("sent", sent, *one[:2], one.section, one.out)
    elif residual is not None:
        raise KernelError(
            "residual needs sent, as rounding losses follow from what is sent; pass a tensor for "
            "sent"
        )
    if residual is not None:
        check_buffer("residual", residual, torch.float32, one.n)
        check_apart("residual", residual, *one[:2], one.section, one.out, sent)

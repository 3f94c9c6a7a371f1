"""Sums of sparse and dense payloads: in list order, in fp32, then one division.

Payloads come from other ranks, so sparse ones are checked before anything is written.
"""

from collections.abc import Sequence

import torch

from gradwire.errors import GradwireError, PayloadError
from gradwire.kernels.known import Known
from gradwire.kernels.rooms import exact_room_of, room_of
from gradwire.kernels.segments import SumDense
from gradwire.kernels.status import check_word
from gradwire.kernels.table import Room
from gradwire.kernels.tensors import (
    CODES,
    are_doubles,
    check_apart,
    check_buffer,
    check_contiguous,
    check_divisor,
    check_float,
    check_memory,
    check_places,
    check_same_device,
    doubles_apart,
    facts_of,
    finite_number,
)


def check_target(out: torch.Tensor, divisor: float, *, double: bool = False) -> float:
    """Returns the divisor rounded to fp32. Raises KernelError unless a sum can be written to out
    and divided by it. double: out may be float64."""
    check_float("out", out, double=double)
    check_contiguous("out", out)
    return check_divisor(divisor)


def check_layout(payload: int, indices: torch.Tensor, values: torch.Tensor) -> None:
    """Raises PayloadError unless dtypes and shapes are a payload's; entries are not checked."""
    check_places(f"payload {payload}: indices", indices, "check the sender's format", PayloadError)
    check_values(payload, tuple(indices.shape), values)


def check_values(payload: int, shape: tuple[int, ...], values: torch.Tensor) -> None:
    """Raises PayloadError unless values have a valid dtype and the shape of their places."""
    if values.dtype not in CODES or values.shape != shape:
        raise PayloadError(
            f"payload {payload}: values must be float32, bfloat16 or float16 with the shape of "
            f"the indices, {shape}, not {values.dtype} of shape {tuple(values.shape)}; check the "
            "sender's format"
        )
    check_memory(f"payload {payload}: values", values)


def check_ascending(
    name: str,
    places: torch.Tensor,
    n: int,
    room: Room,
    next_step: str = "the message is damaged or belongs to another parameter",
    error: type[GradwireError] = PayloadError,
) -> None:
    """Raises `error`, which names the entry, unless places ascend strictly within 0 ... n-1."""
    position = room.first_violation(places, n)
    if position < places.numel():
        before = f", after {int(places[position - 1])}" if position else ""
        raise error(
            f"{name} must ascend strictly within 0 ... {n - 1}, but entry {position} is "
            f"{int(places[position])}{before} (n = {n}); {next_step}"
        )


def check_payloads(
    n: int,
    like: torch.Tensor,
    indices: list[torch.Tensor],
    values: list[torch.Tensor],
    room: Room,
) -> None:
    """Raises PayloadError unless all payloads are streams of n elements, on `like`'s device."""
    _check_lengths(indices, values)
    for number, (index, value) in enumerate(zip(indices, values)):
        check_payload(number, n, like, index, value, room)


def _check_lengths(indices: list[torch.Tensor], values: list[torch.Tensor]) -> None:
    if len(indices) != len(values):
        raise PayloadError(
            f"each payload needs indices and values, but there are {len(indices)} and "
            f"{len(values)} of them; pass lists of equal length"
        )


def _check_lists(
    of: torch.Tensor,
    indices: list[torch.Tensor],
    values: list[torch.Tensor],
    room: Room | None,
) -> None:
    """Runs `check_payloads` for lists that belong to a vector; room: None, which skips the check
    of the entries."""
    if room is not None:
        check_payloads(of.numel(), of, indices, values, room)
        return
    _check_lengths(indices, values)
    for number, (index, value) in enumerate(zip(indices, values)):
        check_layout(number, index, value)
        check_same_device(of, indices=index, values=value)


def check_payload(
    number: int,
    n: int,
    like: torch.Tensor,
    index: torch.Tensor,
    value: torch.Tensor,
    room: Room,
) -> None:
    """Raises PayloadError unless the payload is a stream of n elements, on `like`'s device."""
    check_layout(number, index, value)
    check_same_device(like, indices=index, values=value)
    check_ascending(f"payload {number}: indices", index, n, room)


def accumulate(
    out: torch.Tensor, indices: list[torch.Tensor], values: list[torch.Tensor], divisor: float, *,
    are_own: bool = False,
) -> None:  # fmt: skip
    """Writes out = (sum of the sparse payloads) / divisor; what out held before is ignored.

    out: (n,) fp32, bf16 or fp16, contiguous. indices: one (k_r,) int32 per payload, strictly
    ascending, within 0 ... n-1. values: one (k_r,) fp32, bf16 or fp16 per payload. The sum is
    taken in list order in fp32, from zero. are_own: as in `add`.
    Raises PayloadError, with out untouched, naming the payload and the entry; KernelError for out
    and divisor.
    """
    by = check_target(out, divisor)
    room = room_of(out)
    _check_lists(out, indices, values, None if are_own else room)
    check_apart("out", out, *indices)
    room.accumulate(out, indices, values, by)


def add(
    v: torch.Tensor, indices: torch.Tensor, values: torch.Tensor, factor: float, *,
    are_own: bool = False,
) -> None:  # fmt: skip
    """Computes v[indices] += factor · values.

    v: (n,) fp32, contiguous. indices: (k,) int32, strictly ascending, within 0 ... n-1. values:
    (k,) fp32. are_own: a kernel of this rank wrote the indices, so they are not checked.
    Raises PayloadError, with v untouched; KernelError for v and factor.
    """
    check_buffer("v", v, torch.float32, v.numel())
    check_buffer("values", values, torch.float32, indices.numel())
    by = finite_number("factor", factor)
    room = room_of(v)
    _check_lists(v, [indices], [values], None if are_own else room)
    check_apart("v", v, indices)
    room.add(v, indices, values, by)


def _check_dense(out: torch.Tensor, payloads: list[torch.Tensor]) -> None:
    for number, payload in enumerate(payloads):
        fits = are_doubles(payload) if are_doubles(out) else payload.dtype in CODES
        if not fits or payload.shape != out.shape:
            dtypes = "float64" if are_doubles(out) else "float32, bfloat16 or float16"
            raise PayloadError(
                f"payload {number} must be {dtypes} of shape {tuple(out.shape)}, not "
                f"{payload.dtype} of shape {tuple(payload.shape)}; check the sender's format"
            )
        check_memory(f"payload {number}", payload)
        check_same_device(out, payload=payload)


def accumulate_dense(out: torch.Tensor, payloads: list[torch.Tensor], divisor: float) -> None:
    """Writes out = (sum of the dense payloads) / divisor; what out held before is ignored.

    out: (n,) fp32, bf16 or fp16, contiguous, not one of the payloads. payloads: (n,) fp32, bf16 or
    fp16 each. The sum is taken in list order in fp32; without payloads it is zero. Or all tensors
    are fp64, and so is the sum. Raises PayloadError, with out untouched, or KernelError.
    """
    by = check_target(out, divisor, double=True)
    _check_dense(out, payloads)
    exact_room_of(out).accumulate_dense(out, payloads, by)


def accumulate_many_dense(
    segments: Sequence[SumDense], status: torch.Tensor | None = None, known: Known | None = None
) -> None:
    """Runs `accumulate_dense` for each segment. Raises PayloadError, with nothing written, or
    KernelError. status, known: as in `add_up`."""

    def check() -> None:
        for out, payloads, _ in segments:
            check_target(out, 1.0, double=True)
            _check_dense(out, payloads)

    for out, _, _ in segments:
        check_memory("out", out)
    facts = [(len(payloads), facts_of(out)) for out, payloads, _ in segments]
    given = [payload for _, payloads, _ in segments for payload in payloads]
    (known or Known()).check("sum_dense", facts, given, check)
    checked = [SumDense(out, payloads, check_divisor(by)) for out, payloads, by in segments]
    check_word(status, *(one.out for one in checked[:1]))
    for own in doubles_apart(checked):
        exact_room_of(own[0].out).accumulate_many_dense(own, status)

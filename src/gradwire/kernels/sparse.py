"""Sums of payloads, sparse and dense: in list order, in fp32, then one division.

Payloads come from other ranks, so sparse ones are checked before anything is written.
"""

import torch

from gradwire.errors import KernelError, PayloadError
from gradwire.kernels.core import Core
from gradwire.kernels.native import core_for
from gradwire.kernels.tensors import (
    CODES,
    are_doubles,
    check_apart,
    check_buffer,
    check_contiguous,
    check_float,
    check_memory,
    check_places,
    check_same_device,
    finite_number,
    goes_around,
    pointer,
)


def check_target(out: torch.Tensor, divisor: float, *, double: bool = False) -> float:
    """The divisor as fp32; KernelError unless a sum can be written to out and divided by it.
    double: which may be float64."""
    check_float("out", out, double=double)
    check_contiguous("out", out)
    return check_divisor(divisor)


def check_divisor(divisor: float) -> float:
    """The divisor as fp32; KernelError if it is 0 or not finite."""
    by = finite_number("divisor", divisor)
    if by == 0.0:
        raise KernelError("divisor must not be 0 in float32; pass the number of contributions")
    return by


def _check_layout(payload: int, indices: torch.Tensor, values: torch.Tensor) -> None:
    check_places(f"payload {payload}: indices", indices, "check the sender's format", PayloadError)
    if values.dtype not in CODES or values.shape != indices.shape:
        raise PayloadError(
            f"payload {payload}: values must be float32, bfloat16 or float16 with the shape of "
            f"the indices, {tuple(indices.shape)}, not {values.dtype} of shape "
            f"{tuple(values.shape)}; check the sender's format"
        )
    check_memory(f"payload {payload}: values", values)


def first_violation(indices: torch.Tensor, n: int, core: Core | None) -> int:
    """Position of the first index that is out of range or not above the one before; k if none.

    indices: (k,), int32 where core is not None.
    """
    if core is not None and indices.is_contiguous():
        return core.first_violation(pointer(indices), indices.numel(), n)
    before = torch.cat([indices.new_full((1,), -1), indices[:-1]])
    bad = (indices <= before) | (indices >= n)
    return int(bad.int().argmax()) if bool(bad.any()) else indices.numel()


def _check_entries(payload: int, position: int, indices: torch.Tensor, n: int) -> None:
    if position == indices.numel():
        return
    value = int(indices[position])
    before = f", after {int(indices[position - 1])}" if position else ""
    raise PayloadError(
        f"payload {payload}: indices must ascend strictly within 0 ... {n - 1}, but entry "
        f"{position} is {value}{before} (n = {n}); the message is damaged "
        "or belongs to another parameter"
    )


def check_payloads(
    n: int,
    like: torch.Tensor,
    indices: list[torch.Tensor],
    values: list[torch.Tensor],
    core: Core | None,
) -> None:
    """PayloadError unless all payloads are streams of n elements, where `like` is."""
    if len(indices) != len(values):
        raise PayloadError(
            f"each payload has indices and values, but there are {len(indices)} "
            f"and {len(values)}; pass lists of equal length"
        )
    for number, (index, value) in enumerate(zip(indices, values)):
        check_payload(number, n, like, index, value, core)


def check_payload(
    number: int,
    n: int,
    like: torch.Tensor,
    index: torch.Tensor,
    value: torch.Tensor,
    core: Core | None,
    entries: bool = True,
) -> None:
    """PayloadError unless it is a stream of n elements; its entries are looked at, or not."""
    _check_layout(number, index, value)
    check_same_device(like, indices=index, values=value)
    if entries:
        _check_entries(number, first_violation(index, n, core), index, n)


def accumulate(
    out: torch.Tensor, indices: list[torch.Tensor], values: list[torch.Tensor], divisor: float
) -> None:
    """out = (sum of the sparse payloads) / divisor; out is overwritten, whatever it held.

    out: (n,) fp32, bf16 or fp16, contiguous. indices: one (k_r,) int32 per payload, strictly
    ascending, within 0 ... n-1. values: one (k_r,) fp32, bf16 or fp16 per payload. The sum is
    taken in list order in fp32, from zero.
    Raises PayloadError, with out untouched, naming the payload and the entry; KernelError for out
    and divisor.
    """
    by = check_target(out, divisor)
    found = core_for(out)
    check_payloads(out.numel(), out, indices, values, None if found is None else found[0])
    check_apart("out", out, *indices)
    sum_checked(out, indices, values, by, found)


def sum_checked(
    out: torch.Tensor,
    indices: list[torch.Tensor],
    values: list[torch.Tensor],
    by: float,
    found: tuple[Core, int] | None,
) -> None:
    """`accumulate` of payloads that are known to be good. found: of `core_for`."""
    if found is None:
        _accumulate_twin(out, indices, values, by)
        return
    core, which = found
    held = [(i.contiguous(), v.contiguous()) for i, v in zip(indices, values)]
    payloads = [(pointer(i), pointer(v), i.numel(), CODES[v.dtype]) for i, v in held]
    core.accumulate(
        which, CODES[out.dtype], pointer(out), out.numel(), payloads, by, goes_around(out)
    )


def add(v: torch.Tensor, indices: torch.Tensor, values: torch.Tensor, factor: float) -> None:
    """v[indices] += factor · values.

    v: (n,) fp32, contiguous. indices: (k,) int32, strictly ascending, within 0 ... n-1. values:
    (k,) fp32. Raises PayloadError, with v untouched; KernelError for v and factor.
    """
    check_buffer("v", v, torch.float32, v.numel())
    check_buffer("values", values, torch.float32, indices.numel())
    by = finite_number("factor", factor)
    found = core_for(v)
    check_payloads(v.numel(), v, [indices], [values], None if found is None else found[0])
    check_apart("v", v, indices)
    if found is None:
        _add_twin(v, indices, values, by)
        return
    core, _ = found
    indices = indices.contiguous()
    core.add(pointer(v), pointer(indices), pointer(values), indices.numel(), by)


def _add_twin(v: torch.Tensor, indices: torch.Tensor, values: torch.Tensor, factor: float) -> None:
    v[indices.long()] += values * factor


def accumulate_twin(
    out: torch.Tensor, indices: list[torch.Tensor], values: list[torch.Tensor], divisor: float
) -> None:
    """`accumulate` in torch."""
    by = check_target(out, divisor)
    check_payloads(out.numel(), out, indices, values, None)
    _accumulate_twin(out, indices, values, by)


def _accumulate_twin(
    out: torch.Tensor, indices: list[torch.Tensor], values: list[torch.Tensor], divisor: float
) -> None:
    total = torch.zeros(out.shape, dtype=torch.float32, device=out.device)
    for index, value in zip(indices, values):
        total[index.long()] += value.float()
    out.copy_(quotient(total, divisor))


def quotient(total: torch.Tensor, divisor: float) -> torch.Tensor:
    """True division: by a plain number, torch multiplies with the reciprocal on some devices."""
    return total / torch.tensor(divisor, dtype=total.dtype, device=total.device)


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
    """out = (sum of the dense payloads) / divisor; out is overwritten, whatever it held.

    out: (n,) fp32, bf16 or fp16, contiguous, no payload itself. payloads: (n,) fp32, bf16 or fp16
    each. The sum is taken in list order in fp32; of no payloads it is zero. Or all are fp64, and
    so is the sum. Raises PayloadError, with out untouched, or KernelError.
    """
    by = check_target(out, divisor, double=True)
    _check_dense(out, payloads)
    found = core_for(out)
    if found is None or are_doubles(out):
        accumulate_dense_twin(out, payloads, by)
        return
    core, which = found
    held = [p.contiguous() for p in payloads]
    pairs = [(pointer(p), CODES[p.dtype]) for p in held]
    around = goes_around(out)
    core.accumulate_dense(which, CODES[out.dtype], pointer(out), out.numel(), pairs, by, around)


def accumulate_dense_twin(out: torch.Tensor, payloads: list[torch.Tensor], divisor: float) -> None:
    """`accumulate_dense` in torch."""
    by = check_target(out, divisor, double=True)
    _check_dense(out, payloads)
    exact = torch.promote_types(out.dtype, torch.float32)
    total = torch.zeros(out.shape, dtype=exact, device=out.device)
    for payload in payloads:
        total = total + payload.detach().to(exact)
    out.copy_(quotient(total, by))

"""Exact top-k by magnitude.

Order: larger magnitude first, ties to the lower index; zeros of both signs tie; inf and NaN count
as zero.
Source: the top-k of Deep Gradient Compression (Lin et al., ICLR 2018), here exact and in one pass:
the candidates are the elements above a threshold carried over from the last step, and the k
largest of them are the k largest of all.
"""

from typing import NamedTuple

import torch

from gradwire.errors import KernelError
from gradwire.kernels.memory import kept, scratch
from gradwire.kernels.native import core_for
from gradwire.kernels.tensors import (
    CODES,
    check_apart,
    check_buffer,
    check_float,
    check_same_device,
    finite_number,
    pointer,
    real,
)

_SLACK = 128  # the extension may write so many beyond the last: csrc/kernels.hpp


class Selected(NamedTuple):
    """What a selection found out.

    hint: candidate threshold for the next step on similar data; 0: unknown. It changes the time,
    never the result.
    finite: False when inf or NaN was met.
    """

    hint: float
    finite: bool


def fallbacks() -> int:
    """Selections since the process started whose hint was too high: they read the data again."""
    found = core_for()
    return 0 if found is None else found[0].fallbacks()


def check_selection(x: torch.Tensor, k: int, indices: torch.Tensor, values: torch.Tensor) -> None:
    """KernelError unless k of x can be written to indices and values; x is known to be good."""
    if not 0 <= k <= x.numel():
        raise KernelError(
            f"k must be between 0 and the number of elements, {x.numel()}, not {k}; "
            "lower the density"
        )
    check_buffer("indices", indices, torch.int32, k)
    check_buffer("values", values, torch.float32, k)
    check_same_device(x, indices=indices, values=values)
    check_apart("indices", indices, values, x)


def topk(
    x: torch.Tensor, k: int, indices: torch.Tensor, values: torch.Tensor, hint: float = 0.0
) -> Selected:
    """Writes the k elements of largest magnitude, by ascending index.

    x: (n,) fp32, bf16 or fp16, not changed. indices: (k,) int32, written. values: (k,) fp32,
    written.
    hint: the `hint` of an earlier call on similar data; 0 when there was none.
    When finite is False there may be places of non-finite elements among the k, with value 0.
    Raises KernelError.
    """
    check_float("x", x)
    check_selection(x, k, indices, values)
    found = core_for(x)
    if found is None:
        return topk_twin(x, k, indices, values, hint)
    core, which = found
    x = x.contiguous()
    n, type_ = x.numel(), CODES[x.dtype]
    return Selected(
        *core.topk(which, type_, pointer(x), n, k, pointer(indices), pointer(values), real(hint))
    )


class Reaching(NamedTuple):
    """places: (k,) int32, ascending; values: (k,) fp32; both valid until the thread's next call.

    finite: False when inf or NaN was met; their places are not among them.
    """

    places: torch.Tensor
    values: torch.Tensor
    finite: bool


def reaching(x: torch.Tensor, least: float) -> Reaching:
    """All elements whose magnitude is at least `least`, which is above 0.

    x: (n,) fp32, bf16 or fp16. Reads x twice where there are more than the thread met so far.
    Memory: 10 bytes per element found and thread, kept. Raises KernelError.
    """
    check_float("x", x)
    if not (by := finite_number("least", least)) > 0.0:
        raise KernelError(f"least must be above 0 in float32, not {least}; pass a magnitude")
    found = core_for(x)
    if found is None:
        return reaching_twin(x, by)
    core, which = found
    x = x.contiguous()
    n, type_ = x.numel(), CODES[x.dtype]
    room = max(kept("reaching", torch.int32, x.device) - _SLACK, 0)
    while True:
        places = scratch("reaching", room + _SLACK, torch.int32, x.device)
        values = scratch("reaching", room + _SLACK, torch.float32, x.device)
        k, finite = core.reaching(
            which, type_, pointer(x), n, by, room, pointer(places), pointer(values)
        )
        if k <= room:
            return Reaching(places[:k], values[:k], finite)
        room = min(n, k + k // 4)  # the next step finds a few more or less


def reaching_twin(x: torch.Tensor, least: float) -> Reaching:
    """`reaching` in torch."""
    x = x.detach().float()
    finite = x.isfinite()
    places = ((x.abs() >= least) & finite).nonzero().flatten()
    return Reaching(places.int(), x[places], bool(finite.all()))


def topk_twin(
    x: torch.Tensor, k: int, indices: torch.Tensor, values: torch.Tensor, hint: float = 0.0
) -> Selected:
    """`topk` in torch: a stable sort. The hint is of no use to it and is given back."""
    x = x.detach().float()
    finite = x.isfinite()
    x = torch.where(finite, x, torch.zeros((), device=x.device))
    order = torch.sort(x.abs(), descending=True, stable=True).indices
    chosen = order[:k].sort().values
    indices.copy_(chosen)
    values.copy_(x[chosen])
    return Selected(hint, bool(finite.all()))

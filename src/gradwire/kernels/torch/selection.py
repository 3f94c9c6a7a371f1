"""Exact selections in torch."""

from collections.abc import Sequence

import torch
from torch import Tensor

from gradwire.kernels.segments import Reach
from gradwire.kernels.torch.status import raise_unless
from gradwire.kernels.values import Hint, Reaching


def fallbacks() -> int:
    """There are no hints that could be too high."""
    return 0


def reaching(x: Tensor, least: float, status: Tensor) -> Reaching:
    x = x.detach().float()
    finite = x.isfinite()
    places = ((x.abs() >= least) & finite).nonzero().flatten()
    raise_unless(finite.all(), status)
    return Reaching(places.int(), x[places])


def reach(segments: Sequence[Reach], status: Tensor) -> list[Reaching]:
    return [reaching(x, least, status) for x, least in segments]


def topk(
    x: Tensor, k: int, indices: Tensor, values: Tensor, status: Tensor, hint: Hint = 0.0
) -> Hint:
    """The hint is of no use and is given back."""
    x = x.detach().float()
    raise_unless(x.isfinite().all(), status)
    sort_out(x, k, indices, values)
    return hint


def sort_out(x: Tensor, k: int, indices: Tensor, values: Tensor) -> None:
    """By a stable sort of x, fp32."""
    x = torch.nan_to_num(x, 0.0, 0.0, 0.0)
    order = torch.sort(x.abs(), descending=True, stable=True).indices
    chosen = order[:k].sort().values
    indices.copy_(chosen)
    values.copy_(x[chosen])

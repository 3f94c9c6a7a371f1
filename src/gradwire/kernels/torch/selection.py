"""Exact selections in torch."""

from collections.abc import Sequence

import torch
from torch import Tensor

from gradwire.kernels.segments import Reach
from gradwire.kernels.torch.status import raise_unless
from gradwire.kernels.values import Hint, Reaching


def fallbacks() -> int:
    """Returns 0: the twins do not use hints."""
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
    """Writes the k largest; the hint is not used, and is returned unchanged."""
    x = x.detach().float()
    raise_unless(x.isfinite().all(), status)
    sort_out(x, k, indices, values)
    return hint


def sort_out(x: Tensor, k: int, indices: Tensor, values: Tensor) -> None:
    """Writes the k largest by a stable sort of x, fp32."""
    x = torch.nan_to_num(x, 0.0, 0.0, 0.0)
    order = torch.sort(x.abs(), descending=True, stable=True).indices
    chosen = order[:k].sort().values
    indices.copy_(chosen)
    values.copy_(x[chosen])

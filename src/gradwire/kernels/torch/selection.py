"""Exact selections in torch."""

import torch
from torch import Tensor

from gradwire.kernels.values import Reaching, Selected


def fallbacks() -> int:
    """There are no hints that could be too high."""
    return 0


def reaching(x: Tensor, least: float) -> Reaching:
    x = x.detach().float()
    finite = x.isfinite()
    places = ((x.abs() >= least) & finite).nonzero().flatten()
    return Reaching(places.int(), x[places], bool(finite.all()))


def topk(x: Tensor, k: int, indices: Tensor, values: Tensor, hint: float = 0.0) -> Selected:
    """A stable sort. The hint is of no use to it and is given back."""
    x = x.detach().float()
    finite = x.isfinite()
    x = torch.where(finite, x, torch.zeros((), device=x.device))
    order = torch.sort(x.abs(), descending=True, stable=True).indices
    chosen = order[:k].sort().values
    indices.copy_(chosen)
    values.copy_(x[chosen])
    return Selected(hint, bool(finite.all()))

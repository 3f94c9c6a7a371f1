"""The status word in torch: neither here nor in what raises it is anything read on the host."""

import math

import torch
from torch import Tensor

from gradwire.kernels.values import NON_FINITE


def raise_unless(finite: Tensor, status: Tensor) -> None:
    """finite: (), bool."""
    status.bitwise_or_((~finite).to(torch.int64) * NON_FINITE)


def spoil_if(status: Tensor, x: Tensor) -> None:
    x.masked_fill_(status != 0, math.nan)

"""The status word in torch: no operation here, and none that raises it, reads it on the host."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from gradwire.kernels.values import DAMAGED, NON_FINITE


def raise_unless(finite: Tensor, status: Tensor, bit: int = NON_FINITE) -> None:
    """Raises the word by a bit if finite, () bool, is False."""
    status.bitwise_or_((~finite).to(torch.int64) * bit)


def spoil_if(status: Tensor, x: Tensor) -> None:
    x.masked_fill_(status != 0, math.nan)


def copy_unless(status: Tensor, x: Tensor, out: Tensor) -> None:
    out.copy_(torch.where(status != 0, out, x.detach().to(out.dtype)))


def subtract(x: Tensor, y: Tensor, out: Tensor, status: Tensor) -> None:
    out.copy_(torch.where(status != 0, out, x.detach() - y.detach()))


def stamp(words: Tensor, facts: Sequence[int]) -> None:
    for word, fact in zip(words, facts):
        word.fill_(fact)


def judge(headers: Tensor, facts: Sequence[int], status: Tensor) -> None:
    flags = headers[:, 1]
    whole = (flags & ~(NON_FINITE | DAMAGED)) == 0
    for column, fact in zip((0, 2, 3), facts):
        whole &= headers[:, column] == fact
    told = torch.where(whole, flags, DAMAGED)
    for bit in (NON_FINITE, DAMAGED):
        raise_unless(((told & bit) == 0).all(), status, bit)

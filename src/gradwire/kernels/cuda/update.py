"""Accumulate, select, clear: a sparsifying feedback's step for all parameters of a bucket.

Bytes for each element with an fp32 gradient: dgc 20 and 3/8, ef 12 and 3/8, and a few for each
candidate.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from gradwire.kernels.cuda import selection
from gradwire.kernels.cuda.columns import NONE
from gradwire.kernels.cuda.selection import mode_of
from gradwire.kernels.cuda.tables import are_alike, columns_of, grouped, on_its_device
from gradwire.kernels.segments import UpdateTopk
from gradwire.kernels.values import Hint


@on_its_device
def update_topk(segments: Sequence[UpdateTopk], status: Tensor) -> Sequence[Hint]:
    every = columns_of(segments)
    small = selection.are_small(every)
    alike = [g.dtype for g in every.gradient], every.momentum, every.nesterov, every.mask, small
    if are_alike(*alike):
        return selection.run(every, *_kind(segments[0])[1:], status)
    hints: dict[int, Hint] = {}
    numbered = zip(small, range(len(segments)), segments)
    for (_, (_, mode, mask)), members in grouped(numbered, lambda x: (x[0], _kind(x[2]))):
        own = columns_of([one for *_, one in members])
        hints.update(zip((i for _, i, _ in members), selection.run(own, mode, mask, status)))
    return [hints[i] for i in range(len(segments))]


def _kind(one: UpdateTopk) -> tuple[torch.dtype, int, bool]:
    mode, _, _ = mode_of(one.momentum, one.nesterov, one.decay)
    return one.gradient.dtype, mode, one.mask


@on_its_device
def topk(x: Tensor, k: int, indices: Tensor, values: Tensor, status: Tensor, hint: Hint) -> Hint:
    x = x.detach().contiguous()
    one = UpdateTopk(x, None, x, k, indices, values, None, None, hint=hint)
    (found,) = selection.run(columns_of([one]), NONE.value, False, status)
    return found.view()

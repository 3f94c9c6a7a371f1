"""Accumulate, select, clear: a sparsifying feedback's step for all parameters of a bucket.

Bytes for each element with an fp32 gradient: dgc 20 and 3/8, ef 12 and 3/8, and a few for each
candidate.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

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
    if not segments:
        return []
    every = columns_of(segments)
    keys: Sequence[Any] = selection.are_small(every)
    kinds = [g.dtype for g in every.gradient], every.momentum, every.nesterov, every.mask
    if not are_alike(*kinds):
        keys = list(zip(keys, map(_kind, segments)))
    hints: list[Hint] = [0.0] * len(segments)
    for _, members in grouped(range(len(segments)), keys.__getitem__):
        is_one = len(members) == len(segments)
        own = every if is_one else columns_of([segments[i] for i in members])
        for i, hint in zip(members, selection.run(own, *_kind(segments[members[0]])[1:], status)):
            hints[i] = hint
    return hints


def _kind(one: UpdateTopk) -> tuple[torch.dtype, int, bool]:
    mode, _, _ = mode_of(one.momentum, one.nesterov, one.decay)
    return one.gradient.dtype, mode, one.mask


@on_its_device
def topk(x: Tensor, k: int, indices: Tensor, values: Tensor, status: Tensor, hint: Hint) -> Hint:
    x = x.detach().contiguous()
    one = UpdateTopk(x, None, x, k, indices, values, None, None, hint=hint)
    (found,) = selection.run(columns_of([one]), NONE.value, False, status)
    return found.view()

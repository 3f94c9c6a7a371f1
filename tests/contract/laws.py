"""The laws that hold for any member, and two of members that gradwire knows.

They take any member, so that `test_mutants.py` can show that each law catches the members which
it was made for: members that are wrong on purpose.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from gradwire import kernels
from gradwire.compressors import TopK
from gradwire.feedback import MomentumCorrection
from gradwire.runtime.encoder import ComposedEncoder
from gradwire.strategy import Compressor, Encoder, StepInfo
from gradwire.testing.laws import *  # noqa: F403
from gradwire.testing.payloads import KEY, decoded, encoded, same, sections_for


def entries(compressor: TopK, sections: Sequence[Tensor], n: int) -> tuple[Tensor, Tensor]:
    """A sparse payload's indices, int32, and values, as they were sent.

    A coded section is read by its own decoder, which `tests/unit/kernels` holds to the format.
    """
    places, values = sections
    if places.dtype == torch.int32:
        return places, values
    k = values.numel()
    code = kernels.smallest(n, k) if compressor.index == "auto" else compressor.index
    indices = torch.empty(k, dtype=torch.int32)
    kernels.decode_indices(places, n, code, indices)
    return indices, values


def law_topk_selects_the_largest(compressor: TopK, x: Tensor) -> None:
    """k = ceil(density·n) for all dtypes and sizes; the set is the first k by (-|x|, index).

    The values are those at the indices, in the format that is sent.
    """
    n = len(x)
    indices, values = entries(compressor, encoded(compressor, x), n)
    k = min(n, math.ceil(compressor.density * n))
    assert len(indices) == len(values) == k, f"sent {len(indices)} of {n}, not {k}"
    magnitude = x.float().abs().tolist()
    ranked = sorted(range(n), key=lambda i: (-magnitude[i], i))
    assert indices.tolist() == sorted(ranked[:k])
    there = x.float()[indices.long()]
    same(values, there.to(values.dtype), "values are not those at the indices")
    chosen, rejected = ranked[:k], set(range(n)) - set(indices.tolist())
    if chosen and rejected:
        assert min(magnitude[i] for i in chosen) >= max(magnitude[i] for i in rejected)


def sending_zeros(compressor: Compressor, feedback: MomentumCorrection, n: int) -> list[Tensor]:
    """Two gradients; the second cancels the residual of the first, so that zeros are sent for
    elements that have a velocity. Exact for m = 1/2."""
    first = 6.0 * torch.arange(1, n + 1)
    state: dict[str, Tensor] = {}
    sections = sections_for(compressor, n, "float32")
    encoder, status = ComposedEncoder(compressor, feedback), kernels.new_status()
    encoder.encode(first, state, sections, StepInfo(), KEY, status)
    back = state["residual"] + state["velocity"] * feedback.momentum
    return [first, -back / (1 + feedback.momentum if feedback.nesterov else 1)]


def law_masked_by_place(
    encoder: Encoder, compressor: Compressor, feedback: MomentumCorrection, n: int
) -> None:
    """u is zeroed at each element that a payload has, zero or not, and nowhere else."""
    state: dict[str, Tensor] = {}
    for step, x in enumerate(sending_zeros(compressor, feedback, n)):
        u = feedback.before(x, state, StepInfo(step))[1]["velocity"]
        sections, key = sections_for(compressor, n, "float32"), KEY._replace(step=step)
        encoder.encode(x, state, sections, StepInfo(step), key, kernels.new_status())
        encoder.release()
        sent = decoded(compressor, sections, n, key)
        at = compressor.places(sections, n, key)
        masked = torch.ones(n, dtype=torch.bool)
        if at is not None:
            masked = torch.zeros(n, dtype=torch.bool).index_fill(0, at.long(), True)
        assert torch.equal(state["velocity"], torch.where(masked, 0.0, u)), f"step {step}"
    assert bool((masked & (sent == 0) & (u != 0)).any()), "no zero was sent"

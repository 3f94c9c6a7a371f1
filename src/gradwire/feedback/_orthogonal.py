"""Muon's step: approximately the orthogonal matrix that is nearest to a momentum.

Five rounds of a quintic iteration on all singular values at once; they end between 0.7 and 1.2.
Source: Jordan et al. 2024, "Muon: An optimizer for hidden layers in neural networks".
"""

from __future__ import annotations

import torch
from torch import Tensor

COEFFICIENTS = 3.4445, -4.7750, 2.0315
"""The coefficients of the iteration a·X + b·XXᵀX + c·(XXᵀ)²X, the steepest at 0."""
TURNS = 5
LEAST_NORM = 1e-7
"""The norm below which a momentum counts as no direction."""
USUAL = 0.2
"""The typical size of an element of AdamW's step: Liu et al. 2025, "Muon is scalable for LLM
training", section 2.2. So both use the same learning rate."""

_HAS_BFLOAT16 = bool(getattr(torch.cpu, "_is_avx512_bf16_supported", bool)())


def orthogonal(x: Tensor) -> Tensor:
    """Returns Muon's step along x, (rows, columns), fp32, with elements as large as AdamW's.

    Computes in bfloat16 on devices that multiply it faster, as `torch.optim.Muon` does everywhere.
    """
    a, b, c = COEFFICIENTS
    y = x.to(torch.bfloat16 if x.is_cuda or _HAS_BFLOAT16 else torch.float32)
    tall = x.shape[0] > x.shape[1]
    y = y.T if tall else y
    y = y / y.norm().clamp(min=LEAST_NORM)
    for _ in range(TURNS):
        gram = y @ y.T
        y = torch.addmm(y, torch.addmm(gram, gram, gram, beta=b, alpha=c), y, beta=a)
    return (y.T if tall else y).float().mul_(USUAL * max(x.shape) ** 0.5)

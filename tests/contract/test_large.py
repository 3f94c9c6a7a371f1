"""Members on millions of elements, which exceed caches and take paths that small sizes do not."""

from __future__ import annotations

import instances
import laws
import pytest
import torch
from inputs import normal
from instances import REMEMBERED, payload
from torch import Tensor

from gradwire.strategy import Compressor

N = 4_300_019


@pytest.fixture(scope="module")
def x() -> Tensor:
    return normal(N, seed=3)


@pytest.fixture(scope="module")
def energy(x: Tensor) -> float:
    return float(x.double().square().sum())


@pytest.mark.parametrize("compressor", REMEMBERED, ids=instances.ids)
def test_millions_of_elements(compressor: Compressor, x: Tensor, energy: float) -> None:
    sections = laws.encoded(compressor, x)
    assert sum(s.nbytes for s in sections) == payload(compressor, N, 4)
    back = laws.decoded(compressor, sections, N)
    off, claims = (back - x).double(), compressor.claims(N)
    lost = float(off.square().sum())
    if claims.contraction is not None:
        assert lost / energy <= (1 - claims.contraction) * (1 + 1e-9)
    if claims.unbiased:
        assert abs(float(off.sum())) <= 6 * lost**0.5, "the errors of so many elements cancel"
    total, wanted = torch.empty(N), (back + back) / 2
    compressor.accumulate([sections, sections], total, 2.0, laws.KEY)
    assert torch.equal(total, wanted)
    compressor.add(sections, total, -1.0, laws.KEY)
    assert torch.equal(total, wanted - back)

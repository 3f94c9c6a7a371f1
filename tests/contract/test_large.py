"""Ten million elements: beyond the caches, the streaming paths, and every small-number habit."""

from __future__ import annotations

import instances
import laws
import pytest
import torch
from inputs import normal
from instances import REMEMBERED, payload

from gradwire.strategy import Compressor

N = 10_000_019
X = normal(N, seed=3)


@pytest.mark.parametrize("compressor", REMEMBERED, ids=instances.ids)
def test_ten_million_elements(compressor: Compressor) -> None:
    sections = laws.encoded(compressor, X)
    assert sum(s.nbytes for s in sections) == payload(compressor, N, 4)
    back = laws.decoded(compressor, sections, N)
    contraction = compressor.claims(N).contraction
    if contraction is not None:
        lost = float((X - back).double().square().sum() / X.double().square().sum())
        assert lost <= (1 - contraction) * (1 + 1e-9)
    if compressor.claims(N).unbiased:
        off = float((back - X).double().mean())
        spread = float((back - X).double().std()) / N**0.5
        assert abs(off) <= 6 * spread, "the errors of so many elements cancel"
    total = torch.empty(N)
    compressor.accumulate([sections, sections], total, 2.0, laws.KEY)
    assert torch.equal(total, (back + back) / 2)
    compressor.add(sections, total, -1.0, laws.KEY)
    assert torch.equal(total, (back + back) / 2 - back)

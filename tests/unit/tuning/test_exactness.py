"""The error of an average beside the exact one."""

from __future__ import annotations

import pytest
import torch

from gradwire.tuning.exactness import _error


@pytest.mark.parametrize("size", [1e-44, 1e-30, 1.0, 1e30, 3e38])
def test_gradients_may_be_as_small_or_large_as_float32(size: float) -> None:
    """The squares of what vanishes in deep layers are 0 in float32: NaN in a profile, which could
    then not be read."""
    exact = torch.tensor([size, -size])
    assert _error([(exact, exact)]) == 0.0
    assert _error([(torch.zeros(2), exact)]) == pytest.approx(1.0)
    assert _error([(exact, torch.zeros(2))]) is None

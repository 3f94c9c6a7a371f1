"""The error of an average beside the exact one."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from types import SimpleNamespace

import pytest
import torch

from gradwire.tuning import exactness
from gradwire.tuning.exactness import Exactness, _error

LOSSY = "topk(0.1)+ef | allgather"


@pytest.mark.parametrize("size", [1e-44, 1e-30, 1.0, 1e30, 3e38])
def test_gradients_may_be_as_small_or_large_as_float32(size: float) -> None:
    """The squares of what vanishes in deep layers are 0 in float32: NaN in a profile, which could
    then not be read."""
    exact = torch.tensor([size, -size])
    assert _error([(exact, exact)]) == 0.0
    assert _error([(torch.zeros(2), exact)]) == pytest.approx(1.0)
    assert _error([(exact, torch.zeros(2))]) is None


def test_rank_0_decides_how_long_errors_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Norms differ in bits between processors: ranks that ended by their own would wait."""
    errors = (1.5**i for i in count())

    def of_ranks(performer: object, numbers: list[float]) -> torch.Tensor:
        return torch.tensor([[next(errors), 0.0], numbers], dtype=torch.float64)

    passes = list[str]()

    def steps(self: Exactness, text: str, names: list[str]) -> Iterator[list[list[torch.Tensor]]]:
        while True:
            passes.append(text)
            yield [[torch.full((3,), 1.0 + (text == LOSSY))]]

    monkeypatch.setattr(exactness, "of_ranks", of_ranks)
    monkeypatch.setattr(Exactness, "_passes", steps)
    here = Exactness(SimpleNamespace(performer=None), {"w": [torch.ones(3)]})  # type: ignore[arg-type]
    assert here.errors(LOSSY) == {"": 1.0, "w": 1.0}, "this rank's own grow no more"
    assert passes.count(LOSSY) == 384

"""What optimizers that ask the plan do with several groups of parameters."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from gradwire import optim
from gradwire.errors import UsageError


@pytest.mark.parametrize("kind", [optim.SGD, optim.AdamW, optim.Muon])
def test_where_a_group_is_refused_no_other_has_moved(
    kind: type[optim.SGD] | type[optim.AdamW] | type[optim.Muon], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = (nn.Parameter(torch.ones(3, 2)) for _ in range(2))

    def is_kept(self: object, parameter: torch.Tensor, group: object) -> bool:
        if parameter is second:
            raise UsageError("a plan of other numbers")
        return True

    monkeypatch.setattr(kind, "_is_kept", is_kept)
    optimizer = kind([{"params": [first]}, {"params": [second]}], lr=0.1)
    first.grad, second.grad = torch.ones(3, 2), torch.ones(3, 2)
    with pytest.raises(UsageError, match="other numbers"):
        optimizer.step()
    assert torch.equal(first, torch.ones(3, 2))
    assert first.grad is not None

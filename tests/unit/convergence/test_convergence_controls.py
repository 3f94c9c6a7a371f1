"""The gates have power: each deliberate mistake fails the gate that the correct code passes."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest

MISTAKES = (
    "top-k without error feedback",
    "double momentum",
    "weight decay outside the momentum",
    "sign error in the residual",
    "fp16 rounding dropped, loss × 10,000",
)


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_seen_in_the_state(suite: SimpleNamespace, name: str) -> None:
    (control,) = [c for c in suite.controls.CONTROLS if c.name == name]
    assert control.gate(control.right) < suite.oracles.TOLERANCE, "what is right passes"
    assert control.gate(control.wrong) > 100 * suite.oracles.TOLERANCE, "what is wrong does not"


def test_these_are_all(suite: SimpleNamespace) -> None:
    assert {c.name for c in suite.controls.CONTROLS} == set(MISTAKES)


@pytest.mark.once
@pytest.mark.parametrize(
    "method", ["ef-topk", "gtopk", "ef-sign", "onebit", "onebit-alltoall", "ef-randk", "topk-zen"]
)
@pytest.mark.parametrize("densities", [(), (1.0, 0.25, 0.0625, 0.0156, 0.004)])
def test_nothing_is_lost(
    suite: SimpleNamespace, method: str, densities: tuple[float, ...]
) -> None:
    found = replace(suite.methods.BY_NAME[method], densities=densities, warm_up=2)
    assert suite.oracles.conservation(found) < suite.oracles.TOLERANCE


def test_the_published_global_topk_loses_mass(suite: SimpleNamespace) -> None:
    found = replace(suite.methods.BY_NAME["gtopk-published"], densities=(), whole=False)
    assert suite.oracles.conservation(found) > 100 * suite.oracles.TOLERANCE


def test_masking_is_sgd_without_momentum_when_all_is_sent(suite: SimpleNamespace) -> None:
    assert suite.oracles.same_as_sgd(suite.methods.BY_NAME["dgc"]) > 0.1

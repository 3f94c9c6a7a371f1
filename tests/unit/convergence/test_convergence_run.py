"""A short run at 1 %: as good as dense, while a mistake is not; lockstep equals what ranks do."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

# Fifty times 1/density, of 3 to 8 ms each. At half of it top-k is half a point below dense, where
# one seed of two passes.
STEPS, DENSITY = 5000, 0.01
AS_GOOD = "dgc", "ef-topk", "gtopk", "ef-sign", "onebit", "qsgd", "powersgd"


class Records(dict[str, dict[str, Any]]):
    """Records by method, each trained when it is first requested."""

    def __init__(self, suite: SimpleNamespace) -> None:
        self.suite = suite

    def __missing__(self, method: str) -> dict[str, Any]:
        run = self.suite.train.Run("digits-mlp", method, 0, 4, STEPS, DENSITY)
        training = self.suite.train.Training(run)
        while not training.is_over:
            training.advance()
        self[method] = training.record()
        return self[method]


@pytest.fixture(scope="module")
def records(suite: SimpleNamespace) -> Records:
    return Records(suite)


@pytest.mark.full
@pytest.mark.parametrize("method", AS_GOOD)
def test_one_percent_of_the_gradient_is_as_good_as_all(
    suite: SimpleNamespace, records: Records, method: str
) -> None:
    dense, found = records["dense"], records[method]
    accuracy = suite.parity.metric("accuracy", [dense["metric"]], [found["metric"]])
    assert accuracy.passed, accuracy
    loss = suite.parity.training_loss([dense["training_loss"]], [found["training_loss"]])
    assert loss.passed, loss
    assert dense["metric"] > 96
    assert dense["bytes_per_step"] > 3 * found["bytes_per_step"]


@pytest.mark.full
def test_global_topk_is_within_a_point_of_topk(suite: SimpleNamespace, records: Records) -> None:
    topk, found = records["ef-topk"], records["gtopk"]
    verdict = suite.parity.like_topk([topk["metric"]], [found["metric"]])
    assert verdict.passed, verdict


@pytest.mark.full
def test_what_is_not_sent_and_not_kept_is_missed(suite: SimpleNamespace, records: Records) -> None:
    dense, found = records["dense"], records["no-ef"]
    assert not suite.parity.metric("accuracy", [dense["metric"]], [found["metric"]]).passed
    losses = [dense["training_loss"]], [found["training_loss"]]
    assert not suite.parity.training_loss(*losses).passed


@pytest.mark.full
def test_real_processes_have_the_same_losses(suite: SimpleNamespace) -> None:
    run = suite.train.Run("digits-mlp", "dgc", 0, 2, 30, DENSITY)
    found = suite.processes.compare(run)
    assert (found.same, found.apart) == (30, 0.0)


@pytest.mark.parametrize(
    ("method", "task"),
    [
        ("gtopk-published", "digits-mlp"),
        ("dgc-late", "digits-mlp"),
        ("local-4-1-alltoall", "digits-mlp"),
        ("dgc-noclip", "speech"),
    ],
)
def test_real_processes_refuse_what_attach_does_not_do(
    suite: SimpleNamespace, method: str, task: str
) -> None:
    run = suite.train.Run(task, method, 0, 2, 30, DENSITY)
    with pytest.raises(SystemExit, match=f"tensor by tensor.*; {method} does not"):
        suite.processes.compare(run)

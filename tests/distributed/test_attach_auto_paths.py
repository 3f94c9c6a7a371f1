"""plan="auto" among paths of the tree: measured on all ranks, raced, and one plan adopted."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import pytest
import torch
from ranks import Ranks
from small import brief, fingerprint, gradients, loss_of, raised, small

import gradwire
from gradwire import Plan, Strategy
from gradwire.errors import GradwireError
from gradwire.planner import paths
from gradwire.planner.profile import Profile

PATIENCE = 4000


@brief()
@patch.object(paths, "_moves_of_measured", lambda profile, left: set())  # else none may be offered
def settled(left: str, optimizer_name: str) -> tuple[Any, ...]:
    """What was measured and found among the paths of a compressor, and the model's
    fingerprints."""
    model = small()
    handle: Any = gradwire.attach(model, "auto", strategies=[f"{left} | paths"])
    kind: Any = getattr(torch.optim, optimizer_name)
    optimizer = kind(model.parameters(), lr=0.01)
    for step in range(PATIENCE):
        optimizer.zero_grad()
        loss_of(model, step).backward()
        if handle.tuner.is_settled:
            break
        optimizer.step()
    plan, profile = handle.plan, handle.tuner.profile
    offered = [text for text in profile.strategies if "steps(" in text]
    mine = fingerprint(gradients(model).values())
    if offered:  # executes a path, whatever won
        handle.adopt(Plan.make(list(profile.parameters), Strategy.parse(offered[0])))
        optimizer.zero_grad()
        loss_of(model, 0).backward()
        optimizer.step()
    handle.detach()
    weights = fingerprint(model.parameters())
    return step < PATIENCE - 1, plan.to_json(), profile.to_json(), mine, weights


@pytest.mark.full
def test_ranks_settle_among_paths(two: Ranks) -> None:
    one, other = two.run(settled, "topk(0.1)+ef", "SGD")
    assert one == other, "plans, profiles, gradients and weights are the same to the bit"
    is_settled, plan, told, *_ = one
    assert is_settled
    profile = Profile.from_json(told)
    offered = [Strategy.parse(text) for text in profile.strategies if "steps(" in text]
    assert offered, "some are worth a look"
    assert "topk(0.1)+ef | allgather" in profile.strategies
    assert all("@node" not in str(path) for path in offered), "one machine has no levels"
    assert not any(path.collective.compresses_again for path in offered), "these are not sound"
    assert {str(s) for s in Plan.from_json(plan).strategies} <= set(profile.strategies)
    kinds = {name.split()[0] for name in profile.moves}
    assert kinds >= {"all_reduce", "reduce_scatter", "all_gather", "all_to_all", "broadcast"}
    own = "topk(0.1)+ef"
    assert set(profile.compressors) == {"none @ cpu", f"{own} @ cpu", f"{own} in pieces @ cpu"}


@pytest.mark.full
def test_what_is_unsound_with_the_optimizer_is_not_measured(two: Ranks) -> None:
    (is_settled, plan, told, *_), _ = two.run(settled, "topk(0.1)+ef", "AdamW")
    assert is_settled
    assert not any("steps(" in text for text in Profile.from_json(told).strategies)
    assert {str(s.compressor) for s in Plan.from_json(plan).strategies} <= {"none", "bf16"}


def refused(text: str) -> str:
    model = small()
    return raised(lambda: gradwire.attach(model, "auto", strategies=[text]), GradwireError)


def test_compressors_that_paths_do_not_take_are_refused_at_once(two: Ranks) -> None:
    for said in two.run(refused, "threshold(0.1)+ef | paths"):
        assert "fixed" in said or "steps" in said

"""sparse_auto over many steps: races, votes and bad steps, with one choice on all ranks."""

from __future__ import annotations

import pytest
import torch
from several import Named, Several, all_nan, equal

from gradwire.collectives._chooser import Chooser
from suites import first

SHAPES = {"table": (40, 8), "bias": (5,)}
STEPS = 85


def gradients(step: int, world: int) -> list[Named]:
    """Gradients of a few rows each: whole numbers, so that sums are the same in any order."""
    dice = torch.Generator().manual_seed(step)
    given = []
    for _ in range(world):
        rows = (torch.rand(40, 1, generator=dice) < 0.1) * torch.ones(40, 8)
        given.append(
            {
                "table": rows * torch.randint(-9, 9, (40, 8), generator=dice),
                "bias": torch.randint(-9, 9, (5,), generator=dice).float(),
            }
        )
    return given


def mean(given: list[Named]) -> Named:
    return {n: torch.stack([mine[n] for mine in given]).sum(0) / len(given) for n in SHAPES}


def choosers(job: Several) -> list[Chooser]:
    return [context.memory["chooser"] for context in job.contexts[0]]


def members(job: Several) -> list[str]:
    return [chooser.member for chooser in choosers(job)]


@pytest.mark.once
@pytest.mark.parametrize("world", first([2, 3, 1, 4, 5], 2))
@pytest.mark.parametrize("every", [1, 3, 50])
def test_every_step_has_the_mean_whoever_sums(every: int, world: int) -> None:
    job, raced = Several(f"nonzero | sparse_auto(every={every})", SHAPES, world), False
    for step in range(STEPS):
        given = gradients(step, world)
        results = job.step(given)
        assert all(equal(result, mean(given)) for result in results)
        assert len(set(members(job))) == 1
        raced |= bool(choosers(job)[0]._turns)
    corrections = [chooser._corrections for chooser in choosers(job)]
    assert all(c == corrections[0] for c in corrections)
    assert raced == bool(corrections[0]), "who ran in a race is known by what it took"


def test_bad_steps_amid_a_race_change_no_mind() -> None:
    """A bad step does not count, whether it brings facts or times: it comes again."""
    job = Several("nonzero | sparse_auto(every=2)", SHAPES, 3)
    for step in range(STEPS):
        bad = gradients(step, 3)
        bad[step % 3]["bias"][0] = float("nan")
        before = members(job) if step else ["none yet"]
        assert all_nan(job.step(bad))
        given = gradients(step, 3)
        assert all(equal(result, mean(given)) for result in job.step(given))
        assert len(set(members(job))) == len(set(before)) == 1


@pytest.mark.parametrize("every", [1, 50])
def test_bad_steps_are_no_turns(every: int) -> None:
    """Bad steps end early: a member that had them in its turns would be the fastest for ever."""
    job, turns = Several(f"nonzero | sparse_auto(every={every})", SHAPES, 3), 0
    for step in range(60):
        good = gradients(step, 3)
        job.step(good)
        before = [list(chooser._turns) for chooser in choosers(job)]
        turns += bool(before[0])
        good[0]["bias"][0] = float("nan")
        job.step(good)
        if before[0]:
            assert [chooser._turns for chooser in choosers(job)] == before
    assert turns, "there was a race"

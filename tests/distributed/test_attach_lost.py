"""A rank that dies, stalls or fails amid training: the error of every other rank names it."""

from __future__ import annotations

from pathlib import Path

import pytest
from broken import Broken, Story, Stuck
from ranks import Outcome, Ranks, side_by_side

from gradwire.errors import PayloadError
from gradwire.testing import Die, Fail

TOPK = "topk(0.1)+ef | allgather"
DENSE = "none | allreduce"
DIES = Die(at=9)  # of three buckets in the fourth step, of four in the third


def stories(outcomes: list[Outcome], lost: int) -> dict[int, Story]:
    """The stories of the surviving ranks."""
    assert outcomes[lost].died
    told = {r: outcome for r, outcome in enumerate(outcomes) if r != lost}
    assert all(outcome.ok for outcome in told.values()), told
    assert all(outcome.value.kind == "PeerError" for outcome in told.values()), told
    return {r: outcome.value for r, outcome in told.items()}


def survivors_tell(outcomes: list[Outcome], lost: int) -> None:
    for story in stories(outcomes, lost).values():
        assert f"rank {lost} died or is stuck" in story.text, story
        assert "bucket 0" in story.text
        assert "in step 3; rank" in story.text
        assert story.after.startswith("UsageError: after a failed exchange"), story
        assert "attach" in story.after


def test_a_rank_is_killed(tmp_path: Path) -> None:
    """In a ring, a rank that is no neighbour of the dead one notices it only by its timeout."""
    plain, ddp, direct, ring = side_by_side(
        tmp_path,
        [
            (3, Broken(0, DIES, 3, TOPK)),
            (3, Broken(0, DIES, 3, TOPK, ddp=True)),
            (4, Broken(1, DIES, 2, DENSE, waits=True)),
            (4, Broken(1, DIES, 2, DENSE, wide=4000, waits=True)),
        ],
    )
    survivors_tell(plain, 0)
    survivors_tell(ddp, 0)
    for outcomes in (direct, ring):
        assert all("rank 1" in story.text for story in stories(outcomes, 1).values())


@pytest.mark.full
@pytest.mark.parametrize("ddp", [False, True], ids=["plain", "ddp"])
def test_any_rank_is_killed(tmp_path: Path, ddp: bool) -> None:
    jobs = [(3, Broken(lost, DIES, 3, TOPK, ddp)) for lost in range(3)]
    for lost, outcomes in enumerate(side_by_side(tmp_path, jobs)):
        survivors_tell(outcomes, lost)


def test_the_host_of_the_store_is_killed(tmp_path: Path) -> None:
    """Without its store no rank can tell who is missing, and the error says so."""
    (outcomes,) = side_by_side(tmp_path, [(3, Broken(0, DIES, 3, TOPK))], store="tcp")
    for story in stories(outcomes, 0).values():
        assert "the rank that hosts the rendezvous store" in story.text


def test_a_rank_stalls(tmp_path: Path) -> None:
    """A rank stalls for longer than the timeout: the others give up, then the stuck one is
    alone."""
    with Ranks(3, tmp_path) as ranks:
        found = ranks.run(Broken(1, Stuck(at=5), 2, TOPK, lanes=2, waits=True))
    for rank in (0, 2):
        assert found[rank].kind == "PeerError"
        assert "rank 1" in found[rank].text
        assert found[rank].after.startswith("UsageError")
    assert found[1].kind == "PeerError"


@pytest.mark.parametrize("ddp", [False, True], ids=["plain", "ddp"])
def test_an_exception_in_a_lane(three: Ranks, ddp: bool) -> None:
    """On its rank the exception comes out of backward() as it is, whatever the others do."""
    fault = Fail(4, PayloadError("told to"))
    found = three.run(Broken(2, fault, 1, TOPK, ddp, waits=True))
    assert found[2][:2] == ("PayloadError", "told to")
    for story in found[:2]:
        assert story.kind == "PeerError"
        assert "rank 2 died or is stuck" in story.text
        assert story.after.startswith("UsageError")

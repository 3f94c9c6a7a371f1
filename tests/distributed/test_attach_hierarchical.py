"""Four ranks as two machines of two: results, states, deaths of ranks, groups made and freed."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from broken import Broken, Story
from ranks import Ranks, side_by_side
from small import attached, entry, fingerprint, from_all, gradients, loss_of, raised, small
from test_attach_handle import resources_of
from test_attach_members import (
    Told,
    around_a_bad_bucket,
    as_in_lockstep,
    plain_and_ddp,
    resumed,
    slopes,
    spoiled,
    state_of,
    train,
)
from torch import nn

import gradwire
from gradwire import Plan, Strategy
from gradwire.errors import PlanError, UsageError
from gradwire.testing import Die, Fail
from suites import first

TWO = "per_node=2"
STRATEGIES = (
    "topk(0.1)+ef | hierarchical(outer='zen')",  # all four on one machine
    f"topk(0.1)+ef | hierarchical({TWO})",
    f"topk(0.1)+ef | hierarchical(outer='zen', {TWO})",
    f"dgc(0.1) | hierarchical(outer='gtopk', {TWO})",
    f"nonzero | hierarchical(outer='columns', {TWO})",
    f"int8 | hierarchical(outer='alltoall', {TWO})",
    f"none | hierarchical(outer='allreduce', {TWO})",
    f"none | hierarchical(outer='powersgd(2)', {TWO})",
    f"threshold(0.01)+ef | hierarchical({TWO})",
    f"topk(0.1)+ef | hierarchical(outer='sparse_auto(every=2)', {TWO})",
    f"none | steps('reduce@node, reduce_scatter@cross, all_gather@cross, broadcast@node', {TWO})",
    "topk(0.1)+ef | steps('reduce_scatter@node, compress@gpu, all_gather@cross, decompress@gpu, "
    f"all_gather@node', {TWO})",
    "qsgd(4)+ef | steps('compress@gpu, gather@node, decompress@gpu, compress@cpu, "
    f"all_to_all@cross, all_gather@cross, broadcast@node, decompress@gpu', {TWO})",
)
every = pytest.mark.parametrize("strategy", first(STRATEGIES, 5))
some = pytest.mark.parametrize("strategy", first(STRATEGIES, 2))


@every
def test_ranks_end_equal_and_as_in_lockstep(four: Ranks, strategy: str) -> None:
    first, *others = four.run(as_in_lockstep, strategy)
    assert all(other == first for other in others)


@some
def test_the_same_through_ddp(four: Ranks, strategy: str) -> None:
    first, *others = four.run(plain_and_ddp, strategy)
    assert first[:2] == first[2:]
    assert all(other == first for other in others)


@some
def test_resume_is_the_uninterrupted_run(four: Ranks, strategy: str, tmp_path: Path) -> None:
    four.run(resumed, strategy, str(tmp_path))


@pytest.mark.once
@every
@pytest.mark.parametrize("where", ["a", "c"])
def test_one_bad_number_spoils_all_and_leaves_states(
    four: Ranks, strategy: str, where: str
) -> None:
    assert len(set(four.run(spoiled, strategy, where))) == 1


def beside_a_bad_bucket(strategy: str) -> str:
    """What good buckets sent in a skipped step goes back to the residuals of the parts' owners."""
    model, first = Told(), dist.get_rank() // 2 * 2
    with attached(model, strategy, bucket_bytes=8) as handle:
        before, given, after = around_a_bad_bucket(model, handle)
        for name in given:
            more = after[name]["residual"].sum() - before[name]["residual"].sum()
            waits = sum(from_all(more)[first : first + 2])
            mean = sum(from_all(given[name].sum())[first : first + 2]) / 2
            wanted = torch.zeros(()) if name == "b" else mean
            torch.testing.assert_close(waits, wanted, rtol=1e-4, atol=1e-4)
        model.zero_grad()
        model(slopes(4)).backward()
    return fingerprint(gradients(model).values())


@pytest.mark.parametrize("outer", ["allgather", "zen", "gtopk", "alltoall"])
def test_beside_a_bad_bucket(four: Ranks, outer: str) -> None:
    strategy = f"topk(0.1)+ef | hierarchical(outer={outer!r}, {TWO})"
    assert len(set(four.run(beside_a_bad_bucket, strategy))) == 1


# -- where ranks are -----------------------------------------------------------------------------


def found(names: list[str], strategy: str) -> tuple[str, str, list[str]]:
    """The error, if any; the gradients' bits; and the groups over which messages moved."""
    os.environ["GROUP_RANK"] = names[dist.get_rank()]
    try:
        model = small()
        with attached(model, strategy) as handle:
            train(model, range(2))
            seen, stats = gradients(model), handle.stats()
            groups = sorted({s.group for s in handle.trace.of("wire")})
        assert stats["bytes_across"] <= stats["bytes_sent"]
        return "", fingerprint(g for _, g in sorted(seen.items())), groups
    except UsageError as error:
        return str(error), "", []
    finally:
        del os.environ["GROUP_RANK"]


def test_machines_are_found_by_name(four: Ranks) -> None:
    asks = "topk(0.1)+ef | hierarchical(outer='zen')"
    told = f"topk(0.1)+ef | hierarchical(outer='zen', {TWO})"
    two = four.run(found, ["0", "0", "1", "1"], asks)
    assert len({bits for _, bits, _ in two}) == 1
    assert all(groups == ["cross", "node", "world"] for _, _, groups in two)
    assert two == four.run(found, ["a"] * 4, told), "what is told counts, whatever is found"
    one = four.run(found, ["a"] * 4, asks)
    each = four.run(found, ["0", "1", "2", "3"], asks)
    assert each[0][2] == ["world"], "groups that nobody needs"
    assert len({bits for _, bits, _ in (*two, *one, *each)}) == 3
    mixed = four.run(found, ["x", "y", "y", "x"], "none | hierarchical")
    assert len({bits for _, bits, _ in mixed}) == 1


def test_machines_of_different_sizes_are_refused_everywhere(four: Ranks) -> None:
    for text, _, _ in four.run(found, ["0", "0", "0", "1"], "none | hierarchical"):
        assert "needs the same number of ranks on each" in text
        assert "1' has 1" in text
        assert "0' has 3" in text
    for text, _, _ in four.run(found, ["0"] * 4, "none | hierarchical(per_node=3)"):
        assert "4 ranks are not a multiple of per_node=3" in text
    assert four.run(found, ["0"] * 4, "none | hierarchical")[0][0] == ""


def two_numbers() -> str:
    """The plan's buckets disagree on how many ranks share a machine."""
    model = small()
    with attached(model, "none | allreduce", bucket_bytes=1000) as handle:
        plan = handle.plan
    texts = [f"none | hierarchical(per_node={1 + b % 2})" for b in range(len(plan.buckets))]
    wrong = Plan(plan.buckets, tuple(map(Strategy.parse, texts)))
    with pytest.raises(PlanError, match="per_node=1 and 2") as raised:
        gradwire.attach(model, wrong, timeout_seconds=5.0)
    return str(raised.value)


def test_a_plan_has_one_number_of_ranks_to_a_machine(four: Ranks) -> None:
    four.run(two_numbers)


def warmed_up_in_parts() -> None:
    warmup = gradwire.Warmup(4, ["lloyd(2) | allgather"])
    optimizer = gradwire.optim.AdamW(small().parameters())
    said = raised(
        lambda: gradwire.attach(
            small(), f"lloyd(1)+adam | hierarchical({TWO})", warmup=warmup, optimizer=optimizer
        ),
        PlanError,
    )
    assert "what waits under 'adam' are steps" in said
    assert "Leave out the warm-up" in said


def test_a_warm_up_that_would_make_gradients_of_steps_is_refused(four: Ranks) -> None:
    """When the model is attached, not when the warm-up ends."""
    four.run(warmed_up_in_parts)


def in_half_the_world() -> str:
    """Each half attaches a model of its own, over a group of its own."""
    half = dist.get_rank() // 2 * 2
    groups = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    model = small(seed=half)
    with attached(
        model, f"topk(0.1)+ef | hierarchical(outer='zen', {TWO})", process_group=groups[half // 2]
    ):
        train(model, range(2))
    return fingerprint(model.parameters())


def test_groups_of_some_ranks_of_the_world(tmp_path: Path) -> None:
    with Ranks(4, tmp_path) as ranks:  # torch counts such groups, hence a pool of their own
        one, other, third, fourth = ranks.run(in_half_the_world)
    assert one == other != third == fourth


def detached() -> list[tuple[int, int]]:
    return resources_of(STRATEGIES[2], nn.Linear(16, 16))


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="counts threads in /proc")
def test_detaching_frees_threads_and_sockets(four: Ranks) -> None:
    for counts in four.run(detached):
        assert counts[-1][0] <= counts[1][0] + 1, counts
        assert counts[-1][1] <= counts[1][1] + 1, counts


# -- states --------------------------------------------------------------------------------------


def of_another_part(strategy: str) -> None:
    """Each rank's state covers its part alone: another rank's or a flat strategy's does not
    fit."""
    model = small()
    with attached(model, strategy) as handle:
        train(model, range(2))
        saved: Any = handle.state_dict()
        own = entry(handle)
        kept = state_of(handle)
    part = [dist.get_rank() % 2, 2]
    assert own["part"] == part
    waits = sum(v["residual"].numel() for v in kept.values() if "residual" in v)
    assert waits < sum(p.numel() for p in model.parameters() if p.dim() > 1)
    flat = strategy.partition("|")[0] + "| allgather"
    other = {f"{dist.get_rank()}": {**own, "part": [1 - part[0], 2]}}
    for text, state, says in (
        (flat, saved, "must be loaded with the strategies"),
        (strategy, {**saved, "ranks": other}, "residuals of the same part"),
    ):
        with attached(small(), text) as handle, pytest.raises(PlanError, match=says):
            handle.load_state_dict(state)


def test_a_state_of_another_part_is_refused(four: Ranks) -> None:
    four.run(of_another_part, STRATEGIES[1])


# -- ranks that die ------------------------------------------------------------------------------


MOVES = 15
"""The moves of a step: seven for each of two matrices (one inside, five across, one inside), one
for both vectors."""


def at_move(at: int, step: int = 0, ddp: bool = False) -> Broken:
    fault = Die(at=step * MOVES + at)
    return Broken(3, fault, step, STRATEGIES[2], ddp=ddp, wide=40, waits=True)


@pytest.mark.parametrize(
    "jobs",
    [
        [at_move(0), at_move(6), at_move(3, step=3, ddp=True)],
        pytest.param([at_move(at) for at in (1, 3, 9)], marks=pytest.mark.full),
        pytest.param([at_move(at, step=3, ddp=True) for at in (0, 6)], marks=pytest.mark.full),
    ],
)
def test_a_dead_rank_ends_every_other(tmp_path: Path, jobs: list[Broken]) -> None:
    """Every other rank fails, whichever group needed the dead one, also if it never exchanges with
    it. In DDP a rank dies in the fourth step, as DDP has moves of its own before its second."""
    for outcomes in side_by_side(tmp_path, [(4, job) for job in jobs]):
        assert outcomes[3].died
        assert all(outcome.ok for outcome in outcomes[:3]), outcomes
        stories: list[Story] = [outcome.value for outcome in outcomes[:3]]
        assert all(story.kind == "PeerError" for story in stories), stories
        assert any("rank 3 died" in story.text for story in stories), stories


def test_a_failing_rank_ends_every_other(four: Ranks) -> None:
    """The failing rank raises its own error, the others PeerError, and the pool goes on."""
    fault = Fail(at=3, error=ValueError("on purpose"))
    stories = four.run(Broken(0, fault, 0, STRATEGIES[2], wide=40, waits=True))
    assert stories[0].kind == "ValueError"
    assert all(story.kind == "PeerError" for story in stories[1:]), stories
    assert len(set(four.run(trained))) == 1


def trained() -> str:
    model = small()
    with attached(model, STRATEGIES[2]):
        loss_of(model).backward()
    return fingerprint(gradients(model).values())


class Words(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(10, 4, sparse=True)
        self.top = nn.Linear(4, 20)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        return self.top(self.table(words)).square().sum()


def rows_beside_parts() -> set[str]:
    torch.manual_seed(0)
    model = Words()
    text = f"nonzero | hierarchical(outer='columns', {TWO})"
    with attached(model, text) as handle:
        model(torch.tensor([1, 2, 2, 3 + dist.get_rank()])).backward()
        assert handle.plan.strategy_of("table.weight") == Strategy.parse(text)
        return {fingerprint(p.grad.to_dense() for p in model.parameters() if p.grad is not None)}


def test_gradients_that_come_as_rows_are_summed_by_machines_too(four: Ranks) -> None:
    assert len(set.union(*four.run(rows_beside_parts))) == 1

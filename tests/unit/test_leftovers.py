"""What an earlier plan left is added to the next gradients once, even if a step is skipped."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from gradwire import Plan, Strategy
from gradwire.buckets import Parameter
from gradwire.errors import PlanError
from gradwire.testing import Workers

WORLD = 4
SHAPES = {"wide": (12, 20), "small": (3, 3), "last": (9, 7)}
PARAMETERS = [Parameter(name, shape) for name, shape in SHAPES.items()]
PATH = "compress@gpu, all_to_all, decompress@gpu, compress@gpu, all_gather, decompress@gpu"


def plan_of(strategy: str) -> Plan:
    """Two buckets, the last matrix in one of its own."""
    return Plan.make(PARAMETERS, Strategy.parse(strategy), buckets=[["wide", "small"], ["last"]])


def drawn(step: int, factor: float = 1.0) -> list[dict[str, Tensor]]:
    dice = torch.Generator().manual_seed(step)
    return [
        {name: factor * torch.randn(shape, generator=dice) for name, shape in SHAPES.items()}
        for _ in range(WORLD)
    ]


def waiting(workers: Workers) -> dict[str, Tensor]:
    """All that the ranks must still add to gradients, by parameter."""
    every = [ledger.waiting() for ledger in workers.ledgers]
    nothing = torch.zeros(1)
    return {
        name: torch.stack([own.get(name, nothing).expand(p.elements) for own in every]).sum(0)
        for name, p in zip(SHAPES, PARAMETERS)
    }


REDUCED = "reduce@node, compress@gpu, all_gather@cross, decompress@gpu, broadcast@node"
SCATTERED = "reduce_scatter@node, compress@gpu, all_gather@cross, decompress@gpu, all_gather@node"
BY_MACHINES = [
    f"topk(0.1)+ef | steps('{REDUCED}', per_node=2)",
    f"topk(0.1)+ef | steps('{SCATTERED}', per_node=2)",
    "topk(0.1)+ef | hierarchical(per_node=2)",
]


@pytest.mark.parametrize("then", [*BY_MACHINES, "topk(0.1)+ef | allgather"])
@pytest.mark.parametrize("first", [*BY_MACHINES, "topk(0.1)+ef | allgather"])
def test_a_machine_s_residual_is_no_rank_s_own(first: str, then: str) -> None:
    """A new plan, such as a phase of a warm-up, changes what waits neither for a mean of ranks nor
    for a rank; ranks that hold the same stay alike."""
    workers = Workers(plan_of(first), WORLD)
    for step in range(2):
        workers.exchange(drawn(step))
    for _ in range(2):
        before = waiting(workers)
        workers.adopt(plan_of(then.replace("0.1", "0.2")))
        after = waiting(workers)
        for name in SHAPES:
            assert float(before[name].abs().max()) > 0.1, name
            torch.testing.assert_close(after[name], before[name], rtol=1e-4, atol=1e-5)
    workers.exchange(drawn(2))
    for context, *others in zip(*(ledger.contexts for ledger in workers.ledgers)):
        for other in others:
            assert all(map(torch.equal, context.results, other.results))


@pytest.mark.parametrize(
    ("first", "then"),
    [
        ("topk(0.1)+adam | hierarchical(per_node=2)", "topk(0.2)+adam | hierarchical(per_node=2)"),
        ("topk(0.1)+adam | allgather", "topk(0.1)+adam | hierarchical(per_node=2)"),
        ("topk(0.1)+adam | hierarchical(per_node=2)", "topk(0.1)+adam | allgather"),
    ],
)
def test_steps_that_wait_never_become_gradients(first: str, then: str) -> None:
    """They are thousands of times as large: moments that have seen them divide by them for long.
    So where they cannot pass to those of the new plan, it is refused."""
    workers = Workers(plan_of(first), WORLD)
    workers.exchange(drawn(0, 1e-3))
    before = waiting(workers)
    with pytest.raises(PlanError, match=r"what waits under 'adam' are steps, .*flush\(\)"):
        workers.adopt(plan_of(then))
    with pytest.raises(PlanError, match="what waits under 'adam' are steps"):
        workers.ledgers[1].adopt(plan_of(then))
    after = waiting(workers)
    for name in SHAPES:
        assert torch.equal(after[name], before[name])


@pytest.mark.parametrize("last", ["alltoall", "hierarchical(per_node=1)"])
def test_steps_pass_on_where_each_rank_has_its_own(last: str) -> None:
    workers = Workers(plan_of("topk(0.1)+adam | allgather"), WORLD)
    workers.exchange(drawn(0, 1e-3))
    before = waiting(workers)
    workers.adopt(plan_of(f"topk(0.2)+adam | {last}"))
    after = waiting(workers)
    assert not any(ledger.leftovers for ledger in workers.ledgers)
    for name in SHAPES:
        assert torch.equal(after[name], before[name])


@pytest.mark.parametrize(
    ("first", "then"),
    [
        ("topk(0.1)+ef | allgather", then)
        for then in (
            "none | allreduce",
            "none | powersgd(4)",  # the small matrix would not get smaller, and has no residual
            "none | thc(4)",
            "none | recode('qsgd(4)')",
            "topk(0.1)+ef | gtopk",
            "onebit+ef | alltoall",
            "topk(0.1)+ef21 | allgather",
            "topk(0.1)+ef | hierarchical(per_node=2)",
            f"qsgd(4)+ef | steps('{PATH}')",
        )
    ]
    + [("dgc(0.1) | allgather", "none+server_momentum | allreduce")],
)
@pytest.mark.parametrize("bad", ["last", "wide"])
def test_a_skipped_step_neither_loses_nor_doubles_what_waits(
    first: str, then: str, bad: str
) -> None:
    workers = Workers(plan_of(first), WORLD)
    for step in range(2):
        workers.exchange(drawn(step))
    workers.adopt(plan_of(then))
    before = waiting(workers)
    gradients = drawn(2, 0.0)
    gradients[1][bad][0, 0] = torch.inf
    workers.exchange(gradients)
    after = waiting(workers)
    for name in SHAPES:
        assert float(before[name].abs().max()) > 0.1, name
        torch.testing.assert_close(after[name], before[name], rtol=1e-4, atol=1e-5)

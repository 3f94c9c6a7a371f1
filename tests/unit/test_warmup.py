"""Warm-up: the density of each step, and which parameters travel dense meanwhile."""

from __future__ import annotations

import re
from typing import Any

import pytest

from gradwire import Plan, Strategy, Warmup
from gradwire.buckets import Parameter
from gradwire.errors import PlanError, StrategyError
from gradwire.warmup import at_density

MATRIX, VECTOR = Parameter("w", (100, 100)), Parameter("b", (100,))


def plan(text: str) -> Plan:
    return Plan.make([MATRIX, VECTOR], Strategy.parse(text))


def of_matrix(text: str, density: float | None, world: int) -> str:
    return str(at_density(plan(text), density, world).strategy_of("w"))


def test_the_papers_densities_share_the_steps() -> None:
    """Sparsities of 75, 93.75, 98.4375 and 99.6 % share the steps, then comes the plan's."""
    warmup = Warmup(8)
    assert [warmup.density(step) for step in range(10)] == [
        0.25, 0.25, 0.0625, 0.0625, 0.015625, 0.015625, 0.004, 0.004, None, None,
    ]  # fmt: skip


def test_steps_that_do_not_divide_are_all_used() -> None:
    found = [Warmup(10, (0.5, 0.1, 0.02)).density(step) for step in range(11)]
    assert found == [0.5] * 4 + [0.1] * 3 + [0.02] * 3 + [None]


def test_exponential_is_that_of_the_released_code() -> None:
    """It is base^(1/(epochs + 1)), as that code computes it, not as its comments print it."""
    found = Warmup.exponential(5, 5, 0.001).densities
    assert found == pytest.approx([0.31623, 0.1, 0.031623, 0.01, 0.0031623], rel=1e-4)


@pytest.mark.parametrize(
    ("text", "world", "wanted"),
    [
        ("dgc(0.001) | allgather", 4, "none+server_momentum | allreduce"),  # 0.25 > 1/8
        ("dgc(0.001) | allgather", 2, "topk(0.25)+dgc | allgather"),  # 0.25 is not more than 1/4
        ("topk(0.001)+ef | gtopk", 4, "none | allreduce"),
        ("topk(0.5)+ef | allgather", 1, "topk(0.5)+ef | allgather"),  # never less than the plan's
        (
            "randk(0.01)+ef | allreduce",
            16,
            "randk(0.25)+ef | allreduce",
        ),  # sums, and sends no lists
        ("onebit+ef | alltoall", 4, "none | allreduce"),
        ("powersgd(4)", 4, "none | allreduce"),
        ("bf16 | allreduce", 4, "bf16 | allreduce"),
        ("none | allreduce", 4, "none | allreduce"),
    ],
)
def test_what_travels_at_a_quarter(text: str, world: int, wanted: str) -> None:
    assert of_matrix(text, 0.25, world) == wanted
    assert of_matrix(text, None, world) == str(Strategy.parse(text))


def test_vectors_and_buckets_stay() -> None:
    whole = plan("dgc(0.001) | allgather")
    early = at_density(whole, 0.004, 4)
    assert early.buckets == whole.buckets
    assert early.lanes == whole.lanes
    assert early.strategy_of("b") == whole.strategy_of("b")
    assert str(early.strategy_of("w")) == "topk(0.004)+dgc | allgather"
    assert at_density(whole, None, 4) is whole


def test_nothing_changes_nothing() -> None:
    whole = plan("bf16 | allreduce")
    assert at_density(whole, 0.25, 4) is whole


@pytest.mark.parametrize(
    ("steps", "densities"),
    [(3, (0.5, 0.4, 0.3, 0.2)), (-1, ()), (10, ()), (10, (0.0,)), (10, (1.5,)), (2.5, (0.5,))],
)
def test_what_is_no_warmup(steps: int, densities: tuple[float, ...]) -> None:
    with pytest.raises(PlanError, match="warm-up"):
        Warmup(steps, densities)
    with pytest.raises(PlanError, match="exponential"):
        Warmup.exponential(10, 0, 0.1)


FINER = "lloyd(2) | allgather"


@pytest.mark.parametrize("alone", [FINER, 0.25, None])
def test_one_density_is_a_list_of_one(alone: Any) -> None:
    with pytest.raises(PlanError, match=re.escape(f"brackets: Warmup(10, [{alone!r}])")):
        Warmup(10, alone)
    with pytest.raises(PlanError, match="a whole number of levels"):
        Warmup.exponential(10, 2.5, 0.1)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("lloyd(1)+adam | alltoall", "lloyd(2)+adam | allgather"),
        ('lloyd(1, turns=2)+muon | alltoall(means="int8")', "lloyd(2)+muon | allgather"),
        ("topk(0.01)+ef | gtopk", "lloyd(2)+ef | allgather"),
        ("qsgd(4)+server_adam | alltoall", "qsgd(4)+server_adam | alltoall"),  # no residual
        ("bf16 | allreduce", "bf16 | allreduce"),
    ],
)
def test_what_leaves_something_waiting_begins_by_a_text(text: str, wanted: str) -> None:
    whole = plan(text)
    early = at_density(whole, FINER, 4)
    assert early.strategy_of("w") == Strategy.parse(wanted)
    assert early.strategy_of("b") == whole.strategy_of("b")


def test_texts_and_densities_share_the_steps() -> None:
    warmup = Warmup(4, [FINER, 0.1])
    assert [warmup.density(step) for step in range(5)] == [FINER, FINER, 0.1, 0.1, None]
    assert warmup.begins == [0, 2, 4]
    assert Warmup(10, (0.5, 0.25, 0.1)).begins == [0, 4, 7, 10]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("lloyd(2)", "needs a collective"),
        ("lloyd(2)+ef | allgather", "its own feedback; got 'lloyd(2)+ef | allgather'. Use for"),
        ("none | hierarchical", "must be a compressor without feedback"),
        ("none | columns", "must be a compressor without feedback"),
        ("powersgd(4)", "must be a compressor without feedback"),
    ],
)
def test_a_text_is_a_compressor_and_a_collective(text: str, said: str) -> None:
    with pytest.raises((PlanError, StrategyError), match=re.escape(said)):
        Warmup(10, [text])


def test_directions_have_no_dense_form() -> None:
    with pytest.raises(PlanError, match="sends signs without a scale"):
        of_matrix("sign | vote", 0.25, 4)

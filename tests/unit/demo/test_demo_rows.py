"""Which rows the demo compares."""

import pytest

from gradwire.demo import rows
from gradwire.errors import StrategyError


def labels(*strategies: str, quick: bool = False) -> list[str]:
    return [row.label for row in rows.contestants(strategies, quick=quick)]


def test_the_usual_rows() -> None:
    assert labels() == [
        "no synchronization", "DDP fp32", "DDP fp16 hook",
        "none | allreduce", "bf16 | allreduce", "dgc(0.001) | allgather",
    ]  # fmt: skip


def test_the_quick_rows() -> None:
    assert labels(quick=True) == ["no synchronization", "DDP fp32", "dgc(0.001) | allgather"]


@pytest.mark.parametrize("quick", [False, True])
def test_strategies_replace_gradwires_rows(quick: bool) -> None:
    got = rows.contestants(["topk(0.01)+ef|allgather"], quick=quick)
    assert [row.strategy for row in got if row.strategy] == ["topk(0.01)+ef | allgather"]
    assert rows.DDP in got


def test_a_strategy_given_twice_runs_once() -> None:
    assert labels("bf16 | allreduce", "bf16|allreduce").count("bf16 | allreduce") == 1


def test_a_wrong_strategy_is_refused() -> None:
    with pytest.raises(StrategyError, match="nonsense"):
        rows.contestants(["nonsense | allreduce"])


def test_only_one_row_trains_alone() -> None:
    assert [row.label for row in rows.contestants() if row.method == "alone"] == [
        "no synchronization"
    ]


@pytest.mark.parametrize(
    ("strategy", "keeps"),
    [
        ("dgc(0.001) | allgather", True),
        ("topk(0.01)+ef | allgather", False),
        ("none | allreduce", False),
    ],
)
def test_who_keeps_the_momentum(strategy: str, keeps: bool) -> None:
    assert rows.keeps_momentum(strategy) is keeps

"""Flows as columns, and the columns that they refuse."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gradwire.errors import NetworkError
from gradwire.network.flows import Flow, Flows


def test_columns_and_rows_are_the_same() -> None:
    flows = Flows.of([Flow(0, 1, 10), (2, 0, 5, 3)])
    assert list(flows) == [Flow(0, 1, 10, 0), Flow(2, 0, 5, 3)]
    assert list(Flows.of([(0, 1, 10, 2, 70)])[:1]) == [Flow(0, 1, 10, step=2, start_ns=70)]
    assert flows == Flows([0, 2], [1, 0], [10, 5], [0, 3])
    assert flows != Flows([0, 2], [1, 0], [10, 6], [0, 3])
    assert len(flows) == 2
    assert Flows.of(flows) is flows


def test_one_number_is_for_all() -> None:
    flows = Flows(np.arange(4), (np.arange(4) + 1) % 4, 100)
    assert flows.bytes.tolist() == [100] * 4
    assert flows.step.tolist() == [0] * 4


def test_some_of_them_in_their_order() -> None:
    flows = Flows([0, 1, 2], [1, 2, 0], [7, 8, 9])
    assert list(flows[np.array([2, 0])]) == [Flow(2, 0, 9), Flow(0, 1, 7)]
    assert list(flows[flows.bytes > 7]) == [Flow(1, 2, 8), Flow(2, 0, 9)]


def test_steps_that_start_differently_are_not_alike() -> None:
    same, other = (Flows([0, 0], [1, 1], 5, [0, 1], [0, start]).steps() for start in (0, 9))
    assert [len(group) for group in same] == [2]
    assert [len(group) for group in other] == [1, 1]


def test_no_flows() -> None:
    assert len(Flows.of([])) == 0
    assert repr(Flows.of([])) == "Flows(0 among 0 hosts, 0 bytes)"


def test_a_flow_keeps_its_own_columns() -> None:
    source = np.array([0, 1])
    flows = Flows(source, [1, 0], 5)
    source[0] = 9
    assert flows.src.tolist() == [0, 1]


@pytest.mark.parametrize(
    ("columns", "rule"),
    [
        (([0], [1], [0]), "bytes of flows must be whole numbers from 1 .*number 0 is 0"),
        (([0, 3], [1, 3], [5, 5]), "another host; flow 1 is 3 -> 3"),
        (([-1], [1], [5]), "src of flows must be whole numbers from 0 .*number 0 is -1"),
        (([0], [1], [5], [-2]), "step of flows must be whole numbers from 0 .*number 0 is -2"),
        (
            ([0], [1], [5], [0], [-1]),
            "start_ns of flows must be whole numbers from 0 to 9{15}; number",
        ),
        (([0], [1], [5], [0], [10**15]), "start_ns of flows must be whole numbers .* to 9{15}"),
        (([0, 1], [1, 2, 3], [5]), "the same length; got 2, 3, 1, 1"),
        (([0], [1], [1.5]), "bytes of flows must be one row of whole numbers .* got float"),
        (([0], [1], [True]), "bytes of flows must be one row of whole numbers .* got bool"),
        (([[0]], [1], [5]), "src of flows must be one row of whole numbers"),
    ],
)
def test_what_no_flow_can_be(columns: tuple[Any, ...], rule: str) -> None:
    with pytest.raises(NetworkError, match=rule):
        Flows(*columns)

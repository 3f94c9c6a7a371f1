"""Flows made from moves in the form that pricing gives."""

from __future__ import annotations

import numpy as np
import pytest
from network_moves import move

from gradwire.errors import NetworkError
from gradwire.network import Flows
from gradwire.network.demand import flows_of, in_groups
from gradwire.network.patterns import all_to_all
from gradwire.network.placement import Placement
from gradwire.planner.priced import PricedMove
from gradwire.planner.pricing import price


def sent(flows: Flows, hosts: int) -> list[int]:
    return np.bincount(flows.src, flows.bytes, hosts).astype(int).tolist()


@pytest.mark.parametrize("world", [2, 4, 6])
@pytest.mark.parametrize(
    "strategy", ["none | allreduce", "topk(0.01)+ef | allgather", "sign+ef | alltoall"]
)
def test_hosts_send_what_pricing_says(strategy: str, world: int) -> None:
    priced = price(strategy, [30_000], world)
    flows = flows_of([priced.moves], Placement.in_order(world))
    promised = sum(m.sent for m in priced.moves)
    assert max(sent(flows, world)) == pytest.approx(promised, rel=0.001, abs=64 * world)


def test_places_change_hosts_and_nothing_else() -> None:
    placed = Placement((3, 1, 0)).placed(Flows([0, 1], [1, 2], [7, 8], [0, 2], [50, 0]))
    assert placed == Flows([3, 1], [1, 0], [7, 8], [0, 2], [50, 0])


def test_groups_exchange_at_once() -> None:
    flows = in_groups(all_to_all, 6, 3, 300)
    assert len(flows) == 12
    assert (flows.src // 3 == flows.dst // 3).all()
    assert set(flows.bytes.tolist()) == {100}
    assert set(flows.step.tolist()) == {0}
    with pytest.raises(NetworkError, match="every group must have 4 ranks; got 6 ranks"):
        in_groups(all_to_all, 6, 4, 300)


def test_groups_begin_when_their_pattern_says() -> None:
    late = in_groups(lambda ranks, bytes: Flows([0], [ranks - 1], bytes, 0, 700), 4, 2, 9)
    assert late == Flows([0, 2], [1, 3], 9, 0, 700)
    with pytest.raises(NetworkError, match="ranks must be numbered from 0 to 1; got a flow with"):
        in_groups(lambda ranks, bytes: Flows([0], [ranks], bytes), 4, 2, 9)


@pytest.mark.parametrize("world", [3, 4, 8])
def test_exchanges_go_where_each_rank_says(world: int) -> None:
    moves = [price("topk(0.01)+ef | gtopk", [30_000], world, rank=r).moves for r in range(world)]
    flows = flows_of(moves, Placement.in_order(world))
    for rank, own in enumerate(moves):
        exchanged = sum(m.sent for m in own if m.name == "exchange")
        rest = sum(m.sent for m in own if m.name != "exchange")
        assert sent(flows, world)[rank] == pytest.approx(exchanged + rest, abs=64 * world)


def test_levels_use_machines_and_what_is_across() -> None:
    """Four machines of two: inside a machine nothing is sent, across only between equal places."""
    placement = Placement.in_order(8, 2)
    moves = price("none | hierarchical(outer='allreduce')", [8000], 8, per_node=2).moves
    assert {m.group for m in moves} == {"node", "cross"}
    flows = flows_of([moves], placement)
    assert {(b - a) % 8 for a, b in zip(flows.src.tolist(), flows.dst.tolist())} == {2}
    across = sum(m.sent for m in moves if m.group == "cross")
    assert sent(flows, 8) == pytest.approx([across] * 8, abs=8)


def test_one_move_begins_when_the_other_has_ended() -> None:
    moves = [move("all_gather", 10), move("all_to_all", 40), move("broadcast", 5)]
    flows = flows_of([moves], Placement.in_order(4))
    assert sorted(set(flows.step.tolist())) == list(range(3 + 3 + 1))
    assert flows[flows.step == 6] == Flows([0, 0, 0], [1, 2, 3], 5, 6)


def test_messages_of_exchanges_are_flows() -> None:
    placement = Placement((5, 6, 7))
    rows = [[move("exchange", 0, to=to)] for to in (((1, 9), (2, 0)), (), ((0, 4),))]
    assert flows_of(rows, placement) == Flows([5, 7], [6, 5], [9, 4])


@pytest.mark.parametrize(
    ("moves", "machine", "said"),
    [
        ([[move("exchange", 0)]], None, "got the moves of only 1 rank of 4"),
        ([[move("all_gather", 1)]] * 2, None, "got 2 rows of 1 kinds"),
        ([[move("gather", 1)]] * 3 + [[]], None, "got 4 rows of 2 kinds"),
        ([[move("shout", 1)]], None, "got 'shout'"),
        ([[move("all_gather", 1, "cross")]], (0, 0, 0, 1), r"got \[1, 3\]"),
    ],
)
def test_moves_that_do_not_fit_are_refused(
    moves: list[list[PricedMove]], machine: tuple[int, ...] | None, said: str
) -> None:
    with pytest.raises(NetworkError, match=said):
        flows_of(moves, Placement((0, 1, 2, 3), machine))

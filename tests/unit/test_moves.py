"""What a move costs on the wire, by the formulas of the design."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import pytest
import torch

from gradwire.groups import Group
from gradwire.moves import AllGather, AllReduce, AllToAll, Exchange, Move, over

WORLDS = [1, 2, 3, 5, 8]


@pytest.mark.parametrize("n", WORLDS)
@pytest.mark.parametrize(("dtype", "item"), [(torch.float32, 4), (torch.float16, 2)])
def test_all_reduce_sends_twice_all_but_its_own_share(
    n: int, dtype: torch.dtype, item: int
) -> None:
    move = AllReduce(torch.zeros(10, dtype=dtype))
    assert move.bytes == 10 * item
    assert move.bytes_sent(n) == pytest.approx(2 * (n - 1) / n * 10 * item)


@pytest.mark.parametrize("n", WORLDS)
def test_all_gather_sends_everything_to_everybody_else(n: int) -> None:
    move = AllGather(torch.zeros(33, dtype=torch.uint8))
    assert move.bytes == 33
    assert move.bytes_sent(n) == move.bytes_received(n) == (n - 1) * 33


def test_an_exchange_sends_what_it_has_for_others() -> None:
    parts = {1: torch.zeros(5, dtype=torch.uint8), 3: torch.zeros(8, dtype=torch.uint8)}
    move = Exchange(parts, {2: 7})
    assert (move.bytes_sent(4), move.bytes_received(4)) == (13, 7)
    assert str(move) == "exchange(bytes to {1: 5, 3: 8}, from {2: 7})"
    assert Exchange({}, {}).bytes_sent(4) == 0


def test_what_stays_at_home_in_an_all_to_all_is_not_counted() -> None:
    move = AllToAll(torch.zeros(6), sizes=(1, 2, 3), arriving=(7, 2, 4), rank=1)
    assert (move.bytes_sent(3), move.bytes_received(3)) == (16, 44)


def test_one_rank_sends_nothing() -> None:
    for kind in (AllReduce, AllGather):
        assert kind(torch.zeros(4)).bytes_sent(1) == 0


def test_moves_print_for_error_messages() -> None:
    assert str(AllReduce(torch.zeros(4))) == "all_reduce(4 × float32)"
    assert str(AllGather(torch.zeros(40, dtype=torch.uint8))) == "all_gather(40 × uint8)"


def test_a_move_says_where_it_is() -> None:
    node = Group("node", (2, 3))
    move = AllReduce(torch.zeros(4), group=node)
    assert str(move) == "all_reduce(4 × float32) in node (2, 3)"
    assert move.where == "node"
    assert AllReduce(torch.zeros(4)).where == "world"


def test_rounds_over_a_group_are_the_same_rounds() -> None:
    """Every move gets another group and nothing else changes; results go back to the rounds."""
    seen = []

    def rounds() -> Generator[Move, Any, None]:
        seen.append((yield AllGather(torch.zeros(3))))
        seen.append((yield Exchange({1: torch.zeros(5, dtype=torch.uint8)}, {1: 2})))

    cross = Group("cross", (0, 2))
    moved = over(cross, rounds())
    first = next(moved)
    assert isinstance(first, AllGather)
    second = moved.send("one")
    assert isinstance(second, Exchange)
    assert second.receives == {1: 2}
    assert first.group == second.group == cross
    with pytest.raises(StopIteration):
        moved.send("two")
    assert seen == ["one", "two"]


def test_moves_compare_by_identity() -> None:
    """Equality of tensors gives a tensor, no single truth value."""
    data = torch.zeros(2)
    assert AllReduce(data) != AllReduce(data)


def test_a_move_of_no_kind_has_no_price() -> None:
    with pytest.raises(NotImplementedError):
        Move().bytes_sent(2)

"""N ranks in one process: its arguments, its counts, and its errors when ranks disagree."""

from __future__ import annotations

import math
from collections.abc import Generator
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from gradwire import Strategy, lockstep
from gradwire.collectives import AllReduceSum
from gradwire.compressors import Identity
from gradwire.errors import MoveError, StrategyError, UsageError
from gradwire.feedback import ErrorFeedback
from gradwire.groups import Group
from gradwire.moves import (
    AllGather,
    AllReduce,
    AllToAll,
    Broadcast,
    Exchange,
    Gather,
    Move,
    Reduce,
    ReduceScatter,
)
from gradwire.runtime.lockstep import _perform
from gradwire.strategy import Collective, Context


def some(world: int, n: int = 6) -> list[Tensor]:
    return [torch.arange(n).float() + rank for rank in range(world)]


def test_text_and_value_are_the_same() -> None:
    text = "topk(0.5)+ef | allgather"
    one, other = lockstep(text, some(3)), lockstep(Strategy.parse(text), some(3))
    assert all(torch.equal(a, b) for a, b in zip(one[0], other[0]))
    assert one[1] == other[1]


def test_the_trace_counts_every_rank_and_move() -> None:
    _, trace = lockstep("none | allreduce", some(4))
    assert trace.world == 4
    assert [(s.rank, s.kind, s.label, s.bytes) for s in trace.spans] == [
        (rank, "wire", "all_reduce", 2 * 3 / 4 * 24) for rank in range(4)
    ]
    assert trace.bytes_sent == [36.0] * 4
    _, trace = lockstep("topk(0.5, index='int32') | allgather", some(4))
    assert trace.bytes_sent == [3 * (32 + 2 * 16)] * 4
    _, trace = lockstep("topk(0.5) | allgather", some(4))
    bitmap, values = 1 + 15, 3 * 4 + 4  # each rounded up to a multiple of 16
    assert trace.bytes_sent == [3 * (32 + bitmap + values)] * 4


def test_state_carries_the_residual_from_call_to_call() -> None:
    x = torch.tensor([[4.0, 1.0], [2.0, 3.0]])
    state: list[dict[str, Tensor]] = [{}]
    (first,), _ = lockstep("topk(0.5)+ef | allgather", [x], state=state)
    assert first.tolist() == [[4.0, 0.0], [0.0, 3.0]]
    assert state[0]["residual"].tolist() == [[0.0, 1.0], [2.0, 0.0]]
    (second,), _ = lockstep("topk(0.5)+ef | allgather", [x * 0], step=1, state=state)
    assert second.tolist() == [[0.0, 1.0], [2.0, 0.0]]
    assert not state[0]["residual"].any()


def test_without_state_every_call_begins_anew() -> None:
    xs = some(2)
    one, other = (lockstep("topk(0.5)+ef | allgather", xs)[0][0] for _ in range(2))
    assert torch.equal(one, other)


def test_state_survives_a_copy_through_a_file(tmp_path) -> None:  # type: ignore[no-untyped-def]
    """Resume is uninterrupted: save after three steps, load, and go on."""
    text, generator = "dgc(0.2) | allgather", torch.Generator().manual_seed(1)
    xs = list(torch.randn(2, 2, 5, generator=generator))
    state: list[dict[str, Tensor]] = [{}, {}]
    for step in range(3):
        lockstep(text, xs, step=step, state=state)
    torch.save(state, tmp_path / "state.pt")
    loaded = torch.load(tmp_path / "state.pt", weights_only=True)
    for step in range(3, 6):
        one, _ = lockstep(text, xs, step=step, state=state)
        other, _ = lockstep(text, xs, step=step, state=loaded)
        assert torch.equal(one[0], other[0])


# -- refused arguments -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tensors", "said"),
    [
        ([], "got none"),
        ([torch.zeros(3), torch.zeros(4)], r"rank 0: float32\[3\]; rank 1: float32\[4\]"),
        ([torch.zeros(3), torch.zeros(3, 1)], r"rank 1: float32\[3, 1\]"),
        ([torch.zeros(3), torch.zeros(3).half()], r"rank 1: float16\[3\]"),
        ([torch.zeros(3).int()] * 2, r"rank 0: int32\[3\]"),
        ([1, 2.5], r"rank 0: 1; rank 1: 2.5"),
        (None, "rank 0: None"),
    ],
)
def test_tensors_that_differ_are_refused_by_rank(tensors: list[Tensor], said: str) -> None:
    with pytest.raises(UsageError, match=rf"one floating-point tensor per rank.*{said}.* Pass"):
        lockstep("none | allreduce", tensors)


def test_ranks_may_come_one_by_one() -> None:
    means, trace = lockstep("none | allreduce", (torch.full((3,), float(r)) for r in range(2)))
    assert [mean.tolist() for mean in means] == [[0.5] * 3] * 2
    assert trace.world == 2


def test_rows_beside_a_dense_tensor_are_refused_by_rank() -> None:
    dense = torch.zeros(3, 2)
    with pytest.raises(UsageError, match=r"layout; .*rank 1: float32\[3, 2\] sparse_coo"):
        lockstep("none | columns", [dense, dense.to_sparse(1)])


@pytest.mark.parametrize("text", ["topk(0.5)+ef | allgather", "none | alltoall"])
def test_float64_is_sent_whole_or_refused(text: str) -> None:
    x = [torch.full((3,), 1 / 3, dtype=torch.float64)] * 2
    assert torch.equal(lockstep("none | allgather", x)[0][1], x[0])
    with pytest.raises(UsageError, match=r"float64 must be sent uncompressed.* got '.*'\. Use"):
        lockstep(text, x)


@pytest.mark.parametrize("text", ["none | allgather", "none | columns"])
def test_rows_in_float64_are_refused(text: str) -> None:
    rows = torch.eye(3, dtype=torch.float64).to_sparse(1)
    with pytest.raises(UsageError, match=r"rows .* must be float32.*; got float64\. Use"):
        lockstep(text, [rows, rows])


@pytest.mark.parametrize("count", [0, 1, 3])
def test_state_of_another_number_of_ranks_is_refused(count: int) -> None:
    with pytest.raises(
        UsageError, match=rf"one dict per rank; got {count} different dicts for 2 ranks\. Pass"
    ):
        lockstep("none | allreduce", some(2), state=[{} for _ in range(count)])


def test_ranks_that_share_one_state_are_refused() -> None:
    """[{}] * n is one dict: every rank would add to the same residual."""
    with pytest.raises(UsageError, match="one dict per rank; got 1 different dicts for 3 ranks"):
        lockstep("topk(0.5)+ef | allgather", some(3), state=[{}] * 3)


@pytest.mark.parametrize("text", ["topk(0.5)+ef | allgather", "fp16+ef | allgather"])
@pytest.mark.parametrize("size", [1, 5, 7])
def test_state_of_another_length_is_refused_by_rank(text: str, size: int) -> None:
    state = [{"residual": torch.zeros(6)}, {"residual": torch.zeros(size)}]
    with pytest.raises(UsageError, match=rf"rank 1's 'residual' has {size} elements"):
        lockstep(text, some(2), state=state)


def test_a_text_that_cannot_be_read_is_a_strategy_error() -> None:
    with pytest.raises(StrategyError, match="'nope' is not a collective"):
        lockstep("none | nope", some(2))
    with pytest.raises(StrategyError, match="cannot read the strategy None"):
        lockstep(None, some(2))  # type: ignore[arg-type]


# -- ranks that disagree -----------------------------------------------------------------------


@dataclass(frozen=True)
class Badly(Collective):
    """Each rank's moves depend on its own data: rank 1's begins with a one."""

    how: str
    name: ClassVar[str] = "badly"

    def rounds(self, ctx: Context) -> Generator[Move, Any, None]:
        numbers = ctx.numbers()
        odd = bool(numbers[0])
        if self.how == "size":
            yield AllGather(numbers[: 3 if odd else 6])
        elif self.how == "kind":
            yield (AllReduce if odd else AllGather)(numbers)
        elif self.how == "dtype":
            yield AllGather(numbers.half() if odd else numbers)
        elif self.how == "count":
            if odd:
                yield AllReduce(numbers)
            ctx.divide(numbers)
        elif self.how == "later":
            arrived = yield AllReduce(numbers)
            yield AllReduce(arrived[: 1 + int(ctx.rank == 1)])
        elif self.how == "unknown":
            yield Move(numbers)


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("size", r"rank 0: all_gather\(6 × float32\); rank 1: all_gather\(3 × float32\)"),
        ("kind", r"rank 0: all_gather\(6 .*; rank 1: all_reduce\(6 .*; rank 2: all_reduce"),
        ("dtype", r"rank 0: all_gather\(6 × float32\); rank 1: all_gather\(6 × float16\)"),
        ("count", r"rank 0: done; rank 1: all_reduce\(6 × float32\); rank 2: all_reduce"),
        ("later", r"rank 0: all_reduce\(1 .*; rank 1: all_reduce\(2 .*; rank 2: all_reduce\(1"),
    ],
)
def test_ranks_that_disagree_are_named_with_what_they_asked(how: str, said: str) -> None:
    with pytest.raises(MoveError, match=f"{said}.*depend on sizes and step alone"):
        lockstep(Strategy(Identity(), Badly(how)), some(3))


def test_a_move_that_nobody_can_perform_is_named() -> None:
    class Nameless(Move):
        name = "teleport"

    @dataclass(frozen=True)
    class Teleporting(AllReduceSum):
        def rounds(self, ctx: Context) -> Generator[Move, Any, None]:
            yield Nameless()

    with pytest.raises(MoveError, match=r"got teleport\."):
        lockstep(Strategy(Identity(), Teleporting()), some(2))


@dataclass(frozen=True)
class Made(AllReduceSum):
    """Yields a move made of this rank's three numbers, and leaves the numbers as the average."""

    make: Any
    name: ClassVar[str] = "made"

    def rounds(self, ctx: Context) -> Generator[Move, Any, None]:
        numbers = ctx.numbers()
        yield self.make(numbers.clone(), ctx.rank)
        ctx.divide(numbers)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda x, r: 5, r"must yield the moves of gradwire\.moves.*got 5\."),
        (lambda x, r: AllGather(x.view(2, 3)), r"1-D and contiguous; got shape \[2, 3\]"),
        (lambda x, r: AllGather(x[::2]), r"1-D and contiguous; got .*strides \[2\]"),
        (lambda x, r: AllToAll(x, (3, 2), (3, 3), r), r"add up to .* 6 elements; got \[3, 2\]"),
        (lambda x, r: AllToAll(x, (6,), (3, 3), r), r"sizes must be 2 numbers.*; got \[6\]"),
        (lambda x, r: AllToAll(x, (3, 3), (6,), r), r"arriving must be 2 numbers.*; got \[6\]"),
        (lambda x, r: ReduceScatter(x, (7, -1), r), r"at least 0 .*; got \[7, -1\]"),
        (lambda x, r: Broadcast(x, -1, r), "from 0 to 1; got -1"),
        (lambda x, r: Gather(x, 2, r), "from 0 to 1; got 2"),
        (lambda x, r: Exchange({1 - r: x}, {1 - r: 6}), "must be uint8; got torch.float32"),
        (lambda x, r: Exchange({2: some_bytes(1)}, {}), "from 0 to 1; got 2"),
        (lambda x, r: Exchange({1 - r: some_bytes(4)[::2]}, {1 - r: 2}), "contiguous; got"),
        (lambda x, r: Exchange({}, {}, alike=True), "must be with all 1 other ranks"),
    ],
)
def test_a_move_that_a_job_cannot_perform_is_refused(make: Any, said: str) -> None:
    with pytest.raises(MoveError, match=said):
        lockstep(Strategy(Identity(), Made(make)), some(2))


def test_what_is_alike_is_so_on_all_ranks_and_for_all() -> None:
    message, sizes = some_bytes(1), [{1: 1, 2: 1}, {0: 1, 2: 1}, {0: 1, 1: 1}]
    own = {r: Exchange.to_all(message, sizes[r]) for r in range(3)}
    arrived: dict[int, dict[int, Tensor]] = {}
    lockstep(Strategy(Identity(), Meeting(own, arrived)), some(3))
    assert {r: {*found} for r, found in arrived.items()} == {r: {*sizes[r]} for r in range(3)}
    for wrong, said in (
        (replace(own[2], alike=False), "must request the same move"),
        (replace(own[2], sends={0: some_bytes(1), 1: some_bytes(1)}), "must send one tensor"),
    ):
        with pytest.raises(MoveError, match=said):
            lockstep(Strategy(Identity(), Meeting(own | {2: wrong}, {})), some(3))


@pytest.mark.parametrize(
    "make",
    [AllReduce, lambda x: Reduce(x, 0, 0), lambda x: Broadcast(x, 0, 0)],
)
def test_a_sum_takes_the_place_of_the_data_as_in_a_job(make: Any) -> None:
    one, other = torch.ones(3), torch.full((3,), 2.0)
    moves = [make(one), make(other)]
    if not isinstance(moves[1], AllReduce):
        moves[1] = replace(moves[1], rank=1)
    arrived = _perform(moves)
    assert arrived[0].data_ptr() == one.data_ptr()
    assert not torch.equal(other, torch.full((3,), 2.0))


def test_rounds_that_are_no_generator_are_refused() -> None:
    @dataclass(frozen=True)
    class Returning(AllReduceSum):
        def rounds(self, ctx: Context) -> Any:
            return AllReduce(ctx.numbers())

    with pytest.raises(StrategyError, match="must be a generator, which yields moves"):
        lockstep(Strategy(Identity(), Returning()), some(2))


def test_a_state_of_any_strides_is_taken_and_one_that_is_no_tensor_is_not() -> None:
    xs = [x.view(2, 3) for x in some(2)]
    kept = torch.arange(6.0).view(3, 2)
    turned, straight = ([{"residual": x}, {}] for x in (kept.t(), kept.t().contiguous()))
    results = [lockstep("topk(0.5)+ef | allgather", xs, state=s)[0] for s in (turned, straight)]
    assert torch.equal(results[0][0], results[1][0])
    assert torch.equal(turned[0]["residual"], straight[0]["residual"])
    with pytest.raises(UsageError, match=r"rank 0's 'residual' has \[0, 1\]\. Begin with"):
        lockstep("topk(0.5)+ef | allgather", some(1, 2), state=[{"residual": [0, 1]}])  # type: ignore[dict-item]


def test_a_mean_that_a_feedback_remembers_is_not_where_the_next_gradient_goes() -> None:
    @dataclass(frozen=True)
    class Remembering(ErrorFeedback):
        def received(self, mean: Tensor, state: Any) -> Any:
            return {"last": mean}

    state: list[dict[str, Tensor]] = [{}, {}]
    both = Strategy.parse("none | allgather")
    results, _ = lockstep(
        Strategy(both.compressor, both.collective, Remembering()), some(2), state=state
    )
    wanted = results[0].clone()
    results[0].fill_(-1.0)
    assert torch.equal(state[0]["last"], wanted)


def test_a_collective_without_a_result_is_refused() -> None:
    @dataclass(frozen=True)
    class Forgetful(AllReduceSum):
        def rounds(self, ctx: Context) -> Generator[Move, Any, None]:
            yield AllReduce(ctx.numbers())

    with pytest.raises(StrategyError, match="must leave averages with ctx"):
        lockstep(Strategy(Identity(), Forgetful()), some(2))


# -- exchanges -----------------------------------------------------------------------------------


def some_bytes(count: int) -> Tensor:
    return torch.arange(count, dtype=torch.uint8)


PAIRED = {
    0: Exchange({1: some_bytes(3)}, {2: 1}),
    1: Exchange({}, {0: 3}),
    2: Exchange({0: some_bytes(1)}, {}),
}
"""Rank 0 sends to 1 and receives from 2."""


@dataclass(frozen=True)
class Meeting(AllReduceSum):
    """Ranks that make the given exchanges, and keep what arrives."""

    moves: dict[int, Exchange]
    arrived: dict[int, dict[int, Tensor]]

    def rounds(self, ctx: Context) -> Generator[Move, Any, None]:
        arrived = yield self.moves[ctx.rank]
        self.arrived[ctx.rank] = {by: x.clone() for by, x in arrived.items()}
        ctx.divide((yield AllReduce(ctx.numbers())))


@dataclass(frozen=True)
class Held(AllReduceSum):
    """Ranks that hold what arrived, without a copy, when the next move has arrived."""

    brings: bool
    held: list[list[float]]

    def rounds(self, ctx: Context) -> Generator[Move, Any, None]:
        arrived = yield AllGather(torch.ones(1))
        other = 1 - ctx.rank
        yield Exchange({other: some_bytes(1)}, {other: 1}) if self.brings else Exchange({}, {})
        self.held.append(arrived.flatten().tolist())
        ctx.divide((yield AllReduce(ctx.numbers())))


@pytest.mark.parametrize("brings", [False, True])
def test_what_arrived_is_valid_until_something_else_arrives(brings: bool) -> None:
    """As with a performer, which keeps one buffer."""
    held: list[list[float]] = []
    lockstep(Strategy(Identity(), Held(brings, held)), some(2))
    for row in held:
        assert row == pytest.approx([math.nan if brings else 1.0] * 2, nan_ok=True)


def test_an_exchange_brings_each_its_own() -> None:
    arrived: dict[int, dict[int, Tensor]] = {}
    _, trace = lockstep(Strategy(Identity(), Meeting(PAIRED, arrived)), some(3))
    assert {r: {by: x.tolist() for by, x in got.items()} for r, got in arrived.items()} == {
        0: {2: [0]},
        1: {0: [0, 1, 2]},
        2: {},
    }
    assert [s.bytes for s in trace.spans if s.label == "exchange"] == [3, 0, 1]


@pytest.mark.parametrize(
    ("rank", "instead"),
    [
        (1, Exchange({}, {})),
        (1, Exchange({}, {0: 2})),
        (1, Exchange({}, {0: 3, 2: 1})),
        (2, Exchange({}, {})),
        (2, Exchange({0: some_bytes(2)}, {})),
        (0, Exchange({1: some_bytes(3), 0: some_bytes(1)}, {2: 1, 0: 1})),
        (2, AllGather(some_bytes(1))),
    ],
)
def test_a_send_without_its_receive_is_named(rank: int, instead: Move) -> None:
    moves: Any = {**PAIRED, rank: instead}
    with pytest.raises(MoveError, match=rf"rank 0: .*rank {max(rank, 1)}: "):
        lockstep(Strategy(Identity(), Meeting(moves, {})), some(3))


# -- groups --------------------------------------------------------------------------------------

NODES = (Group("node", (0, 1)), Group("node", (2, 3)))
CROSS = (Group("cross", (0, 2)), Group("cross", (1, 3)))


@dataclass(frozen=True)
class Grouped(AllReduceSum):
    """Sums over each rank's groups, one after the other, and then over all."""

    groups: dict[int, tuple[Group, ...]]

    def rounds(self, ctx: Context) -> Generator[Move, Any, None]:
        numbers = ctx.numbers().clone()
        for group in self.groups[ctx.rank]:
            numbers = yield AllReduce(numbers, group=group)
        ctx.divide((yield AllReduce(numbers)))


def test_a_move_over_a_group_waits_for_that_group_alone() -> None:
    """The second machine makes three moves while the first makes one."""
    groups = {0: NODES[:1], 1: NODES[:1], 2: NODES[1:] * 3, 3: NODES[1:] * 3}
    results, trace = lockstep(Strategy(Identity(), Grouped(groups)), [torch.ones(2)] * 4)
    assert all(r.tolist() == [(2 + 2 + 8 + 8) / 4] * 2 for r in results)
    assert [s.group for s in trace.spans if s.rank == 3] == ["node"] * 3 + ["world"]
    assert trace.bytes_sent == [8.0 + 12.0] * 2 + [24.0 + 12.0] * 2
    assert trace.bytes_across == [12.0] * 4


def test_members_of_a_group_that_disagree_are_named_as_they_are() -> None:
    @dataclass(frozen=True)
    class Odd(Grouped):
        def rounds(self, ctx: Context) -> Generator[Move, Any, None]:
            numbers = ctx.numbers()
            yield AllReduce(numbers[: 1 + (ctx.rank == 3)], group=self.groups[ctx.rank][0])
            ctx.divide(numbers)

    groups = {0: NODES[:1], 1: NODES[:1], 2: NODES[1:], 3: NODES[1:]}
    said = r"rank 2: all_reduce\(1 × float32\) in node \(2, 3\); rank 3: all_reduce\(2 "
    with pytest.raises(MoveError, match=f"request {said}"):
        lockstep(Strategy(Identity(), Odd(groups)), some(4))


def test_groups_that_wait_for_each_other_are_named() -> None:
    groups = {
        0: (NODES[0], CROSS[0]), 1: (CROSS[1], NODES[0]),
        2: (CROSS[0], NODES[1]), 3: (NODES[1], CROSS[1]),
    }  # fmt: skip
    said = r"rank 0: .* in node \(0, 1\); rank 1: .* in cross \(1, 3\); rank 2: .*; rank 3: "
    with pytest.raises(MoveError, match=said):
        lockstep(Strategy(Identity(), Grouped(groups)), some(4))

"""Tables of rows whose machines sum first: what arrives is what it is without machines."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from test_coo_rows import by_hand, coo
from torch import Tensor

import gradwire
from gradwire import Strategy
from gradwire.buckets import Bucket, Parameter
from gradwire.errors import PayloadError, UsageError
from gradwire.kernels import no_rows
from gradwire.runtime.context import BucketContext
from gradwire.runtime.contexts import make_context
from gradwire.runtime.lockstep import drive
from gradwire.runtime.machine_rows import MachineRows
from gradwire.strategy import Rounds, StepInfo
from gradwire.trace import Trace
from suites import first

OUTERS = ("zen", "columns", "sparcml", "sparcml_split", "sparse_ps", "omnireduce", "allgather")
every = pytest.mark.parametrize("outer", first(OUTERS, 3))


def strategy(outer: str, per_node: int = 2) -> str:
    return f'nonzero | hierarchical(outer="{outer}", per_node={per_node})'


def tables(seed: int, world: int, shapes: Sequence[tuple[int, ...]]) -> list[list[Tensor]]:
    """Each rank's gradient of each table, by table: whole numbers, so that sums are exact."""
    dice, made = torch.Generator().manual_seed(seed), list[list[Tensor]]()
    for i, shape in enumerate(shapes):
        counts = torch.randint(0, 40, (world,), generator=dice).tolist()
        ids = [torch.randint(shape[0], (n,), generator=dice).tolist() for n in counts]
        made.append([coo(own, shape, seed + 7 * i + r) for r, own in enumerate(ids)])
    return made


@every
@given(seed=st.integers(0, 999), machines=st.integers(1, 3), dense=st.booleans())
def test_the_mean_is_that_of_all_ranks(outer: str, seed: int, machines: int, dense: bool) -> None:
    """Tables have several widths, and thousands of rows, so that chunks are dealt, or few."""
    world = 2 * machines
    given = tables(seed, world, [(70, 8), (9, 2, 2), (5000 if seed % 2 else 50, 12)])
    given = [[x.to_dense() for x in own] if dense else own for own in given]
    found = by_hand(strategy(outer), given)
    for i, own in enumerate(given):
        wanted = sum(x.to_dense() for x in own) / torch.tensor(float(world))
        for rank in range(world):
            arrived = found[rank][i]
            assert arrived.is_sparse == (not dense)
            assert torch.allclose(arrived.to_dense().view(wanted.shape), wanted, rtol=1e-6)
            assert torch.equal(arrived.to_dense(), found[0][i].to_dense()), "to the bit"


@every
@pytest.mark.parametrize("rank", range(4))
def test_what_is_not_finite_is_told_in_all_machines(outer: str, rank: int) -> None:
    xs = [coo([1, 3], (9, 4), r) for r in range(4)]
    xs[rank]._values()[0, 1] = float("inf")
    for result in gradwire.lockstep(strategy(outer), xs)[0]:
        assert result.indices().tolist() == [[0]]
        assert result.values().isnan().all()


@every
@pytest.mark.parametrize("odd", [(0,), (0, 1), (2, 3), (3,)])
def test_a_layout_is_the_same_in_all_machines(outer: str, odd: tuple[int, ...]) -> None:
    """A layout that differs between machines is refused, even if it is one within each machine."""
    xs = [coo([1], (4, 2)).to_dense() if r in odd else coo([1], (4, 2)) for r in range(4)]
    with pytest.raises(UsageError, match=r"gradient of 'x' must .* sparse on ranks"):
        by_hand(strategy(outer), [xs])


@every
def test_clipping_scales_rows_once(outer: str) -> None:
    xs = [coo([1, 1, 3], (9, 4), r) for r in range(4)]
    results, _ = gradwire.lockstep(strategy(outer), xs, clip_scale=0.5)
    whole, _ = gradwire.lockstep(strategy(outer), xs)
    assert torch.equal(results[0].to_dense(), whole[0].to_dense() * 0.5)


@every
def test_nobody_has_rows(outer: str) -> None:
    xs = [coo([], (9, 4)) for _ in range(4)]
    for result in gradwire.lockstep(strategy(outer), xs)[0]:
        assert result._nnz() == 0


def test_rows_that_a_machine_shares_cross_once() -> None:
    """Two ranks of a machine have the same hundred rows, so only half as much crosses machines."""
    machine = [coo(list(range(m * 50, m * 50 + 100)), (4000, 16), m) for m in range(4)]
    xs = [machine[r // 2] for r in range(8)]
    flat, by_machine = (
        sum(gradwire.lockstep(text, xs)[1].bytes_across)
        for text in ("nonzero | zen", strategy("zen"))
    )
    assert 0 < by_machine < 0.6 * (6 / 7 * flat), "one of seven others is on the same machine"


def test_what_takes_no_rows_across_takes_none() -> None:
    xs = [coo([1], (4, 2)) for _ in range(4)]
    with pytest.raises(UsageError, match=r"Use 'none \| columns'"):
        gradwire.lockstep('none | hierarchical(outer="allreduce", per_node=2)', xs)


def bits_of(arrived: Any, number: int) -> Any:
    """Flips a bit of what arrived, or with number -1 all of them."""
    own = next(iter(arrived.values()), None) if isinstance(arrived, dict) else arrived
    if isinstance(own, Tensor) and own.dtype == torch.uint8 and own.numel():
        if number < 0:
            own.bitwise_not_()
        else:
            own.view(-1)[number % own.numel()] ^= 1 << number % 8
    return arrived


def damaged(rounds: Rounds[None], at: int, number: int) -> Rounds[None]:
    """The same rounds, with what one move brings damaged."""
    arrived = None
    for count in itertools.count():
        try:
            move = rounds.send(arrived)
        except StopIteration:
            return
        arrived = yield move
        arrived = bits_of(arrived, number) if count == at else arrived


def begun(outer: str, given: list[list[Tensor]]) -> list[BucketContext]:
    """The contexts of four ranks before their first move."""
    own = Strategy.parse(strategy(outer))
    shapes = (tuple(x[0].shape) for x in given)
    bucket = Bucket(tuple(Parameter(f"x{i}", s, sparse=True) for i, s in enumerate(shapes)))
    contexts = [make_context(own, bucket, rank, 4, {}) for rank in range(4)]
    for rank, context in enumerate(contexts):
        mine = [x[rank] for x in given]
        context.begin(mine, [no_rows(x) for x in mine], StepInfo(0))
    return contexts


@every
@pytest.mark.parametrize("rank", range(4))
def test_no_rank_counts_a_step_that_is_spoiled_elsewhere(outer: str, rank: int) -> None:
    xs = [coo([1, 3], (9, 4), r) for r in range(4)]
    xs[rank]._values()[0, 1] = float("nan")
    contexts = begun(outer, [xs])
    drive([context.rounds() for context in contexts], Trace(4))
    assert [context.finite for context in contexts] == [False] * 4


def test_what_arrived_damaged_does_not_cross_as_if_it_were_nothing() -> None:
    """Rank 0 cannot read what its neighbour pushes: the other machine must not count the step."""
    contexts = begun("zen", tables(3, 4, [(300, 4)]))
    rounds: list[Rounds[None]] = [context.rounds() for context in contexts]
    rounds[0] = damaged(rounds[0], 1, -1)
    with pytest.raises(PayloadError):
        drive(rounds, Trace(4))
    own = [part for part in contexts[2].codec.parts if isinstance(part, MachineRows)]
    assert not own[0]._crossing.finite


@pytest.mark.once
@every
@pytest.mark.parametrize("at", range(8))
def test_damage_at_any_move_is_told_or_changes_numbers(outer: str, at: int) -> None:
    """Damage at one rank, inside its machine or across, lets no rank wait for another, and none
    ends with another error."""
    told = 0
    for number in range(0, 400, 57):
        contexts = begun(outer, tables(number, 4, [(300, 4), (40, 8)]))
        rounds = [context.rounds() for context in contexts]
        rounds[number % 4] = damaged(rounds[number % 4], at, number)
        try:
            drive(rounds, Trace(4))
            for context in contexts:
                context.end(skipped=False)
        except PayloadError:
            told += 1
    assert told or at > 1, "sizes are sealed"

"""What a strategy moves and works, for any number of ranks: the third reader of `rounds`.

    strategy ── rounds(a context of sizes) ──► move ──► as much arrives as would
                         │                       │
                         └── local work ─────────┴──► Priced: in order, of one rank

What is priced is what is run: the collectives' own generators, on the layout that the runtime
uses. Strategies whose sizes depend on the data are priced at what is to be expected. A contract
test compares with the bytes that lockstep counts.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor

from gradwire.buckets import Bucket, Parameter
from gradwire.errors import PlanError, UsageError
from gradwire.groups import Machines
from gradwire.moves import (
    AllGather,
    AllToAll,
    Broadcast,
    Exchange,
    Gather,
    Move,
    Reduce,
    ReduceScatter,
)
from gradwire.planner.expected import Crowd, Together, by_chance
from gradwire.planner.priced import Priced, PricedMove, Step
from gradwire.planner.sized import SizedContext, measured_only
from gradwire.strategy import Collective, Strategy

Size: TypeAlias = "int | tuple[int, ...] | Parameter"
"""Of a parameter: its elements, its shape, or all of it."""

_PRICED = ("allreduce", "allgather", "alltoall", "vote", "steps", "hierarchical",
           "gtopk", "zen", "sparcml", "sparse_ps")  # fmt: skip
_ESTIMATED = ("gtopk", "zen", "sparcml", "sparse_ps")


def price(
    strategy: Strategy | str, sizes: Sequence[Size], world: int, *, dtype: str = "float32",
    per_node: int = 1, rank: int = 0, density: float | None = None, together: Together = by_chance,
) -> Priced:  # fmt: skip
    """One bucket by one strategy, as one rank sees it.

    sizes: of the bucket's parameters. dtype: of gradients, unless sizes are Parameters. per_node:
    ranks to a machine, for strategies that ask and do not say. rank: 0 has the most to do where
    not all do the same. density: the fraction of one rank's gradient that is not zero, for
    compressors that send these; together: how dense sums are, by default as chance has it.

    Raises:
        PlanError: a strategy whose cost is measured only, a density that is missing, no rank.
        UsageError: ranks that do not divide among machines.
    """
    made = Strategy.parse(strategy) if isinstance(strategy, str) else strategy
    _check(made, world, per_node, rank)
    bucket = Bucket(tuple(_parameter(i, size, dtype) for i, size in enumerate(sizes)))
    asked = made.collective.per_node
    machines = None if asked is None else Machines.even(world, asked or per_node)
    steps: list[Step] = []
    crowd = Crowd(density, together)
    context = SizedContext(made, bucket, rank, world, steps, crowd, machines)
    _drive(made.collective.rounds(context), world, steps)
    return Priced(tuple(steps), context.ragged or _is_estimated(made.collective))


def can_price(strategy: Strategy | str) -> bool:
    """Whether its cost is known beforehand, given densities."""
    made = Strategy.parse(strategy) if isinstance(strategy, str) else strategy
    return all(member.name in _PRICED for member in _members(made.collective))


def _members(collective: Collective) -> list[Collective]:
    """It, and what it carries across machines."""
    outer: Collective | None = getattr(collective, "across", None)
    return [collective, *([outer] if outer else [])]


def _is_estimated(collective: Collective) -> bool:
    return any(member.name in _ESTIMATED for member in _members(collective))


def _check(strategy: Strategy, world: int, per_node: int, rank: int) -> None:
    if not can_price(strategy):
        measured_only(strategy)
    if world < 1 or not 0 <= rank < world:
        raise PlanError(
            f"there is one rank at least, and ranks count from 0; got rank {rank} of {world}. "
            "Pass world=4, say."
        )
    if per_node < 1 or world % per_node:
        raise UsageError(
            f"machines have equally many ranks; got {world} ranks and {per_node} to a machine. "
            "Pass a per_node that divides the ranks."
        )


def _parameter(number: int, size: Size, dtype: str) -> Parameter:
    if isinstance(size, Parameter):
        return size
    return Parameter(f"p{number}", size if isinstance(size, tuple) else (size,), dtype)


def _drive(rounds: Generator[Move, Any, None], world: int, steps: list[Step]) -> None:
    """Between moves, local work is written into steps."""
    arrived: Any = None
    while True:
        try:
            move = rounds.send(arrived)
        except StopIteration:
            return
        ranks = len(move.group.ranks) if move.group else world
        steps.append(_priced(move, ranks))
        arrived = _arrived(move, ranks)


def _priced(move: Move, ranks: int) -> PricedMove:
    data: Tensor | None = getattr(move, "data", None)
    dtype = "uint8" if data is None else str(data.dtype).removeprefix("torch.")
    sent, received = move.bytes_sent(ranks), move.bytes_received(ranks)
    size = int(max(sent, received)) if data is None else data.numel() * data.element_size()
    to: tuple[tuple[int, int], ...] = ()
    if isinstance(move, Exchange):
        to = tuple((rank, message.numel()) for rank, message in sorted(move.sends.items()))
    return PricedMove(move.name, size, sent, received, dtype, move.where, ranks, to)


def _arrived(move: Move, ranks: int) -> Any:
    """As much as would."""
    if isinstance(move, Exchange):
        return {by: torch.zeros(size, dtype=torch.uint8) for by, size in move.receives.items()}
    data: Tensor = move.data  # type: ignore[attr-defined]
    if isinstance(move, AllGather):
        return data.expand(ranks, -1)
    if isinstance(move, AllToAll):
        return data.new_empty(sum(move.arriving))
    if isinstance(move, ReduceScatter):
        return data.new_empty(move.sizes[move.rank])
    if isinstance(move, Gather):
        return data.expand(ranks, -1) if move.is_root else data[:0]
    if isinstance(move, Reduce):
        return data if move.is_root else data[:0]
    assert isinstance(move, Broadcast) or move.name == "all_reduce", move
    return data

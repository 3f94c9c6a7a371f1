"""Counts a strategy's moves and local work, for any number of ranks, by running its `rounds`.

    strategy ── rounds(a context of sizes) ──► move ──► data of the right size arrives
                         │                       │
                         └── local work ─────────┴──► Priced: in order, of one rank

Pricing runs the collectives' own generators, on the layout that the runtime uses. Strategies whose
sizes depend on the data are priced at expected sizes. A contract test compares with the bytes that
lockstep counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor

from gradwire.buckets import Bucket, Parameter
from gradwire.errors import GradwireError, PlanError, UsageError
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
from gradwire.strategy import Rounds, Strategy

Size: TypeAlias = "int | tuple[int, ...] | Parameter"
"""A parameter, its shape, or its number of elements."""


def price(
    strategy: Strategy | str, sizes: Sequence[Size], world: int, *, dtype: str = "float32",
    per_node: int = 1, rank: int = 0, density: float | None = None, together: Together = by_chance,
) -> Priced:  # fmt: skip
    """Prices one bucket by one strategy, as one rank sees it.

    sizes: of the bucket's parameters. dtype: of gradients, unless sizes are Parameters. per_node:
    ranks per machine, for strategies that need it and do not give it. rank: 0 has the most to do
    if ranks differ. density: the fraction of one rank's gradient that is not zero, for compressors
    that send the nonzero elements; together: the density of sums, by default for random indices.

    Raises:
        PlanError: a strategy whose cost is measured only, a missing density, an invalid rank.
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
    try:
        if made.collective.on_host:
            context.copies()
        _drive(made.collective.rounds(context), world, steps)
        if made.collective.on_host:
            context.copies()
    except GradwireError:
        raise
    except (RuntimeError, TypeError) as error:  # torch raises these for tensors without data
        measured_only(made, error)
    return Priced(tuple(steps), context.ragged or made.collective.sizes == "expected")


def can_price(strategy: Strategy | str) -> bool:
    """Whether a strategy's cost is known in advance, given densities: tried on a small bucket."""
    made = Strategy.parse(strategy) if isinstance(strategy, str) else strategy
    try:
        price(made, [(8, 8)], 2 * (made.collective.per_node or 1), density=0.5)
    except PlanError:
        return False
    return True


def _check(strategy: Strategy, world: int, per_node: int, rank: int) -> None:
    if strategy.collective.sizes == "measured":
        measured_only(strategy)
    if world < 1 or not 0 <= rank < world:
        raise PlanError(
            f"ranks must be numbered from 0, and there must be at least one; got rank {rank} of "
            f"{world}. Pass for example world=4."
        )
    if per_node < 1 or world % per_node:
        raise UsageError(
            f"all machines must have equally many ranks; got {world} ranks, and {per_node} on "
            "each machine. Pass a per_node that divides the number of ranks."
        )


def _parameter(number: int, size: Size, dtype: str) -> Parameter:
    if isinstance(size, Parameter):
        return size
    return Parameter(f"p{number}", size if isinstance(size, tuple) else (size,), dtype)


def _drive(rounds: Rounds[None], world: int, steps: list[Step]) -> None:
    """Runs the rounds, and adds the moves to steps, to which the context adds its local work.

    Arriving tensors have data if the last message that this rank sent has some.
    """
    arrived: Any = None
    device = torch.device("meta")
    while True:
        try:
            move = rounds.send(arrived)
        except StopIteration:
            return
        ranks = len(move.group.ranks) if move.group else world
        steps.append(_priced(move, ranks))
        device = next((m.device for m in _messages(move)), device)
        arrived = _arrived(move, ranks, device)


def _messages(move: Move) -> list[Tensor]:
    """Returns the byte tensors that a move brings; none if it carries numbers."""
    if isinstance(move, Exchange):
        return list(move.sends.values())
    data: Tensor = move.data  # type: ignore[attr-defined]
    return [data] if data.dtype == torch.uint8 else []


def _priced(move: Move, ranks: int) -> PricedMove:
    data: Tensor | None = getattr(move, "data", None)
    dtype = "uint8" if data is None else str(data.dtype).removeprefix("torch.")
    sent, received = move.bytes_sent(ranks), move.bytes_received(ranks)
    if isinstance(move, Exchange) and move.alike:  # it travels as an all-gather does
        size = int(max(sent, received) / max(ranks - 1, 1))
        return PricedMove(AllGather.name, size, sent, received, dtype, move.where, ranks)
    size = int(max(sent, received)) if data is None else data.numel() * data.element_size()
    to: tuple[tuple[int, int], ...] = ()
    if isinstance(move, Exchange):
        to = tuple((rank, message.numel()) for rank, message in sorted(move.sends.items()))
    return PricedMove(move.name, size, sent, received, dtype, move.where, ranks, to)


def _arrived(move: Move, ranks: int, device: torch.device) -> Any:
    """Returns data as large as would arrive. device: of what comes from single ranks."""
    if isinstance(move, Exchange):
        sizes = move.receives.items()
        return {r: torch.zeros(n, dtype=torch.uint8, device=device) for r, n in sizes}
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

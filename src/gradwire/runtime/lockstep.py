"""Runs N ranks in one process, move by move: every byte is counted, every disagreement named.

rank 0  ── AllGather(…) ──┐
rank 1  ── AllGather(…) ──┼── same kind, same size? ── perform ── everybody goes on
rank 2  ── AllGather(…) ──┘

A move over a group waits for that group alone. As in a job, sums and broadcasts take the place of
the data that a rank brought, and the next move reuses the memory in which something else arrived:
here it is filled with bytes of 255, which are NaN.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, MutableMapping, Sequence
from typing import Any

import torch
from torch import Tensor

from gradwire import beside, kernels
from gradwire.buckets import Bucket, Parameter
from gradwire.errors import MoveError, UsageError
from gradwire.local import OF_OTHER_SHAPE
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
from gradwire.plan import takes
from gradwire.runtime.context import BucketContext
from gradwire.runtime.contexts import make_context
from gradwire.runtime.move_check import check_move
from gradwire.strategy import Rounds, StepInfo, Strategy
from gradwire.trace import Span, Trace


def lockstep(
    strategy: Strategy | str, tensors: Iterable[Tensor], *, step: int = 0, seed: int = 0,
    state: Sequence[MutableMapping[str, Tensor]] | None = None, clip_scale: float = 1.0,
) -> tuple[list[Tensor], Trace]:  # fmt: skip
    """Computes in one process what N ranks would compute.

    Args:
        strategy: text or `Strategy`.
        tensors: one per rank, all of one shape and floating dtype, on one device; not changed.
            float64 only by 'none | allreduce' and 'none | allgather'. If the collective takes
            rows, all may be COO (ids of rows, and rows), not float64; so are results then.
        step: the step number, which messages carry.
        seed: the seed of stochastic compressors.
        state: one dict per rank, updated in place; pass it again to carry residuals to the next
            call. Tensors in it ("residual", "velocity") have the input's shape, or with
            `hierarchical` that of the part that the rank owns. Exceptions: "owners_residual",
            (elements of the piece that the rank owns,), "right_factor", (columns, rank) of a
            matrix, "threshold" and "steps", (1,), and "noise", (3,).
        clip_scale: the factor by which every rank multiplies its gradient first.

    Returns:
        The mean on each rank, in the input's shape and dtype, NaN if an input is not finite (state
        stays as it was then), and the trace. Its `bytes_sent` has what each rank sends to others
        in all moves, headers included; an all-reduce of b bytes among n ranks counts as that of a
        ring, 2(n-1)/n·b.

    Example:
        >>> gradients = [torch.tensor([1.0, 0.0, 0.0, 4.0]), torch.tensor([0.0, 0.0, 8.0, 2.0])]
        >>> residuals = [{}, {}]
        >>> means, trace = gradwire.lockstep(
        ...     "topk(0.25)+ef | allgather", gradients, state=residuals
        ... )
        >>> means[0], residuals[1]["residual"]  # rank 1 sent its 8, and keeps the 2
        (tensor([0., 0., 4., 2.]), tensor([0., 0., 0., 2.]))

    Raises:
        StrategyError: the strategy cannot be read.
        UsageError: tensors differ in shape or dtype, the strategy does not take them, state is for
            another number of ranks, or `hierarchical(per_node=…)` cannot divide the ranks.
        MoveError: ranks ask for different moves.
    """
    strategy = strategy if isinstance(strategy, Strategy) else Strategy.parse(strategy)
    tensors = list(tensors) if isinstance(tensors, Iterable) else [tensors]
    states = [dict[str, Tensor]() for _ in tensors] if state is None else list(state)
    _check(tensors, states)
    _check_taken(strategy, tensors)
    world, trace = len(tensors), Trace(len(tensors))
    contexts, results = [], []
    for rank, (x, memory) in enumerate(zip(tensors, states)):
        results.append(_room(x))
        contexts.append(_context(strategy, x, rank, world, memory, seed))
        _reshape(memory, contexts[-1], (-1,))
        contexts[-1].begin([_flat(x.detach())], [_flat(results[-1])], StepInfo(step, clip_scale))
    drive([ctx.rounds() for ctx in contexts], trace)
    for ctx, memory in zip(contexts, states):
        ctx.end(skipped=False)
        _reshape(memory, ctx, ctx.kept.parameters[0].shape)
    return results, trace


def _room(x: Tensor) -> Tensor:
    rows = x.layout != torch.strided
    return kernels.no_rows(x) if rows else torch.empty(x.shape, dtype=x.dtype, device=x.device)


def _flat(x: Tensor) -> Tensor:
    """Returns x as a 1-D tensor; COO rows stay as they are."""
    return x.contiguous().view(-1) if x.layout == torch.strided else x


def _context(
    strategy: Strategy, x: Tensor, rank: int, world: int, memory: MutableMapping[str, Tensor],
    seed: int,
) -> BucketContext:  # fmt: skip
    dtype = str(x.dtype).removeprefix("torch.")
    parameter = Parameter("x", tuple(x.shape), dtype, sparse=x.layout != torch.strided)
    return make_context(
        strategy, Bucket((parameter,)), rank, world, {"x": memory}, device=x.device, seed=seed,
        exact_undo=True,
    )  # fmt: skip


def _reshape(
    memory: MutableMapping[str, Tensor], context: BucketContext, shape: tuple[int, ...]
) -> None:
    """Gives the states this shape, flat or the user's. Raises UsageError if a state has another
    number of elements."""
    n = context.kept.elements
    for key, value in memory.items():
        if key in OF_OTHER_SHAPE:
            continue
        if not isinstance(value, Tensor) or value.numel() != n:
            what = f"{value.numel()} elements" if isinstance(value, Tensor) else f"{value!r:.80}"
            raise UsageError(
                f"lockstep's state must have the {n} elements that its rank owns; rank "
                f"{context.rank}'s '{key}' has {what}. Begin with empty dicts."
            )
        memory[key] = value.reshape(shape)


def drive(ranks: Sequence[Rounds[None]], trace: Trace) -> None:
    """Runs all ranks to their end. Each group performs a move once all its members ask for it."""
    moves = {rank: _next(rounds, None) for rank, rounds in enumerate(ranks)}
    memory: dict[int, list[Tensor]] = {}  # what arrived last at each rank
    while any(moves.values()):
        for members in _ready(moves):
            asked = _agreed([moves[r] for r in members], members)
            for r, move in zip(members, asked):
                if not isinstance(move, Exchange) or move.receives:
                    _reuse(memory.pop(r, ()))
            for r, move, arrived in zip(members, asked, _perform(asked)):
                sent, received = move.bytes_sent(len(members)), move.bytes_received(len(members))
                trace.add(
                    Span(r, 0, "wire", move.name, bytes=sent, group=move.where, received=received)
                )
                if not isinstance(move, _IN_PLACE):
                    brought = arrived.values() if isinstance(arrived, dict) else [arrived]
                    memory.setdefault(r, []).extend(brought)
                moves[r] = _next(ranks[r], arrived)


def _ready(moves: Mapping[int, Move | None]) -> list[tuple[int, ...]]:
    """Returns the groups whose members all ask for a move of the group. Raises MoveError if there
    is none, or a move cannot be made."""
    for move in moves.values():
        if move is not None:
            check_move(move, len(moves))
    groups = {move.group: move for move in moves.values() if move}
    members = {group: group.ranks if group else tuple(moves) for group in groups}
    together = [
        ranks
        for group, ranks in members.items()
        if all((move := moves[r]) is not None and move.group == group for r in ranks)
    ]
    if not together:
        raise _disagreement(moves)
    return together


_IN_PLACE = (AllReduce, Reduce, Broadcast)
"""Moves whose result takes the place of the data."""


def _reuse(memory: Sequence[Tensor]) -> None:
    for x in memory:
        x.view(torch.uint8).fill_(255)


def _next(rank: Rounds[None], value: Any) -> Move | None:
    try:
        return next(rank) if value is None else rank.send(value)
    except StopIteration:
        return None


def _agreed(moves: Sequence[Move | None], members: Sequence[int] = ()) -> list[Move]:
    """Returns a group's moves. Raises MoveError, which names them all, unless they agree in kind
    and size."""
    kinds = {_kind(move) for move in moves}
    parts = [m for m in moves if isinstance(m, AllToAll)]
    pairs = all(a.sizes[b.rank] == b.arriving[a.rank] for a in parts for b in parts)
    pairs &= _meets(dict(enumerate(m for m in moves if isinstance(m, Exchange))))
    if len(kinds) > 1 or not pairs:
        raise _disagreement(dict(zip(members or range(len(moves)), moves)))
    return [m for m in moves if m is not None]


def _disagreement(moves: Mapping[int, Move | None]) -> MoveError:
    asked = "; ".join(f"rank {r}: {m or 'done'}" for r, m in moves.items())
    return MoveError(
        f"every rank of a group must request the same move; they request {asked}. Let the "
        "collective's moves depend on sizes and step alone, never on the data."
    )


def _meets(moves: Mapping[int, Exchange]) -> bool:
    """Whether each send has a receive of the same size, and each receive a send."""
    sent = {(r, to): x.numel() for r, m in moves.items() for to, x in m.sends.items()}
    expected = {(by, r): size for r, m in moves.items() for by, size in m.receives.items()}
    return sent == expected and all(by != to for by, to in sent)


def _kind(move: Move | None) -> tuple[object, ...] | None:
    """Returns what ranks must agree on."""
    if isinstance(move, AllToAll):
        return AllToAll, move.data.dtype, len(move.sizes)
    if isinstance(move, ReduceScatter):
        return ReduceScatter, move.data.dtype, move.sizes
    if isinstance(move, Reduce | Gather | Broadcast):
        return type(move), move.data.dtype, move.data.numel(), move.root
    if isinstance(move, AllReduce | AllGather):
        return type(move), move.data.dtype, move.data.numel()
    return None if move is None else (type(move), getattr(move, "alike", False))


def _perform(moves: Sequence[Move]) -> list[Any]:
    """Performs moves that are all of one kind, as `_agreed` has checked."""
    first = moves[0]
    if isinstance(first, Exchange):
        pairs = [m for m in moves if isinstance(m, Exchange)]
        return [{by: pairs[by].sends[r].clone() for by in m.receives} for r, m in enumerate(pairs)]
    data = [m.data for m in moves if isinstance(m, _OF_DATA)]
    if isinstance(first, AllReduce):
        total = _sum(data)
        return [x.copy_(total) for x in data]
    if isinstance(first, AllGather):
        return [torch.stack(data) for _ in moves]
    if isinstance(first, AllToAll):
        parts = [torch.split(m.data, list(m.sizes)) for m in moves if isinstance(m, AllToAll)]
        return [torch.cat([part[r] for part in parts]) for r in range(len(moves))]
    if isinstance(first, ReduceScatter):
        return list(torch.split(_sum(data), list(first.sizes)))
    if isinstance(first, Broadcast):
        return [x.copy_(data[first.root]) for x in data]
    if isinstance(first, Reduce):
        total = _sum(data)
        _reuse(data)
        data[first.root].copy_(total)
        return [x if r == first.root else x[:0] for r, x in enumerate(data)]
    assert isinstance(first, Gather), "check_move knows no other"
    whole = torch.stack(data)
    return [whole if r == first.root else data[r][:0] for r in range(len(moves))]


_OF_DATA = (AllReduce, AllGather, AllToAll, ReduceScatter, Reduce, Gather, Broadcast)


def _sum(data: Sequence[Tensor]) -> Tensor:
    """Returns the sum in rank order."""
    total = data[0].clone()
    for x in data[1:]:
        total += x
    return total


def _check_taken(strategy: Strategy, tensors: Sequence[Tensor]) -> None:
    """Raises UsageError for tensors of a dtype or layout that the strategy does not take."""
    if any(x.is_sparse and x.dtype == torch.float64 for x in tensors):
        raise UsageError(
            "rows with their ids (sparse_coo) must be float32, bfloat16 or float16, as they are "
            "summed in float32; got float64. Use one of these, or dense tensors."
        )
    if not takes(strategy, str(tensors[0].dtype).removeprefix("torch.")):
        raise UsageError(
            "float64 must be sent uncompressed, by 'none | allreduce' or 'none | allgather'; got "
            f"'{strategy}'. Use one of these, or tensors in float32."
        )
    wrong = [x for x in tensors if x.layout != torch.strided and not kernels.is_rows(x)]
    if wrong:
        kind = str(wrong[0].layout).removeprefix("torch.")
        raise UsageError(
            "lockstep takes dense tensors, or rows with their ids: sparse_coo with one sparse "
            f"dimension and at least one dense one; got {kind} of shape {[*wrong[0].shape]} with "
            f"{wrong[0].dense_dim()} dense ones. Pass one of these."
        )
    if any(x.is_sparse for x in tensors) and not beside.takes_rows(strategy):
        raise UsageError(
            "rows with their ids (sparse_coo) need a collective that takes them; got "
            f"'{strategy}'. Use '{beside.rows(strategy)}', or dense tensors."
        )


def _in_words(x: object) -> str:
    if not isinstance(x, Tensor):
        return f"{x!r:.80}"
    layout = "" if x.layout == torch.strided else f" {str(x.layout).removeprefix('torch.')}"
    return f"{str(x.dtype).removeprefix('torch.')}{list(x.shape)}{layout}"


def _check(tensors: Sequence[Tensor], states: Sequence[Any]) -> None:
    are = all(isinstance(x, Tensor) for x in tensors)
    kinds = {(tuple(x.shape), x.dtype, x.layout) for x in tensors} if are else set()
    if len(kinds) != 1 or not tensors[0].is_floating_point():
        got = "; ".join(f"rank {r}: {_in_words(x)}" for r, x in enumerate(tensors))
        raise UsageError(
            "lockstep needs one floating-point tensor per rank, all of one shape, dtype and "
            f"layout; got {got or 'none'}. Pass [x0, x1, …]."
        )
    dicts = len({id(memory) for memory in states})
    if len(states) != len(tensors) or dicts != len(tensors):
        raise UsageError(
            f"lockstep's state must be one dict per rank; got {dicts} different dicts for "
            f"{len(tensors)} ranks. Pass state=[{{}} for _ in tensors] and keep it between calls."
        )

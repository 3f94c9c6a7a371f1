"""Measures single moves and compressors on their own, to plan clusters like this one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import Tensor

from gradwire import kernels
from gradwire.groups import Group, Machines
from gradwire.layout.message import Layout
from gradwire.layout.pieces import Pieces
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
from gradwire.planner.fit import Fit, fit
from gradwire.planner.profile import LocalCost
from gradwire.progress import Progress, each, silent
from gradwire.runtime.encoder import make_encoder
from gradwire.runtime.pieces import PieceByPiece
from gradwire.runtime.torch_dist import Performer
from gradwire.strategy import (
    Compressor,
    Feedback,
    Key,
    Sections,
    State,
    StepInfo,
    Strategy,
)
from gradwire.tuning.agree import now, of_ranks

BYTES = (1 << 10, 1 << 13, 1 << 16, 1 << 18, 1 << 20, 1 << 22, 1 << 24)
"""The sizes of one rank's data in a move, by default."""
ELEMENTS = (256, 4096, 65_536, 1_048_576, 4_194_304)
"""The sizes of a parameter to compress, by default."""
_RUNS, _WARM_UP = 9, 2  # runs, and those that come first and do not count
_PATIENCE_SECONDS = 0.4  # after a move that takes longer, nothing larger is tried
_MEASURED: tuple[tuple[type[Move], str], ...] = (
    *((kind, "float32") for kind in (AllReduce, Reduce, ReduceScatter)),
    *((kind, "bfloat16") for kind in (AllReduce, Reduce, ReduceScatter)),
    *((kind, "uint8") for kind in (AllGather, Gather, Broadcast, AllToAll, Exchange)),
)
"""Each kind of move with a dtype; kinds that add up on the wire are measured in two."""
_MANY = 5  # payloads to add up, to see what each further one costs
_LEAST = 1e-9
_KEY = Key(0, 0, "probe")


Kinds: TypeAlias = Sequence[tuple[type[Move], str]]


def of_paths(dtype: str) -> Kinds:
    """Returns the measured kinds of moves that paths of the tree use for gradients of a dtype."""
    sums = dtype if (AllReduce, dtype) in _MEASURED else "float32"
    return [(kind, name) for kind, name in _MEASURED
            if name in (sums, "uint8") and kind is not Exchange]  # fmt: skip


def measure_moves(
    performer: Performer, machines: Machines | None, largest_bytes: int,
    circle: Performer | None = None, *, kinds: Kinds = _MEASURED, runs: int = _RUNS,
    patience_seconds: float = _PATIENCE_SECONDS, progress: Progress = silent,
) -> Mapping[str, Fit]:  # fmt: skip
    """Measures seconds on the slowest rank against bytes of one rank's data, for each move, such
    as "all_reduce float32 world".

    Collective. With machines, measures the groups "node" and "cross", too. circle: the ranks that
    measure together, by default those that exchange. runs: for each size, three or more.
    patience_seconds: after a move that takes longer, nothing larger is tried.
    """
    ranks = circle or performer
    made = dict[str, Fit]()
    groups = _groups(performer, machines)
    asked = {
        f"{kind.name} {name} {where}": (group, kind, name)
        for where, group in groups.items() for kind, name in kinds
    }  # fmt: skip
    for called in each(progress, "moves, one by one", list(asked)):
        group, kind, name = asked[called]
        measured = list[tuple[int, list[float]]]()
        for size in _up_to(largest_bytes, BYTES):
            move = partial(_move, kind, getattr(torch, name), size, performer, group)
            works = (_at_once(performer, ranks, move) for _ in range(runs))
            seconds = of_ranks(ranks, _timed(works, performer.device)).amax(0).tolist()
            measured.append((size, seconds))
            if min(seconds) > patience_seconds:
                break
        made[called] = fit(measured)
    return made


def _groups(performer: Performer, machines: Machines | None) -> dict[str, Group | None]:
    found: dict[str, Group | None] = {"world": None}
    if machines is not None and 1 < machines.per_node < machines.world:
        found |= {"node": machines.node(performer.rank), "cross": machines.cross(performer.rank)}
    return found


def _move(
    kind: Any, dtype: torch.dtype, size: int, performer: Performer, group: Group | None
) -> Move:
    data = torch.zeros(size // dtype.itemsize, dtype=dtype, device=performer.device)
    n = len(group.ranks) if group else performer.world
    rank = group.ranks.index(performer.rank) if group else performer.rank
    parts = tuple(data.numel() // n + (r < data.numel() % n) for r in range(n))
    if kind is ReduceScatter:
        return ReduceScatter(data, parts, rank, group=group)
    if kind is AllToAll:
        return AllToAll(data, parts, (parts[rank],) * n, rank, alike=True, group=group)
    if kind is Exchange:  # pairs, as in a butterfly's first round; an odd last rank is idle
        peers = [peer for peer in (rank ^ 1,) if peer < n]
        sizes = dict.fromkeys(peers, data.numel())
        return Exchange(dict.fromkeys(peers, data), sizes, group=group)
    rooted = (0, rank) if kind in (Reduce, Gather, Broadcast) else ()
    move: Move = kind(data, *rooted, group=group)
    return move


def _at_once(
    performer: Performer, ranks: Performer, make: Callable[[], Move]
) -> Callable[[], object]:
    """Returns what performs the move, once all ranks have arrived here. Collective."""
    move = make()
    of_ranks(ranks, [0.0])
    return partial(performer.perform, move, "the probe")


def measure_local(
    strategy: str, device: torch.device, largest: int, ranks: Performer, pieces: int = 1
) -> LocalCost:
    """Measures seconds on the slowest rank, for which the next move waits, against elements of one
    parameter, for the strategy's compressor and feedback.

    Collective: all ranks begin together, as ranks that share processors and memory do in a step,
    on gradients that were just written. pieces: the number of pieces to compress separately, as
    for so many owners. ranks: those that measure, all with the same `largest`.
    """
    parsed = Strategy.parse(strategy)
    encodes, decodes, adds = [], [], []

    def seconds(work: Callable[[], object], before: Callable[[], object]) -> list[float]:
        timed = _timed(_together(ranks, work, before), device)
        return sorted(of_ranks(ranks, timed).amax(0).tolist())

    for n in _up_to(largest, ELEMENTS):
        dice = torch.Generator().manual_seed(0)  # not the job's own random state
        given = torch.randn(n, generator=dice, dtype=torch.float32, device="cpu").to(device)
        state = dict[str, Tensor]()
        x, compressor = torch.empty_like(given), parsed.compressor
        if pieces > 1:
            compressor = PieceByPiece(compressor, Pieces.of("probe", n, pieces).bounds)
        layout = Layout.of([compressor.claims(n)])
        message = torch.zeros(layout.bytes, dtype=torch.uint8, device=device)
        (sections,) = layout.views(message)
        encode = _encoding(compressor, parsed.feedback, x, state, sections)
        write = partial(x.copy_, given)
        encodes.append((n, seconds(encode, write)))
        one, many = (
            seconds(_adding(compressor, [sections] * count, x), write) for count in (1, _MANY)
        )
        decodes.append((n, one))
        adds.append((n, [max(b - a, _LEAST) / (_MANY - 1) for a, b in zip(one, many)]))
    return LocalCost(fit(encodes), fit(decodes), fit(adds))


def _together(
    ranks: Performer, work: Callable[[], object], before: Callable[[], object]
) -> Iterator[Callable[[], object]]:
    """Yields the work `_RUNS` times, each time once all ranks are ready for it. Collective."""
    for _ in range(_RUNS):
        before()
        of_ranks(ranks, [0.0])
        yield work


def _encoding(
    compressor: Compressor, feedback: Feedback | None, x: Tensor, state: State, sections: Sections
) -> Callable[[], object]:
    encoder = make_encoder(compressor, feedback)
    status = kernels.new_status(x.device)

    def work() -> None:
        encoder.encode(x, state, sections, StepInfo(), _KEY, status)
        encoder.release()

    return work


def _adding(
    compressor: Compressor, payloads: Sequence[Sections], x: Tensor
) -> Callable[[], object]:
    out = torch.empty_like(x)
    return lambda: compressor.accumulate(payloads, out, len(payloads), _KEY)


def _up_to(largest: int, sizes: Sequence[int]) -> list[int]:
    """Returns the sizes up to `largest`, and always the first."""
    return [size for size in sizes if size <= max(largest, sizes[0])]


def _timed(works: Iterable[Callable[[], object]], device: torch.device) -> list[float]:
    """Returns the seconds of each call, without the warm-up. The iterator makes each right before
    it is timed."""
    seconds = list[float]()
    for work in works:
        began = now(device)
        work()
        seconds.append(max(now(device) - began, _LEAST))
    return seconds[_WARM_UP:]

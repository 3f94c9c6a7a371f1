"""Puts ranks whose clocks have come apart side by side, by moves that nobody ends alone.

rank 0   ├ all_gather ┤                          by their clocks
rank 1                      ├ all_gather ┤       which cannot be: the first needs the second
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice
from statistics import median

from gradwire.trace import Span

_ROOM_SECONDS = 1e-3  # beyond what measuring the clocks may be wrong by
_NEED_ALL = ("all_gather", "all_reduce", "reduce_scatter")
_LOOKED = 16  # moves of a step
_Ends = dict[int, tuple[float, float]]


def aligned(spans: list[Span], error_seconds: float) -> tuple[list[Span], float]:
    """Returns a step's spans, and how far apart the ranks' clocks are at least, in seconds; 0 if
    nothing shows it, and then the spans as they were. Else each rank is moved so that its moves
    end when those of the first rank do. error_seconds: how far a clock may be wrong."""
    moves = _moves(spans)
    apart = max((_apart(move.values()) for move in moves), default=0.0)
    if apart <= 2 * error_seconds + _ROOM_SECONDS:
        return spans, 0.0
    first = min(moves[0])
    late = {
        rank: median(move[rank][1] - move[first][1] for move in moves) for rank in moves[0]
    }  # fmt: skip
    return [
        s._replace(
            start_seconds=s.start_seconds - late.get(s.rank, 0.0),
            end_seconds=s.end_seconds - late.get(s.rank, 0.0),
        )
        for s in spans
    ], apart


def _moves(spans: Sequence[Span]) -> Sequence[_Ends]:
    """When each rank came to a move and ended it, for the first moves that need all ranks."""
    ranks = {s.rank for s in spans}
    if len(ranks) < 2:
        return []
    of_one = (s for s in spans if s.rank == spans[0].rank and s.kind == "wire")
    needs_all = (s.label for s in of_one if s.group == "world" and s.label.endswith(_NEED_ALL))
    labels = dict.fromkeys(islice(needs_all, _LOOKED))
    seen: dict[tuple[int, str], int] = {}
    moves: dict[tuple[str, int], _Ends] = {}
    for s in spans:
        if s.label in labels and s.kind == "wire":
            turn = seen.get((s.rank, s.label), 0)
            seen[s.rank, s.label] = turn + 1
            moves.setdefault((s.label, turn), {})[s.rank] = s.start_seconds, s.end_seconds
    return [move for move in moves.values() if move.keys() == ranks]


def _apart(move: Iterable[tuple[float, float]]) -> float:
    """How long after the first rank has ended the move the last comes to it."""
    own = list(move)
    return max(begin for begin, _ in own) - min(end for _, end in own)

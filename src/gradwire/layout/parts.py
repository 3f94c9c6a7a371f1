"""A parameter in as many parts as a machine has ranks: what each owns of the machine's sum."""

from __future__ import annotations

from gradwire.buckets import Parameter
from gradwire.layout.pieces import GRAIN, Pieces

_ROWS = 8
"""Parts are whole rows where each owner gets so many: cut evenly, to an eighth."""


def cut(p: Parameter, per_node: int) -> Pieces:
    """Tell where a parameter is cut among the ranks of a machine; the same on every one."""
    return Pieces.of(p.name, p.elements, per_node, _row(p, per_node) or GRAIN)


def part_of(p: Parameter, pieces: Pieces, local: int) -> Parameter:
    """What one of them owns, as a parameter of its own, whose name its dice look at."""
    (begin, end), row = pieces.of_owner(local), _row(p, len(pieces.bounds))
    shape = ((end - begin) // row, *p.shape[1:]) if row else (end - begin,)
    return Parameter(f"{p.name}/{pieces.number_of(local)}", shape)


def _row(p: Parameter, per_node: int) -> int:
    """Elements of a row, where parts are whole rows; else 0."""
    many = len(p.shape) > 1 and p.shape[0] >= _ROWS * per_node
    return p.elements // p.shape[0] if many else 0

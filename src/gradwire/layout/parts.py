"""A parameter in as many parts as a machine has ranks; each rank owns one part of the sum."""

from __future__ import annotations

from gradwire.buckets import Parameter
from gradwire.layout.pieces import GRAIN, Pieces

_ROWS = 8
"""Parts are whole rows if each owner gets at least this many: they are even to an eighth then."""


def cut(p: Parameter, per_node: int) -> Pieces:
    """Returns where a parameter is cut among the ranks of a machine; the same on every rank."""
    return Pieces.of(p.name, p.elements, per_node, _row(p, per_node) or GRAIN)


def part_of(p: Parameter, pieces: Pieces, local: int) -> Parameter:
    """Returns the part that one rank owns as a parameter; its dice depend on its name."""
    (begin, end), row = pieces.of_owner(local), _row(p, len(pieces.bounds))
    shape = ((end - begin) // row, *p.shape[1:]) if row else (end - begin,)
    return Parameter(f"{p.name}/{pieces.number_of(local)}", shape)


def _row(p: Parameter, per_node: int) -> int:
    """Returns the number of elements in a row if parts are whole rows, else 0."""
    many = len(p.shape) > 1 and p.shape[0] >= _ROWS * per_node
    return p.elements // p.shape[0] if many else 0

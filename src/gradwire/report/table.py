"""A small table, for a terminal and for a README."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

_GAP = "   "


@dataclass(frozen=True)
class Table:
    """Headers and rows of cells, all text; the first column to the left, others to the right."""

    headers: Sequence[str]
    rows: Sequence[Sequence[str]]

    def as_text(self) -> str:
        """Returns aligned columns, with a rule under the headers."""
        widths = self._widths()
        lines = [self._line(self.headers, widths), _GAP.join("─" * width for width in widths)]
        return "\n".join([*lines, *(self._line(row, widths) for row in self.rows)])

    def as_markdown(self) -> str:
        """Returns the table in Markdown."""
        rule = ["---", *("---:" for _ in self.headers[1:])]
        lines = [self.headers, rule, *self.rows]
        return "\n".join("| " + " | ".join(map(_escaped, line)) + " |" for line in lines)

    def _widths(self) -> list[int]:
        return [max(map(len, column)) for column in zip(self.headers, *self.rows, strict=True)]

    def _line(self, cells: Sequence[str], widths: Sequence[int]) -> str:
        first, *others = zip(cells, widths, strict=True)
        padded = [first[0].ljust(first[1]), *(cell.rjust(width) for cell, width in others)]
        return _GAP.join(padded).rstrip()


def _escaped(cell: str) -> str:
    return cell.replace("|", r"\|")

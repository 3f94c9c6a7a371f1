"""Labels of drawings and tables: where they stand, so that none covers another; their length."""

from __future__ import annotations

from collections.abc import Sequence

_MOST_LETTERS = 36


def spread(ascending: Sequence[float], least: float) -> list[float]:
    """Returns the numbers, moved until neighbours are at least `least` apart."""
    groups: list[tuple[float, int]] = []  # (middle, how many)
    for number in ascending:
        middle, count = number, 1
        while groups and middle - groups[-1][0] < least * (count + groups[-1][1]) / 2:
            before, many = groups.pop()
            middle = (middle * count + before * many) / (count + many)
            count += many
        groups.append((middle, count))
    return [
        middle + least * (i - (count - 1) / 2) for middle, count in groups for i in range(count)
    ]


def shortened(name: str) -> str:
    """Returns a name whose middle is left out where it is too long for a row or a bar: the names
    of runs often begin alike, or end alike."""
    half = _MOST_LETTERS // 2
    return name if len(name) <= _MOST_LETTERS else f"{name[:half]}…{name[-half:]}"

"""Positions of labels, so that none covers another."""

from __future__ import annotations

from collections.abc import Sequence


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

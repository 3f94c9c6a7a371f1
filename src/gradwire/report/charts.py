"""Charts of a page, as SVG: text, lines and boxes, coloured by the page's own style sheet.

Series are told apart by class (`s0`, `s1`, …), which the style sheet gives a colour and a dash,
for light and dark alike. Every mark has a title, which browsers show and screen readers read.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from html import escape

from gradwire.report.labels import shortened

_WIDTH, _HEIGHT = 640.0, 276.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 74.0, 12.0, 38.0, 42.0
_LETTER = 11.5
"""The width of a tick's letter in a narrow window, where text is larger."""
_MOST, _LEAST = 1e300, 1e-290
_POINTS = 400
"""The most points of a line: a chart has room for no more."""


@dataclass(frozen=True)
class Line:
    """A series: its name, and points in the order in which they are joined."""

    name: str
    points: Sequence[tuple[float, float]]


def lines(series: Sequence[Line], x_name: str, y_name: str) -> str:
    """Returns an SVG of series over a common axis; "" if there is no finite point."""
    drawn = [Line(one.name, _thinned(_finite(one.points))) for one in series]
    points = [point for one in drawn for point in one.points]
    if not points:
        return ""
    y = _Axis.over([p[1] for p in points], _HEIGHT - _BOTTOM, _TOP)
    left = max(_LEFT, *(6 + _LETTER * len(label) for _, label in y.ticks()))
    x = _Axis.over([p[0] for p in points], left, _WIDTH - _RIGHT)
    parts = [*_grid(x, y, x_name, y_name)]
    for i, one in enumerate(drawn):
        path = " ".join(f"{x.at(a):.1f},{y.at(b):.1f}" for a, b in one.points)
        last = f"{one.name}: {one.points[-1][1]:.4g} at the end" if one.points else one.name
        if len(one.points) == 1:  # a line through one point is not seen
            at = f'cx="{x.at(one.points[0][0]):.1f}" cy="{y.at(one.points[0][1]):.1f}"'
            parts.append(f'<circle class="dot s{i % 8}" {at} r="2"/>')
        parts.append(
            f'<polyline class="line s{i % 8}" points="{path}"><title>{escape(last)}</title>'
            "</polyline>"
        )
    return _svg(parts, f"{y_name} over {x_name}")


@dataclass(frozen=True)
class Part:
    """A piece of a bar: its name, which is also its class (`k-` before it), and its length."""

    name: str
    value: float


def bars(rows: Sequence[tuple[str, Sequence[Part]]], show: Callable[[float], str]) -> str:
    """Returns an SVG of bars, one below the other, each of parts, all to one scale; "" if all are
    empty. show: writes a value."""
    longest = max((sum(p.value for p in parts) for _, parts in rows), default=0.0)
    if not longest > 0:
        return ""
    each, parts_drawn = 54.0, []
    for i, (name, parts) in enumerate(rows):
        top, left = 6 + i * each, 0.0
        total = sum(part.value for part in parts)
        label = f"{shortened(name)}: {show(total)}"
        parts_drawn.append(f'<text class="name" x="0" y="{top + 10:g}">{escape(label)}</text>')
        for part in parts:
            width = _WIDTH * part.value / longest
            told = escape(f"{part.name}: {show(part.value)}")
            box = (
                f'<rect class="k-{escape(part.name)}" x="{left:.1f}" y="{top + 17:g}" '
                f'width="{width:.1f}" height="24"><title>{told}</title></rect>'
            )
            parts_drawn.append(box)
            left += width
    return _svg(parts_drawn, "where a step's time goes", height=6 + each * len(rows))


@dataclass(frozen=True)
class _Axis:
    """Maps values to positions, and has ticks at round values."""

    low: float
    high: float
    begin: float
    end: float

    @staticmethod
    def over(values: Sequence[float], begin: float, end: float) -> _Axis:
        low, high = min(values), max(values)
        room = high - low if high - low > 1e-9 * abs(high) else abs(high)  # ticks must differ
        room = room if room > _LEAST else 1.0
        return _Axis(low - 0.03 * room, high + 0.03 * room, begin, end)

    def at(self, value: float) -> float:
        return self.begin + (self.end - self.begin) * (value - self.low) / (self.high - self.low)

    def ticks(self) -> Iterable[tuple[float, str]]:
        """Yields round values, and their text, with as many digits as tell them apart."""
        step = 10 ** math.floor(math.log10((self.high - self.low) / 4))
        step *= next(k for k in (1, 2, 5, 10) if (self.high - self.low) / (k * step) <= 6)
        first = math.ceil(self.low / step)
        while (value := first * step) <= self.high:
            yield value, _label(value, step)
            first += 1


def _label(value: float, step: float) -> str:
    digits = max(0, -math.floor(math.log10(step) + 1e-9))
    if digits <= 5 and abs(value) < 1e7:
        return f"{value + 0.0:,.{digits}f}"
    return f"{value:.{max(1, round(math.log10(max(abs(value), step) / step)) + 1)}g}"


def _grid(x: _Axis, y: _Axis, x_name: str, y_name: str) -> Iterable[str]:
    for value, label in y.ticks():
        place = y.at(value)
        yield (
            f'<line class="grid" x1="{x.begin:g}" x2="{_WIDTH - _RIGHT:g}" y1="{place:.1f}" '
            f'y2="{place:.1f}"/>'
            f'<text class="tick end" x="{x.begin - 6:g}" y="{place + 4:.1f}">{label}</text>'
        )
    for value, label in x.ticks():
        place, side = x.at(value), "middle"
        if place > _WIDTH - 40:  # of a narrow window, where text is larger
            place, side = _WIDTH, "end"
        yield (
            f'<text class="tick {side}" x="{place:.1f}" y="{_HEIGHT - _BOTTOM + 17:g}">'
            f"{label}</text>"
        )
    yield (
        f'<text class="axis end" x="{_WIDTH - _RIGHT:g}" y="{_HEIGHT - 4:g}">{escape(x_name)}'
        f'</text><text class="axis" x="0" y="15">{escape(y_name)}</text>'
    )


def _svg(parts: Iterable[str], told: str, height: float = _HEIGHT) -> str:
    inside = "".join(parts)
    return (
        f'<svg viewBox="0 0 {_WIDTH:g} {height:g}" role="img" aria-label="{escape(told)}">'
        f"{inside}</svg>"
    )


def _finite(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """The points that can be drawn: finite, and not so large that drawing them would overflow."""
    return [(a, b) for a, b in points if abs(a) < _MOST and abs(b) < _MOST]


def _thinned(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Averages neighbours, where there are more points than can be seen."""
    size = math.ceil(len(points) / _POINTS)
    if size <= 1:
        return points
    groups = (points[i : i + size] for i in range(0, len(points), size))
    return [
        (sum(a for a, _ in group) / len(group), sum(b for _, b in group) / len(group))
        for group in groups
    ]

"""Loss against seconds, one line per contestant: a PNG, or an SVG where matplotlib is missing."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from html import escape
from pathlib import Path
from typing import Any

from gradwire.document import save_file

# Okabe and Ito's colours, which colour-blind readers can tell apart, without the yellow.
_COLOURS = ("#000000", "#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9")
_GREY = "#8A8A8A"
_WIDTH, _HEIGHT, _DOTS_PER_INCH = 9.0, 5.4, 160


@dataclass(frozen=True)
class Line:
    """One contestant: (seconds, loss) points; `reference` for a line that is only a yardstick."""

    label: str
    points: Sequence[tuple[float, float]]
    reference: bool = False


def save(
    lines: Sequence[Line], title: str, target: float, folder: Path, name: str = "loss"
) -> Path:
    """Writes the plot as NAME.png or NAME.svg and returns its path.

    Args:
        lines: at least one with a finite loss; losses that are not finite are left out.
        title: the text above the plot.
        target: a loss to mark, in nats per word.
        folder: where it goes; made if it does not exist.
        name: the file's name, without its suffix.
    """
    folder.mkdir(parents=True, exist_ok=True)
    lines = [line for line in map(_finite, lines) if line.points]
    if importlib.util.find_spec("matplotlib") is None:
        path = folder / f"{name}.svg"
        save_file(path, svg(lines, title, target))
        return path
    path = folder / f"{name}.png"
    _draw(lines, title, target, path)
    return path


def _finite(line: Line) -> Line:
    return replace(line, points=[point for point in line.points if math.isfinite(point[1])])


def colours(lines: Sequence[Line]) -> list[str]:
    """Returns a colour for each line: grey for references, the palette in order for the others."""
    palette = iter(_COLOURS * (1 + len(lines) // len(_COLOURS)))
    return [_GREY if line.reference else next(palette) for line in lines]


# -- with matplotlib -----------------------------------------------------------------------


def _draw(lines: Sequence[Line], title: str, target: float, path: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(_WIDTH, _HEIGHT), layout="constrained")
    axes = figure.add_subplot()
    for place, (line, colour) in enumerate(zip(lines, colours(lines), strict=True)):
        _draw_line(axes, line, colour, place / len(lines))
    _dress(axes, title)
    _mark_target(axes, target)
    _label_ends(axes, lines)
    figure.savefig(path, dpi=_DOTS_PER_INCH)


def _draw_line(axes: Any, line: Line, colour: str, place: float) -> None:
    seconds, losses = zip(*line.points, strict=True)
    style = "--" if line.reference else "-"
    # Contestants that do the same lie on each other: the later is thinner, so both are seen.
    width = 1.4 if line.reference else 3.0 - 1.2 * place
    axes.plot(seconds, losses, style, color=colour, linewidth=width, marker="o", markersize=4)


def _dress(axes: Any, title: str) -> None:
    axes.set_title(title, loc="left", fontsize=11, pad=12)
    axes.set_xlabel("seconds of training")
    axes.set_ylabel("held-out loss (nats per word)")
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(color="#E8E8E8", linewidth=0.6)
    axes.set_axisbelow(True)


def _mark_target(axes: Any, target: float) -> None:
    axes.axhline(target, color=_GREY, linewidth=0.9, linestyle=":", zorder=1)
    axes.annotate(
        f"loss {target:.2f}", (1, target), (-4, -4), xycoords=("axes fraction", "data"),
        textcoords="offset points", ha="right", va="top", fontsize=9, color=_GREY,
    )  # fmt: skip


def _label_ends(axes: Any, lines: Sequence[Line]) -> None:
    """Writes names below the ends of the lines, the first to end lowest, so that nothing
    crosses."""
    losses = [loss for line in lines for _, loss in line.points]
    lowest, highest = min(losses), max(losses)
    row = 0.065 * (highest - lowest)
    ends = sorted(zip(lines, colours(lines), strict=True), key=lambda end: end[0].points[-1][0])
    for place, (line, colour) in enumerate(ends):
        seconds, loss = line.points[-1]
        low = lowest - row * (0.8 + len(ends) - place)
        axes.plot([seconds, seconds], [loss, low], color=colour, linewidth=0.8)
        axes.annotate(
            line.label, (seconds, low), (4, 0), textcoords="offset points",
            va="center", color=colour, fontsize=10,
        )  # fmt: skip
    axes.set_xlim(0, 1.3 * ends[-1][0].points[-1][0])
    axes.set_yticks([tick for tick in axes.get_yticks() if lowest - row <= tick <= highest + row])
    axes.set_ylim(lowest - row * (1.6 + len(ends)), highest + row)


# -- without -------------------------------------------------------------------------------

_LEFT, _TOP, _RIGHT, _BOTTOM = 60, 40, 840, 440
_ROW = 20


def svg(lines: Sequence[Line], title: str, target: float) -> str:
    """Returns the plot as an SVG document, of text and lines only."""
    frame = _Frame(lines, target)
    parts = [
        f'<text x="{_LEFT}" y="24" font-size="15">{escape(title)}</text>',
        *frame.axes(),
        frame.target(),
    ]
    for i, (line, colour) in enumerate(zip(lines, colours(lines), strict=True), 1):
        legend = _text(_RIGHT, _TOP + _ROW * i, line.label, "end", colour)
        parts += [frame.line(line, colour), legend]
    height = _BOTTOM + 60
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_RIGHT + 20} {height}"'
    body = "\n".join(parts)
    return f'{head} font-family="sans-serif" font-size="12">\n{_PAPER}\n{body}\n</svg>\n'


_PAPER = '<rect width="100%" height="100%" fill="white"/>'


class _Frame:
    """Turns seconds and losses into places on the page."""

    def __init__(self, lines: Sequence[Line], target: float) -> None:
        losses = [loss for line in lines for _, loss in line.points]
        self._seconds = max(seconds for line in lines for seconds, _ in line.points) or 1.0
        self._low, self._high = min(*losses, target), max(*losses, target) + 1e-9
        self._target = target

    def x(self, seconds: float) -> float:
        return round(_LEFT + (_RIGHT - _LEFT) * seconds / self._seconds, 1)

    def y(self, loss: float) -> float:
        part = (self._high - loss) / (self._high - self._low)
        return round(_TOP + (_BOTTOM - _TOP) * part, 1)

    def line(self, line: Line, colour: str) -> str:
        points = " ".join(f"{self.x(seconds)},{self.y(loss)}" for seconds, loss in line.points)
        dashes = ' stroke-dasharray="6 4"' if line.reference else ""
        style = f'fill="none" stroke="{colour}" stroke-width="2"{dashes}'
        return f'<polyline points="{points}" {style}/>'

    def target(self) -> str:
        y = self.y(self._target)
        style = f'stroke="{_GREY}" stroke-dasharray="2 3"'
        return f'<line x1="{_LEFT}" x2="{_RIGHT}" y1="{y}" y2="{y}" {style}/>'

    def axes(self) -> list[str]:
        corner = f"{_LEFT},{_TOP} {_LEFT},{_BOTTOM} {_RIGHT},{_BOTTOM}"
        marks = [i / 5 for i in range(6)]
        losses = [self._low + mark * (self._high - self._low) for mark in marks]
        seconds = [mark * self._seconds for mark in marks]
        return [
            f'<polyline points="{corner}" fill="none" stroke="black"/>',
            *(_text(_LEFT - 8, self.y(loss) + 4, f"{loss:.1f}", "end") for loss in losses),
            *(_text(self.x(at), _BOTTOM + 18, f"{at:.3g}", "middle") for at in seconds),
            _text((_LEFT + _RIGHT) / 2, _BOTTOM + 42, "seconds of training", "middle"),
            _text(_LEFT, _TOP - 4, "held-out loss (nats per word)", "start"),
        ]


def _text(x: float, y: float, words: str, anchor: str, colour: str = "black") -> str:
    return f'<text x="{x}" y="{y}" text-anchor="{anchor}" fill="{colour}">{escape(words)}</text>'

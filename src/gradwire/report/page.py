"""A page for a browser: one HTML file that fetches nothing. A verdict, then sections of parts.

    title                      what the page is of
    verdict                    one sentence; more paragraphs, and what needs attention, follow
    section                    a heading, words, and parts: Figure, Grid, Charts, Steps, Fold

Names of parameters, hosts and strategies come from files: the template escapes all text. Only an
SVG is passed on as it is; the code that draws one escapes its text (`charts`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from gradwire.report.timeline import Timeline


@dataclass(frozen=True)
class Key:
    """An entry of a legend: a mark ("line" or "box"), its class in the style sheet, and words."""

    mark: str
    style: str
    words: str


@dataclass(frozen=True)
class Figure:
    """A drawing. svg: markup, escaped already."""

    kind: ClassVar[str] = "figure"
    svg: str
    caption: str = ""
    legend: Sequence[Key] = ()


@dataclass(frozen=True)
class Charts:
    """Figures side by side, with one legend."""

    kind: ClassVar[str] = "charts"
    figures: Sequence[Figure]
    legend: Sequence[Key] = ()


@dataclass(frozen=True)
class Grid:
    """A table. text: the columns that hold words, and are set flush left."""

    kind: ClassVar[str] = "grid"
    heads: Sequence[str]
    rows: Sequence[Sequence[str]]
    text: Sequence[int] = ()


@dataclass(frozen=True)
class Steps:
    """A timeline to zoom into; a page has one at most."""

    kind: ClassVar[str] = "steps"
    timeline: Timeline


@dataclass(frozen=True)
class Fold:
    """A part that opens when its summary is clicked: a table, or text as it stands."""

    kind: ClassVar[str] = "fold"
    summary: str
    inside: Grid | str
    is_open: bool = False

    @property
    def grid(self) -> Grid | None:
        """The table inside; None if it is text."""
        return self.inside if isinstance(self.inside, Grid) else None


Part = Figure | Charts | Grid | Steps | Fold


@dataclass(frozen=True)
class Section:
    """A part of a page under a heading of its own. words: paragraphs before its parts."""

    heading: str
    parts: Sequence[Part]
    words: Sequence[str] = ()


@dataclass(frozen=True)
class Page:
    """All that a page shows. told: paragraphs below the verdict; notes: what needs attention."""

    title: str
    verdict: str
    sections: Sequence[Section]
    told: Sequence[str] = ()
    notes: Sequence[str] = field(default_factory=tuple)

    def html(self) -> str:
        """Returns the text of the HTML file."""
        from jinja2 import Environment, PackageLoader

        loader = PackageLoader("gradwire.report", "assets")
        environment = Environment(
            loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True
        )
        css, js = (loader.get_source(environment, f"page.{end}")[0] for end in ("css", "js"))
        return environment.get_template("page.html").render(page=self, css=css, js=js)

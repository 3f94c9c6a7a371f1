"""The page of `gradwire network … --html`: schemes side by side, loads of links, messages.

verdict             which paths to take
schemes             a table
loads               the heat map: how full each link is
messages            when each is under way, where an engine that knows time has said so
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gradwire.report.page import Figure, Fold, Grid, Page, Section, Steps
from gradwire.report.timeline import Step, timeline

_LOADS = (
    "A cell is a link between a leaf and a switch above it: the stronger its colour, the longer "
    "it is busy. All are to one scale. Traffic that is spread well has even colours."
)
_MESSAGES = (
    "A row holds what a host sends, one message after the other; what it sends at once lies in "
    "rows of its own. Where links are shared, messages take longer."
)


def network_page(
    title: str, verdict: str, schemes: Grid, command: str, *, told: Sequence[str] = (),
    notes: Sequence[str] = (), loads: str = "", steps: Iterable[Step] = (),
) -> Page:  # fmt: skip
    """The page of a network. loads: an SVG; steps: a trace of each scheme that is shown, whose
    ranks are hosts; command: which repeats it."""
    sections = [Section("Schemes side by side", [schemes])]
    if loads:
        sections.append(Section("How full links are", [Figure(loads)], [_LOADS]))
    if (found := timeline(steps, lambda host: f"host {host}")) is not None:
        sections.append(Section("Message by message", [Steps(found)], [_MESSAGES]))
    sections.append(Section("How to repeat it", [Fold("the command", command)]))
    return Page(title, verdict, sections, told, notes)

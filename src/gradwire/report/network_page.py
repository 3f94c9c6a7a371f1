"""The page of `gradwire network … --html`: schemes side by side, loads of links, messages.

verdict             which paths to take
schemes             a table, or the table of what-if cases
loads               the heat map: how full each link is
messages            when each is under way, if the engine simulates time
a step              what each rank does when, if the traffic is a training step's
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gradwire.report.page import Figure, Fold, Grid, Page, Section, Steps
from gradwire.report.timeline import Step, Timeline, timeline

_LOADS = (
    "A cell is a link between a leaf and a switch above it: the stronger its colour, the longer "
    "it is busy. All are to one scale. Traffic that is spread well has even colours. Paths by "
    "hashes (ecmp) or at random are one draw of many."
)
_MESSAGES = (
    "A row shows messages that a host sends one after the other; those that it sends at the same "
    "time are in further rows. Messages that share links take longer."
)
_A_STEP = (
    "Each rank's first row shows when it computes; the rows below show what it sends, and the "
    "time of each bucket before and after. A span ends when all messages that it needs have "
    "arrived."
)


def network_page(
    title: str, verdict: str, table: Grid, command: str, *, told: Sequence[str] = (),
    heading: str = "Schemes side by side", notes: Sequence[str] = (), loads: str = "",
    messages: Iterable[Step] = (), steps: Iterable[Step] = (),
) -> Page:  # fmt: skip
    """Returns the page of a network. heading: the table's; loads: an SVG; messages: a trace of
    each scheme that is shown, whose ranks are hosts; steps: the same of a training step; command:
    the command line that makes the page again."""
    sections = [Section(heading, [table])]
    if loads:
        sections.append(how_full(loads))
    if (found := timeline(messages, by_host)) is not None:
        sections.append(Section("Message by message", [Steps(found)], _told(_MESSAGES, found)))
    if (found := timeline(steps)) is not None:
        sections.append(Section("Rank by rank", [Steps(found)], _told(_A_STEP, found)))
    sections.append(Section("How to repeat it", [Fold("the command", command)]))
    return Page(title, verdict, sections, told, notes)


def by_host(host: int) -> str:
    """Returns the name of a host's rows."""
    return f"host {host}"


def how_full(loads: str, *told: str) -> Section:
    """Returns the section of loads, an SVG. told: paragraphs before it."""
    return Section("How full links are", [Figure(loads)], [*told, _LOADS])


def _told(what: str, shown: Timeline) -> list[str]:
    beyond = "Later ones are left out: the page would be too large." if shown.is_cut else ""
    return [f"{what} {beyond}".strip()]

"""What `gradwire top` shows: each rank of a run in a line, and what is wrong."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter
from statistics import median
from typing import TYPE_CHECKING, Any

from gradwire.progress import rounded
from gradwire.report.alarms import alarms
from gradwire.report.run import Rank, Run
from gradwire.report.run_text import as_bytes, as_milliseconds
from gradwire.report.summary import LANE_KINDS, Summary, mean_of, summarize
from gradwire.report.terminal import printable
from gradwire.run_folder import StepRow

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.table import Table
    from rich.text import Text

RECENT = 20
"""How many of the last rows count as now."""
SILENT_SECONDS = 30.0
"""A rank is silent if nothing was read from it for so long, and for ten of its steps."""
_BARS = "▁▂▃▄▅▆▇█"
_WIDTH, _LEAST_OF_HOST = 17, 4  # characters
_STYLES = {"compute": ("█", "blue"), "backward": ("▓", "cyan"), "wait": ("░", "red")}
MOST_RANKS = 24
"""Rows to show when the terminal's height is unknown: of more ranks, those that compute
longest."""
_ALARMS, _SUMMED = 8, 200
_ENDED = "the job has ended, or stands still"
_LONGEST_SECONDS = 86_400.0  # of a pause: the system refuses centuries


def view(
    run: Run, seen: dict[int, tuple[int, float]], now: float, console: Console | None = None
) -> RenderableType:
    """Returns the run as it is now, with what is wrong above the ranks.

    seen: each rank's last step and when it was first read, or its file was last written before;
    updated, and to be kept from call to call. now: seconds of any monotonic clock. console: as
    many ranks are shown as fit its height.
    """
    from rich.console import Group

    silent = list(_silent(run, seen, now))
    summary = summarize(run, _SUMMED)
    if summary is None:
        there = f"{len(run.ranks)} of {run.world} ranks"
        return _line(f"{run.name}: no step has ended yet; {there}")
    warned = [*silent, *alarms(summary)]
    more = [f"and {len(warned) - _ALARMS} more"] if len(warned) > _ALARMS else []
    above = [
        _line(_head(summary), "bold"), _line(_second(summary), "dim"),
        *(_line(f"! {text}", "red") for text in (*warned[:_ALARMS], *more)),
    ]  # fmt: skip
    most = MOST_RANKS if console is None else _fitting(above, len(run.ranks), console)
    hidden = len(run.ranks) - most
    least = [f"{hidden} more ranks compute no longer than these"] if hidden > 0 else []
    return Group(*above, _table(run, most), *(_line(text, "dim") for text in least))


def _line(text: str, style: str = "") -> Text:
    """Returns one printable line: names of hosts, folders and events come from files, which may
    hold anything."""
    from rich.text import Text

    return Text(printable(" ".join(text.splitlines())), style=style)


def _fitting(above: Iterable[Text], ranks: int, console: Console) -> int:
    """The number of ranks, at least one, that fit below these lines, the table's head, and the
    line on hidden ranks."""
    room = console.height - 1 - sum(len(text.wrap(console, console.width)) for text in above)
    return ranks if ranks <= room else max(1, room - 1)


def _head(s: Summary) -> str:
    recent = [row for rank in s.run.ranks.values() for row in _recent(rank)]
    step = max(row.step for row in recent)
    seconds = mean_of(recent, lambda row: row.seconds)
    return (
        f"{s.run.name}   step {step:,}   {as_milliseconds(seconds)} ms   "
        f"{len(s.run.ranks)} of {s.run.world} ranks   {_fewer(s)}"
    )


def _fewer(s: Summary) -> str:
    if not s.bytes_sent:
        return "nothing is sent"
    if s.fewer > 1:
        return f"{s.fewer:.1f} times fewer bytes"
    if s.bytes_given:
        return f"{s.bytes_sent / s.bytes_given:.1f} times the gradient's bytes"
    return f"{as_bytes(s.bytes_sent)} a step"


def _second(s: Summary) -> str:
    losses = [loss for _, _, loss in s.losses]
    lately = f"loss {losses[-1]:.4g} {_spark(losses)}" if losses else "no loss was logged"
    return f"{lately}   overlap {100 * s.overlap:.0f} %"


def _table(run: Run, most: int) -> _Ranks:
    from rich.text import Text

    named = [(f"{cell}{name[:4]} ", style) for name, (cell, style) in _STYLES.items()]
    parts = Text.assemble(*named, end="")
    parts.rstrip()
    rows: list[Sequence[str | Text]] = []
    for rank in _shown(run, most):
        recent = _recent(rank)
        named_rank = str(rank.rank), _line(rank.about.host)
        if not recent:
            rows.append((*named_rank, "-", *[""] * (4 + len(LANE_KINDS))))
            continue
        means = {name: mean_of(recent, attrgetter(name)) for name in _MEANS}
        norms = [r.residual_norm for r in rank.steps if r.residual_norm is not None]
        rows.append((
            *named_rank, f"{recent[-1].step:,}",
            as_milliseconds(means["seconds"]), _bar(means),
            *(as_milliseconds(means[kind]) for kind in LANE_KINDS),
            as_bytes(means["bytes_sent"]), f"{norms[-1]:.2g}" if norms else "",
        ))  # fmt: skip
    return _Ranks(("rank", "host", "step", "ms", parts, *LANE_KINDS, "sent", "norm"), rows)


@dataclass(frozen=True)
class _Ranks:
    """A table that fits its terminal: names of hosts are cut, then the last columns left out, as a
    number that is cut may be taken for another."""

    heads: Sequence[str | Text]
    rows: Sequence[Sequence[str | Text]]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Table]:
        from rich.cells import cell_len
        from rich.table import Table

        columns = list(zip(self.heads, *self.rows))
        widths = [max(cell_len(str(cell)) for cell in column) for column in columns]
        hosts, widths[1] = widths[1], min(widths[1], _LEAST_OF_HOST)
        many = next(
            (n for n in range(len(widths), 4, -1) if _wide(widths[:n]) <= options.max_width), 4
        )
        left = options.max_width - _wide(widths[:many])
        table = Table(box=None, pad_edge=False, header_style="dim")
        for number, head in enumerate(self.heads[:many]):
            table.add_column(
                head, justify="left" if number in (1, 4) else "right", no_wrap=True,
                width=widths[number] + max(0, min(left, hosts - widths[1])) * (number == 1),
            )  # fmt: skip
        for row in self.rows:
            table.add_row(*row[:many])
        yield table


def _wide(widths: Sequence[int]) -> int:
    """The width of columns beside each other."""
    return sum(widths) + 2 * (len(widths) - 1)


_MEANS = ("seconds", "compute", "backward", "wait", *LANE_KINDS, "bytes_sent")


def _shown(run: Run, most: int) -> list[Rank]:
    """The ranks to show, by number: if there are more than `most`, those that compute longest."""
    ranks = list(run.ranks.values())
    if len(ranks) <= most:
        return ranks
    busy = {
        rank.rank: mean_of(_recent(rank), lambda row: row.compute + row.backward) for rank in ranks
    }
    kept = sorted(ranks, key=lambda rank: -busy[rank.rank])[:most]
    return sorted(kept, key=lambda rank: rank.rank)


def _recent(rank: Rank) -> Sequence[StepRow]:
    return rank.steps[-RECENT:]


def _bar(means: dict[str, float]) -> Any:
    """Draws the parts of a step in proportion to their seconds."""
    from rich.text import Text

    total = sum(means[name] for name in _STYLES) or 1.0
    bar, filled, until = Text(), 0, 0.0
    for name, (cell, style) in _STYLES.items():
        until += means[name]
        cells = round(_WIDTH * until / total) - filled
        bar.append(cell * cells, style=style)
        filled += cells
    return bar


def _spark(values: Sequence[float], width: int = 30) -> str:
    """Draws a curve in one line of text, by the means of equal parts."""
    finite = [x for x in values if abs(x) < float("inf")]
    size = max(1, len(finite) // width)
    means = [sum(part) / len(part) for part in _parts(finite, size)]
    low, high = min(means, default=0.0), max(means, default=0.0)
    scale = (len(_BARS) - 1) / ((high - low) or 1.0)
    return "".join(_BARS[round((x - low) * scale)] for x in means[-width:])


def _parts(values: Sequence[float], size: int) -> Iterable[Sequence[float]]:
    return [values[i : i + size] for i in range(0, len(values), size)]


def _silent(run: Run, seen: dict[int, tuple[int, float]], now: float) -> Iterable[str]:
    quiet: dict[int, float] = {}
    for rank in run.ranks.values():
        rows = _recent(rank)
        step = rows[-1].step if rows else -1
        if rank.rank not in seen:
            seen[rank.rank] = step, now - run.unwritten_seconds(rank.rank)
        elif seen[rank.rank][0] != step:
            seen[rank.rank] = step, now
        usual = median(row.seconds * row.steps for row in rows) if rows else 0.0
        if (seconds := now - seen[rank.rank][1]) > max(SILENT_SECONDS, 10 * usual):
            quiet[rank.rank] = seconds
    if len(quiet) == len(run.ranks) > 1:
        yield f"no rank has recorded anything for {rounded(min(quiet.values()))}: {_ENDED}"
        return
    for number, seconds in quiet.items():
        last = f"its last step is {seen[number][0]:,}"
        yield f"rank {number} has recorded nothing for {rounded(seconds)}; {last}"


def follow(
    run: Run, every_seconds: float, show: Any, is_over: Any = lambda: False,
    console: Console | None = None,
) -> None:  # fmt: skip
    """Shows the run, and reads on, every so many seconds until `is_over()`. console: as in
    `view`."""
    seen: dict[int, tuple[int, float]] = {}
    while True:
        show(view(run, seen, time.monotonic(), console))
        if is_over():
            return
        time.sleep(min(every_seconds, _LONGEST_SECONDS))
        run.look()

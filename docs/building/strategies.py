"""The table of `docs/choose-a-strategy.md` that a reader filters: all from what gradwire answers.

A row is a strategy that is known to be sound with some optimizer; why, by whose runs, and how many
times fewer bytes it sends, is asked of the package when the site is built.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from html import escape

import gradwire
from building.pages import text_of
from gradwire.errors import StrategyError
from gradwire.families import COLLECTIVES
from gradwire.soundness import Verdict
from gradwire.strategy import Strategy
from gradwire.training.recommend import frontier

_PLACE = re.compile(r"<!-- elsewhere -->.*?<!-- the table of strategies -->", re.DOTALL)
"""Of the table, and of the words that stand there where there is none."""
OPTIMIZERS = {"sgd": "SGD", "sgdm": "SGD with momentum", "adamw": "AdamW", "muon": "Muon"}
"""Those that the table tells apart, and how people write them."""
RANKS = 4
GRADIENT_BYTES = 100e6
RATES = {"100 Mbit/s": 1e8, "1 Gbit/s": 1e9, "10 Gbit/s": 1e10, "25 Gbit/s": 2.5e10}
LIMITS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0)
"""Seconds that an exchange may take, to choose from."""
FORMAT, ROWS = "any model", "embedding tables (sparse=True)"
"""Kinds of models for which no run is needed."""


@dataclass
class Row:
    """A strategy. fewer: times fewer bytes than fp32; None: as many as the data have."""

    strategy: Strategy
    fewer: float | None
    verdicts: Mapping[str, Verdict]
    models: list[str] = field(default_factory=list)

    @property
    def seconds(self) -> list[float | None]:
        """That GRADIENT_BYTES of gradient take on the wire, by rate."""
        whole = 2 * (RANKS - 1) / RANKS * GRADIENT_BYTES * 8
        return [self.fewer and whole / self.fewer / rate for rate in RATES.values()]


def rows() -> list[Row]:
    """The nearest to dense first; last those whose bytes follow from the data."""
    fewer: dict[Strategy, float] = {}
    for optimizer in OPTIMIZERS:
        fewer |= dict(frontier(optimizer, RANKS))
    dense = sorted(fewer, key=lambda strategy: fewer[strategy])
    found = [_row(strategy, fewer[strategy]) for strategy in dense]
    return found + [_row(strategy, None) for strategy in _of_rows() if strategy not in fewer]


def _row(strategy: Strategy, fewer: float | None) -> Row:
    verdicts = {name: gradwire.sound(strategy, name) for name in OPTIMIZERS}
    if fewer is None:
        return Row(strategy, fewer, verdicts, [ROWS])
    runs = list(_tasks(strategy, verdicts))
    needs_none = any(v.kind == "sound" and not v.evidence for v in verdicts.values())
    return Row(
        strategy, fewer, verdicts, [*([FORMAT] if needs_none else []), *dict.fromkeys(runs)]
    )


def _tasks(strategy: Strategy, verdicts: Mapping[str, Verdict]) -> Iterator[str]:
    """Of the runs that show it: those that verdicts name, and others of this very strategy."""
    yield from (v.evidence.task for v in verdicts.values() if v.kind == "sound" and v.evidence)
    for member in (strategy.compressor, strategy.feedback, strategy.collective):
        for run in member.evidence if member else ():
            if run.sound and Strategy.parse(run.strategy) == strategy:
                yield run.task


def models_of_tasks() -> dict[str, str]:
    """What is trained in each task, as the table of tasks in benchmarks/convergence has it."""
    lines = text_of("benchmarks/convergence/README.md").splitlines()
    found, model = dict[str, str](), ""
    for line in lines:
        cells = [cell.strip() for cell in line.split("|")]
        if len(cells) == 8 and cells[1].startswith("`"):
            model = model if cells[4] == "the same" else cells[4]
            found |= {name.strip(" `"): model for name in cells[1].split(",")}
    return found


def _of_rows() -> Iterator[Strategy]:
    """What rows of tables may travel by, without loss."""
    for name, kind in COLLECTIVES.own.items():
        for text in (f"none | {name}", f"nonzero | {name}"):
            if kind.takes_rows and (made := _made(text)):
                yield made


def _made(text: str) -> Strategy | None:
    try:
        return Strategy.parse(text)
    except (StrategyError, TypeError):
        return None


def with_table(text: str) -> str:
    """A page's text with the table in its place, if it has one."""
    return _PLACE.sub(lambda _: table(), text)


def table() -> str:
    """As HTML on one line, so that nothing of it is taken for Markdown."""
    found, trained = rows(), models_of_tasks()
    models = dict.fromkeys(model for row in found for model in row.models)
    filters = _filters([(name, _told(name, trained)) for name in models])
    body = "".join(map(_html, found))
    return (
        f'<div class="strategies"><form hidden>{filters}</form>'
        f'<p class="shown" role="status"></p><p id="strategies-are">{_what()}</p>'
        '<div class="table-wrapper" tabindex="0" role="region" aria-label="strategies">'
        f'<table aria-describedby="strategies-are"><thead>{_head()}</thead>'
        f"<tbody>{body}</tbody></table></div></div>"
    )


def _what() -> str:
    return (
        "Each is known to be sound with some optimizer. Times are of the wire alone: for "
        f"{GRADIENT_BYTES / 1e6:.0f} MB of fp32 gradient, among {RANKS} machines."
    )


def _told(name: str, trained: Mapping[str, str]) -> str:
    return f"{name}: {trained[name]}" if name in trained else name


def _filters(models: list[tuple[str, str]]) -> str:
    limits = [(f"{limit:g}", f"{_seconds(limit)}") for limit in LIMITS]
    rates = [(str(i), name) for i, name in enumerate(RATES)]
    return (
        _select("optimizer", "sound with", list(OPTIMIZERS.items()), "any optimizer")
        + _select("network", "network", rates, "all four")
        + _select("limit", "an exchange takes at most", limits, "as long as it likes")
        + _select("model", "shown on", models, "anything")
        + '<button type="reset">Show all</button>'
    )


def _select(name: str, label: str, options: list[tuple[str, str]], every: str) -> str:
    chosen = [("", every), *options]
    inside = "".join(f'<option value="{escape(v)}">{escape(t)}</option>' for v, t in chosen)
    return f'<label>{label} <select name="{name}">{inside}</select></label> '


def _head() -> str:
    optimizers = "".join(
        f'<th scope="col" data-optimizer="{key}">{name}</th>' for key, name in OPTIMIZERS.items()
    )
    rates = "".join(f'<th scope="col" data-rate="{i}">{r}</th>' for i, r in enumerate(RATES))
    return (
        f'<tr><th scope="col">strategy</th>{optimizers}<th scope="col">fewer bytes</th>{rates}'
        '<th scope="col">shown on</th></tr>'
    )


def _html(row: Row) -> str:
    told = "as the data are" if row.fewer is None else f"{row.fewer:.3g} times"
    seconds = "".join(
        f'<td data-rate="{i}" data-seconds="{s or ""}">{_seconds(s)}</td>'
        for i, s in enumerate(row.seconds)
    )
    verdicts = "".join(_verdict(name, verdict) for name, verdict in row.verdicts.items())
    models = escape("|".join(row.models))
    code = f'<code class="literal">{escape(str(row.strategy))}</code>'
    return (
        f'<tr data-models="{models}"><th scope="row">{code}</th>{verdicts}'
        f"<td>{told}</td>{seconds}<td>{escape(', '.join(row.models))}</td></tr>"
    )


def _verdict(name: str, verdict: Verdict) -> str:
    starts = verdict.evidence if verdict.kind == "sound" else None
    more = f", after {starts.warmup:.0%} warm-up" if starts and starts.warmup else ""
    return (
        f'<td class="{verdict.kind}" data-optimizer="{name}" title="{escape(str(verdict))}">'
        f"{verdict.kind}{more}</td>"
    )


def _seconds(value: float | None) -> str:
    if value is None:
        return "–"
    if value >= 0.095:
        return f"{float(f'{value:.2g}'):g} s"
    return f"{float(f'{1e3 * value:.2g}'):g} ms"

"""Makes a table and loss curves from records; a method that diverged stays in both."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from pathlib import Path
from statistics import fmean
from typing import Any

import parity
from methods import BY_NAME, DENSE
from tasks import TASKS

from gradwire.report.table import Table

Record = dict[str, Any]
ORDER = list(BY_NAME)


@dataclass(frozen=True)
class Row:
    """The runs of one method on one task at one rate, and dense's, at its best rate, of the same
    seeds. rate: times the task's."""

    method: str
    rate: float
    runs: Sequence[Record]
    dense: Sequence[Record]

    @property
    def label(self) -> str:
        """The method, and its rate if that is not the task's."""
        return self.method if self.rate == 1.0 else f"{self.method}, rate × {self.rate:g}"

    @cached_property
    def metrics(self) -> list[float]:
        return [run["metric"] for run in self.runs]

    @cached_property
    def verdicts(self) -> tuple[parity.Verdict, parity.Verdict] | None:
        """The verdicts on the metric and on the training loss; None if dense has not run."""
        if not self.dense:
            return None
        kind = TASKS[self.runs[0]["task"]].metric.kind
        base, losses = ([run[key] for run in self.dense] for key in ("metric", "training_loss"))
        own = [run["training_loss"] for run in self.runs]
        return parity.metric(kind, base, self.metrics), parity.training_loss(losses, own)

    def cells(self) -> list[str]:
        task = self.runs[0]["task"]
        digits = 3 if TASKS[task].metric.kind == "bits" else 2
        sent = _mean(self.runs, "bytes_per_step")
        difference = as_good = learns_as_well = fewer = ""
        if self.verdicts is not None and self.runs != self.dense:
            pairs = [run["metric"] - base["metric"] for run, base in zip(self.runs, self.dense)]
            difference = _spread(pairs, digits, "+")
            as_good, learns_as_well = (_word(verdict.passed) for verdict in self.verdicts)
            fewer = f"{_mean(self.dense, 'bytes_per_step') / sent:.1f}×"
        return [
            self.label, f"{len(self.runs)}", _spread(self.metrics, digits), difference, as_good,
            f"{_mean(self.runs, 'training_loss'):.4f}", learns_as_well, f"{sent / 1000:.1f}",
            fewer, parity.PAPERS.get((task, self.method), ""),
        ]  # fmt: skip


def _mean(runs: Iterable[Record], key: str) -> float:
    return fmean(run[key] for run in runs)


def rows(records: Iterable[Record]) -> list[Row]:
    """Returns the rows of one task and one length, in the order of the list of methods and of
    rates."""
    found: dict[tuple[str, float], dict[int, Record]] = {}
    for record in records:
        by = record["method"], record.get("rate", 1.0)
        found.setdefault(by, {})[record["seed"]] = record
    dense = _best([own for (method, _), own in found.items() if method == "dense"])
    result = []
    for method, rate in sorted(found, key=lambda by: (_place(by[0]), by[1])):
        all_ = found[method, rate]
        seeds = sorted(seed for seed in all_ if seed in dense or not dense)
        if seeds:
            own = [all_[seed] for seed in seeds]
            base = [dense[seed] for seed in seeds if seed in dense]
            result.append(Row(method, rate, own, base))
    return result


def _best(candidates: Sequence[dict[int, Record]]) -> dict[int, Record]:
    """Returns the runs at the rate at which they learnt most; two rates are compared on the seeds
    of both, and the one with most seeds comes first. One at which a run diverged is the worst."""
    if not candidates:
        return {}
    kind = TASKS[next(iter(candidates[0].values()))["task"]].metric.kind
    sign = -1.0 if kind == "accuracy" else 1.0

    def better(one: dict[int, Record], other: dict[int, Record]) -> dict[int, Record]:
        both = one.keys() & other.keys()
        mine, theirs = (
            sign * fmean(own[seed]["metric"] for seed in both or own) for own in (one, other)
        )
        return other if theirs < mine or math.isnan(mine) else one

    return reduce(better, sorted(candidates, key=len, reverse=True))


def _place(method: str) -> int:
    return ORDER.index(method) if method in ORDER else len(ORDER)


def groups(records: Sequence[Record]) -> dict[tuple[str, int, int, float], list[Record]]:
    """Groups records by task, workers, steps and density: those in a group can be compared. A
    dense run, which has no density, stands in all groups of its length that have no own."""
    found: dict[tuple[str, int, int, float], list[Record]] = {}
    for r in records:
        found.setdefault((r["task"], r["workers"], r["steps"], r["density"]), []).append(r)
    dense = [r for r in records if r["method"] == DENSE.name]
    for (task, workers, steps, _), own in found.items():
        if all(r["method"] != DENSE.name for r in own):
            own += [
                r for r in dense if (r["task"], r["workers"], r["steps"]) == (task, workers, steps)
            ]
    return dict(sorted(found.items(), key=lambda item: (list(TASKS).index(item[0][0]), item[0])))


def tables(records: Sequence[Record]) -> str:
    """Returns Markdown, with a table for each task and length."""
    parts = []
    for (name, workers, steps, density), own in groups(records).items():
        metric = TASKS[name].metric
        ms = _mean(own, "ms_per_step")
        parts.append(
            f"**{name}**, density {density:g}, {steps:,} steps of {workers} workers "
            f"({ms:.0f} ms of processor time each); {metric.name} in {metric.unit}. "
            f"Mirrors: {TASKS[name].mirrors}."
        )
        headers = ("method", "seeds", metric.name, "less dense's", "as good", "training loss",
                   "as good", "kB/step", "fewer", "the paper's own difference")  # fmt: skip
        parts.append(Table(headers, [row.cells() for row in rows(own)]).as_markdown())
        parts += _global_topk(own)
    return "\n\n".join(parts)


def _global_topk(records: Sequence[Record]) -> list[str]:
    """Compares gTop-k with top-k with error feedback, if both ran and accuracy is the metric."""
    if TASKS[records[0]["task"]].metric.kind != "accuracy":
        return []
    found = {
        method: {r["seed"]: r["metric"] for r in records if r["method"] == method}
        for method in ("ef-topk", *(name for name in ORDER if name.startswith("gtopk")))
    }
    base, lines = found.pop("ef-topk"), []
    for method, own in found.items():
        if seeds := sorted(own.keys() & base.keys()):
            of_topk = [base[seed] for seed in seeds]
            verdict = parity.like_topk(of_topk, [own[seed] for seed in seeds])
            lines.append(
                f"{method} less ef-topk: {verdict.found - fmean(of_topk):+.2f} points; within "
                f"{parity.GLOBAL_TOPK:g}: {_word(verdict.passed)}."
            )
    return lines


def read(places: Sequence[Path]) -> list[Record]:
    """Reads records from folders of runs, or from files that `--json` wrote.

    Raises SystemExit if there is none, if a run has two that differ, or if runs of one table have
    other data or other devices: they are not paired.
    """
    known: dict[tuple[Any, ...], tuple[Record, Path]] = {}
    alike: dict[tuple[Any, ...], tuple[tuple[str, str], Path]] = {}
    for record, file in _found(places):
        table = tuple(record[key] for key in ("task", "workers", "steps", "density"))
        run = *table, record["method"], record["seed"], record.get("rate", 1.0)
        before, where = known.setdefault(run, (record, file))
        if json.dumps(before) != json.dumps(record):  # as text, where NaN equals NaN
            raise SystemExit(
                f"{where} and {file} have different records of one run, {run}: {before['metric']} "
                f"and {record['metric']}. Read one of them at a time."
            )
        facts = record.get("data", ""), record.get("device") or "cpu"
        own, where = alike.setdefault(table, (facts, file))
        if own != facts:
            raise SystemExit(
                f"runs of one table must have the same data and device; of {table} {where} has "
                f"{own} and {file} {facts}. Read them apart."
            )
    if not known:
        raise SystemExit(f"no run is recorded in {', '.join(map(str, places))}.")
    return [record for record, _ in known.values()]


def _found(places: Iterable[Path]) -> Iterator[tuple[Record, Path]]:
    """Yields records and their files. Other JSON files may be in a folder, and are left out."""
    for place in places:
        for file in sorted(place.glob("*.json")) if place.is_dir() else [place]:
            try:
                content = json.loads(file.read_text())
            except (OSError, ValueError) as error:
                raise SystemExit(f"{file} is no file of records: {error}.") from error
            for record in content if isinstance(content, list) else [content]:
                if isinstance(record, dict) and "method" in record and "metric" in record:
                    yield record, file
                elif not place.is_dir():
                    raise SystemExit(f"{file} is no file of records; --json writes one.")


def _spread(values: Sequence[float], digits: int, sign: str = "") -> str:
    mean = f"{fmean(values):{sign}.{digits}f}"
    return mean if len(values) < 2 else f"{mean} ± {parity.deviation(values):.{digits}f}"


def _word(passed: bool) -> str:
    return "yes" if passed else "**no**"


# -- curves --------------------------------------------------------------------------------

LOOKS = {
    "dense": ("black", "-"), "dgc": ("tab:blue", "-"), "ef-topk": ("tab:cyan", "-"),
    "gtopk": ("tab:green", "-"), "gtopk-butterfly": ("tab:green", ":"),
    "gtopk-published": ("tab:olive", "--"),
    "ef-sign": ("tab:orange", ":"), "onebit": ("tab:red", ":"), "qsgd": ("tab:purple", ":"),
    "powersgd": ("tab:pink", "-."), "dense-local-clip": ("tab:gray", "--"),
    "dgc-late": ("tab:blue", "--"), "ef-topk-late": ("tab:cyan", "--"),
    "gtopk-butterfly-late": ("tab:green", "--"), "gtopk-butterfly-long": ("lime", "-"),
    "ef-topk-warm": ("tab:cyan", "-"),
    "topk-adam": ("tab:brown", "-"), "onebit-adam": ("tab:brown", ":"), "sign": ("gold", ":"),
}  # fmt: skip
"""Solid lines: top-k and dense; dashed: as published; dotted: a few bits for every element."""


def plot(records: Sequence[Record], file: Path) -> None:
    """Plots a row for each task: training loss and metric against steps, means over seeds."""
    from matplotlib.figure import Figure

    chosen = groups(records)
    figure = Figure(figsize=(13, 4.2 * len(chosen)), layout="constrained")
    axes = figure.subplots(len(chosen), 2, squeeze=False)
    for (left, right), ((name, workers, steps, density), own) in zip(axes, chosen.items()):
        for row in rows(own):
            colour, style = LOOKS.get(row.method, ("tab:gray", "-."))
            look = {"color": colour, "linestyle": style, "label": row.label, "linewidth": 1.4}
            curve = _mean_curve([run["losses"] for run in row.runs])
            left.plot([(i + 0.5) * steps / len(curve) for i in range(len(curve))], curve, **look)
            at = [step for step, _ in row.runs[0]["metrics"]]
            found = _mean_curve([[value for _, value in run["metrics"]] for run in row.runs])
            right.plot(at, found, **look)
        left.set_title(
            f"{name}: {workers} workers, density {density:g}, {steps:,} steps",
            fontsize=10,
            loc="left",
        )
        _dress(left, "training loss (nats)", [run["losses"] for run in own], log=True)
        metric = TASKS[name].metric
        _dress(right, f"{metric.name} ({metric.unit})", [
            [value for _, value in run["metrics"]] for run in own
        ])  # fmt: skip
        right.legend(fontsize=8, ncols=2)
    figure.savefig(file, dpi=110)


def _mean_curve(curves: Sequence[Sequence[float]]) -> list[float]:
    return [fmean(values) for values in zip(*curves)]


def _dress(axis: Any, label: str, curves: Sequence[Sequence[float]], *, log: bool = False) -> None:
    """Sets limits that show the end of the run, where methods differ, more than its beginning."""
    from matplotlib.ticker import LogLocator, NullFormatter

    late = [v for curve in curves for v in curve[len(curve) // 8 :] if math.isfinite(v)]
    if late:
        low, high = min(late), max(late)
        axis.set_ylim(low - 0.05 * (high - low), high + 0.05 * (high - low))
        if log and low > 0:
            axis.set_yscale("log")
            axis.set_ylim(low / 1.05, high * 1.05)
            axis.yaxis.set_major_locator(LogLocator(subs=(1, 2, 3, 5)))
            axis.yaxis.set_major_formatter("{x:g}")
            axis.yaxis.set_minor_formatter(NullFormatter())
    axis.set_ylabel(label)
    axis.set_xlabel("steps")
    axis.grid(alpha=0.3)
    axis.spines[["top", "right"]].set_visible(False)

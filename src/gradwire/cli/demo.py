"""`gradwire demo`: a real model over an emulated slow network, with and without gradwire."""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gradwire.demo.rows import Row
    from gradwire.demo.runner import Setting
    from gradwire.demo.task import Point
    from gradwire.lab import Cluster


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the demo's options."""
    parser.add_argument("--hosts", type=int, default=4, metavar="N", help="(%(default)s)")
    parser.add_argument("--rate", default="1gbit", help="of every link, each way (%(default)s)")
    parser.add_argument(
        "--strategy",
        action="append",
        default=[],
        metavar="TEXT",
        help="a row of gradwire's, instead of the usual ones; may be given again",
    )
    parser.add_argument("--lanes", type=int, metavar="N", help="of gradwire's rows")
    parser.add_argument(
        "--quick", action="store_true", help="fewer rows, a smaller model: a minute"
    )
    parser.add_argument(
        "--loopback",
        action="store_true",
        help="no network: all ranks on 127.0.0.1, unshaped; works everywhere",
    )
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout")
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("demo-out"),
        metavar="DIR",
        help="for the plot and the numbers (%(default)s)",
    )


def run(arguments: argparse.Namespace) -> int:
    """Run all rows, print the table, save plot and numbers; 0 if everything ran."""
    from gradwire.demo import outcome, runner
    from gradwire.demo.summary import summarize, table
    from gradwire.lab import Cluster

    began = time.monotonic()
    setting = _setting(arguments)
    cluster = Cluster(setting.hosts, setting.rate, loopback=setting.loopback)
    _announce(setting, cluster)
    progress = Progress()
    with cluster:
        ran = runner.run(setting, cluster, progress)
    progress.close()
    seconds = time.monotonic() - began
    summary = summarize(ran)
    training = sum(result.seconds for result in summary.results)
    _say(
        f"{seconds:.0f} s: {training:.0f} s of training; the rest reads the text, starts "
        f"{len(ran)} × {setting.hosts} processes and evaluates"
    )
    plot = outcome.save_plot(ran, summary, cluster, arguments.out)
    document = outcome.document(summary, cluster, seconds)
    document["plot"] = str(plot)
    (arguments.out / "demo.json").write_text(json.dumps(document, indent=1) + "\n")
    told = f"\n{table(summary).as_text()}\n\nLoss against seconds: {plot}"
    print(json.dumps(document) if arguments.json else told)
    return 0


def _setting(arguments: argparse.Namespace) -> Setting:
    from gradwire.demo.runner import QUICK, Setting
    from gradwire.lab import available
    from gradwire.lab.availability import how_to_allow

    loopback = arguments.loopback
    if not loopback and available().mode == "none":
        _say(f"this machine refuses network namespaces ({available().reason}). {how_to_allow()}")
        loopback = True
    return replace(
        QUICK if arguments.quick else Setting(),
        hosts=arguments.hosts,
        rate=arguments.rate,
        loopback=loopback,
        strategies=tuple(arguments.strategy),
        lanes=arguments.lanes,
    )


def _announce(setting: Setting, cluster: Cluster) -> None:
    from gradwire.demo.outcome import network

    if cluster.loopback:
        _say(
            f"{cluster.ranks} processes on 127.0.0.1, unshaped: this trains, but says nothing "
            "about a slow network"
        )
    _say(f"an LSTM language model on {network(cluster)}; all rows: same seed, same data")
    _say(f"reading the text that ships with Python; then {setting.row_count} rows")
    if setting.quick:
        _say(
            "quick: a smaller model and few steps show what a step costs, not how well it learns; "
            "for that take the whole demo"
        )


class Progress:
    """One line per row on stderr; on a terminal it moves while the row runs."""

    def __init__(self) -> None:
        self._row = ""
        self._line = ""
        self._noted: set[str] = set()
        self._moves = sys.stderr.isatty()
        self._start = "\r" if self._moves else ""

    def begin(self, number: int, count: int, seconds_to_go: float) -> None:
        """A row begins."""
        self.close()
        print(
            f"  row {number} of {count}; about {seconds_to_go:.0f} s to go, all rows",
            file=sys.stderr, flush=True,
        )  # fmt: skip

    def __call__(self, row: Row, point: Point) -> None:
        if row.label != self._row:
            self.close()
            self._row = row.label
        self._line = (
            f"  {row.label:24} step {point.step:4}   loss {point.loss:6.3f}   "
            f"{point.seconds:6.1f} s"
        )
        if self._moves:
            print(f"{self._start}{self._line}", end="", file=sys.stderr, flush=True)

    def note(self, line: str) -> None:
        """Pass on what a rank has to say; each line once, though every row may repeat it."""
        if line not in self._noted:
            self._noted.add(line)
            print(f"{self._start}  {line}", file=sys.stderr, flush=True)

    def close(self) -> None:
        """End the current line."""
        if self._row:
            print(f"{self._start}{self._line}", file=sys.stderr, flush=True)
        self._row = ""


def _say(words: str) -> None:
    print(f"gradwire demo: {words}", file=sys.stderr, flush=True)

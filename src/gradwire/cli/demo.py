"""`gradwire demo`: a real model over an emulated slow network, with and without gradwire."""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from gradwire.cli.arguments import (
    add_quiet,
    check_output,
    repeats,
    say,
    whole,
    write_page,
    writing,
)
from gradwire.cli.endings import ending_on_sigterm
from gradwire.cli.progress import telling
from gradwire.document import save_file

if TYPE_CHECKING:
    from gradwire.demo.runner import Setting
    from gradwire.lab import Cluster


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the demo's options."""
    add = parser.add_argument
    number = "number of emulated hosts, one rank on each (default: %(default)s)"
    add("--hosts", type=int, default=4, metavar="N", help=number)
    rate = "bandwidth of every link, each way (default: %(default)s)"
    add("--rate", default="1gbit", help=rate)
    own = "strategy to train with, instead of the usual ones; repeatable"
    add("--strategy", action="append", default=[], metavar="TEXT", help=own)
    lanes = "number of lanes with gradwire (default: that of gradwire.attach)"
    add("--lanes", type=whole(1, 16), metavar="N", help=lanes)
    add(
        "--quick", action="store_true", help="train a smaller model, in fewer ways: about a minute"
    )
    alone = "emulate no network: all ranks on 127.0.0.1, at full speed; works everywhere"
    add("--loopback", action="store_true", help=alone)
    add("--json", action="store_true", help="print one JSON document to stdout")
    kept = "folder for the plot, the page and the numbers (default: %(default)s)"
    add("--out", type=Path, default=Path("demo-out"), metavar="DIR", help=kept)
    add_quiet(parser)


def run(arguments: argparse.Namespace) -> int:
    """Runs all rows, prints the table, saves plot and numbers; returns 0 if everything ran. Raises
    UsageError, also if the folder cannot be written."""
    from gradwire.demo import runner, summary
    from gradwire.demo.page import page
    from gradwire.lab import Cluster

    began = time.monotonic()
    setting = _setting(arguments)
    cluster = Cluster(setting.hosts, setting.rate, loopback=setting.loopback)
    _check_folder(arguments.out)
    if not arguments.quiet:
        _announce(setting, cluster)
    with ending_on_sigterm(), telling(arguments, "demo") as progress, cluster:
        ran = runner.run(setting, cluster, progress, _say)
    seconds = time.monotonic() - began
    found = summary.summarize(ran)
    if not arguments.quiet:
        training = sum(result.seconds for result in found.results)
        _say(
            f"{seconds:.0f} s: {training:.0f} s of training; the rest reads the text, starts "
            f"{len(ran)} × {setting.hosts} processes and evaluates"
        )
    if not arguments.json:  # before the files: a full disk must not cost what was measured
        print(f"\n{summary.table(found).as_text()}")
    with writing(arguments.out):
        plot = summary.save_plot(ran, found, cluster, arguments.out)
    document = summary.document(found, cluster, seconds)
    document["plot"] = str(plot)
    shown = arguments.out / "demo.html"
    write_page(page(found, cluster, repeats(arguments)), shown)
    document["page"] = str(shown)
    with writing(arguments.out):
        save_file(arguments.out / "demo.json", json.dumps(document, indent=1) + "\n")
    told = f"\nLoss against seconds: {plot}\nAll of it: {shown}"
    print(json.dumps(document) if arguments.json else told)
    return 0


def _check_folder(folder: Path) -> None:
    """Makes the folder. Raises UsageError unless all files can be written there: minutes of
    training come before that."""
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    for name in ("loss.png", "demo.html", "demo.json"):
        check_output("the demo", folder / name)


def _setting(arguments: argparse.Namespace) -> Setting:
    from gradwire.demo.runner import QUICK, Setting
    from gradwire.lab import available

    loopback = arguments.loopback
    if not loopback and (found := available()).mode == "none":
        _say(f"an emulated network cannot be made here ({found.reason}). {found.cure}")
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
    from gradwire.demo.summary import network

    if cluster.loopback:
        _say(
            f"{cluster.ranks} processes on 127.0.0.1, at full speed: this trains, but says "
            "nothing about a slow network"
        )
    _say(f"an LSTM language model on {network(cluster)}; all rows: same seed, same data")
    _say(f"the text that ships with Python, {len(setting.rows)} rows")
    if setting.quick:
        _say(
            "quick: a smaller model and few steps show what a step costs, not how well it learns; "
            "for that run the demo without --quick"
        )


def _say(words: str) -> None:
    say(words, "gradwire demo")

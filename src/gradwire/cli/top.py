"""gradwire top: a run while it trains, rank by rank, in the terminal.

gradwire top run/           until Ctrl-C
gradwire top run/ --once    as it is now, and no more
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from gradwire.cli.arguments import above_0, add_quiet
from gradwire.cli.endings import ending_on_sigterm
from gradwire.cli.progress import moves, telling
from gradwire.errors import UsageError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options."""
    add = parser.add_argument
    add("run_folder", type=Path, metavar="RUN", help="the folder that gradwire.record writes")
    pause = "time between two updates (default: %(default)s)"
    add("--every", type=above_0, default=2.0, metavar="SECONDS", help=pause)
    add("--once", action="store_true", help="show the run once, and exit")
    add_quiet(parser)


def run(arguments: argparse.Namespace) -> int:
    """Shows the run until Ctrl-C; returns the exit code. Raises UsageError."""
    try:
        from rich.console import Console
        from rich.live import Live
    except ImportError as error:
        raise UsageError(
            "gradwire top needs the package rich, which is not installed. Run pip install rich, "
            "or use gradwire report."
        ) from error
    from gradwire.report.live import follow
    from gradwire.report.run import Run

    console = Console()
    with telling(arguments, "top") as progress:
        found = Run(arguments.run_folder, progress)
    if arguments.once or not moves(sys.stdout):
        follow(found, arguments.every, console.print, is_over=lambda: True)
        return 0
    screen = Live(console=console, auto_refresh=False, screen=True)
    with ending_on_sigterm(), screen as live:  # which gives the terminal back
        follow(
            found, arguments.every, lambda shown: live.update(shown, refresh=True), console=console
        )  # fmt: skip
    return 0

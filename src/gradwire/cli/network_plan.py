"""gradwire network plan: which paths a job's traffic should take, and what that gains.

gradwire network plan --topology "leaf_spine(16, 16, 16)" --traffic ring --placement shuffled
gradwire network plan --topology "fat_tree(4, 8, 16, 8, 8)" --traffic all_to_all -o routes.json
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

from gradwire.cli.arguments import check_output
from gradwire.cli.network_traffic import Traffic, add_traffic_arguments, traffic_of
from gradwire.cli.progress import telling
from gradwire.errors import NetworkError

if TYPE_CHECKING:
    from gradwire.network.advice import Advice


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_traffic_arguments(parser)
    parser.add_argument("--scheme", action="append", metavar="TEXT", help="only these; repeatable")
    file = "write the paths: those recommended, or of the first --scheme"
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help=file)


def run(arguments: argparse.Namespace) -> int:
    """Advise; the exit code. Raises NetworkError."""
    check_output("a file of paths", arguments.output)
    with telling(arguments, "network plan") as progress:
        from gradwire.network.advice import advise

        traffic = traffic_of(arguments)
        advice = advise(
            traffic.flows, traffic.topology, arguments.scheme, arguments.seed, progress
        )
        if arguments.output:
            _save(arguments, traffic, (arguments.scheme or [advice.recommended])[0])
    print(json.dumps(advice.to_json(), indent=2) if arguments.json else _as_text(advice))
    return 0


def _save(arguments: argparse.Namespace, traffic: Traffic, scheme: str | None) -> None:
    from gradwire.network.routing.route import route
    from gradwire.network.saved import to_json

    if scheme is None:
        raise NetworkError(
            "paths that are written are pinned; for this traffic none is worth pinning. Leave out "
            "-o, or name a --scheme."
        )
    routes = route(traffic.flows, traffic.topology, scheme, arguments.seed)
    arguments.output.write_text(to_json(routes), encoding="utf-8")


def _as_text(advice: Advice) -> str:
    from gradwire.report.table import Table

    headers = ("scheme", "seconds", "p95", "× least", "cut", "pieces", "of a host")
    least = advice.bounds.seconds
    rows = [
        (row.scheme, f"{row.seconds:.4g}", f"{row.p95:.4g}",
         f"{row.seconds / least:.2f}" if least else "–", f"{row.cut:,}", f"{row.pieces:,}",
         f"{row.most_pieces:,}")
        for row in advice.rows
    ]  # fmt: skip
    bound = (
        f"At least: {least:.4g} s (links between switches {advice.bounds.fabric_seconds:.4g}, "
        f"hosts' own {advice.bounds.host_seconds:.4g})"
    )
    refused = [f"not tried: {name}: {why}" for name, why in advice.refused]
    test = f"To test it: {advice.test}"
    table = Table(headers, rows).as_text()
    return "\n".join([advice.verdict, "", table, "", bound, test, *refused])

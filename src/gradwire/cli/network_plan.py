"""gradwire network plan: which paths a job's traffic should take, and what that gains.

gradwire network plan --topology "leaf_spine(16, 16, 16)" --traffic ring --placement shuffled
gradwire network plan --topology "fat_tree(4, 8, 16, 8, 8)" --traffic all_to_all -o routes.json
gradwire network plan --topology "leaf_spine(8, 8, 8)" --placement shuffled --html paths.html
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

from gradwire.cli.arguments import answering, check_output, repeats, save_page, writing
from gradwire.cli.network_traffic import Traffic, add_traffic_arguments, traffic_of
from gradwire.cli.progress import telling
from gradwire.document import save_file
from gradwire.errors import UsageError

if TYPE_CHECKING:
    from gradwire.network.advice import Advice
    from gradwire.report.page import Page


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options."""
    add_traffic_arguments(parser)
    scheme = "routing scheme to compare; repeatable (default: all usual ones)"
    parser.add_argument("--scheme", action="append", metavar="TEXT", help=scheme)
    file = "write the recommended paths, or those of the first --scheme, to FILE"
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help=file)
    page = "write a page with the result and the loads of links to FILE"
    parser.add_argument("--html", type=Path, metavar="FILE", help=page)


def run(arguments: argparse.Namespace) -> int:
    """Prints the advice; returns the exit code. Raises NetworkError and UsageError."""
    reads = arguments.topology, arguments.traffic, arguments.flows
    check_output("a file of paths", arguments.output, reads)
    check_output("a page", arguments.html, reads, beside=[arguments.output])
    with telling(arguments, "network plan") as progress:
        from gradwire.network.advice import advise

        traffic = traffic_of(arguments)
        advice = advise(
            traffic.flows, traffic.topology, arguments.scheme, arguments.seed, progress
        )
        scheme = (arguments.scheme or [advice.recommended])[0]
        is_kept = arguments.output is not None and scheme is not None
        paths = _paths(arguments, traffic, scheme) if is_kept else ""
        page = _page(arguments, traffic, advice) if arguments.html else None
    answer = json.dumps(advice.to_json(), indent=2) if arguments.json else _as_text(advice)
    with answering(answer, arguments.json):
        if page is not None:
            save_page(page, arguments.html)
        if is_kept:
            with writing(arguments.output):
                save_file(arguments.output, paths)
        elif arguments.output:
            raise UsageError(
                "-o writes only pinned paths; for this traffic no scheme is worth pinning. Leave "
                "out -o, or name a --scheme."
            )
    return 0


def _paths(arguments: argparse.Namespace, traffic: Traffic, scheme: str) -> str:
    """Returns the document of a scheme's paths."""
    from gradwire.network.routing.route import route
    from gradwire.network.saved import to_json

    routes = route(traffic.flows, traffic.topology, scheme, arguments.seed)
    return to_json(routes)


def _page(arguments: argparse.Namespace, traffic: Traffic, advice: Advice) -> Page:
    """Returns the page, with loads by hashes and by the recommended scheme, or else the
    fastest."""
    from gradwire.network.advice import HASHES
    from gradwire.network.heatmap import heatmap
    from gradwire.network.routing.route import route
    from gradwire.report.network_page import network_page
    from gradwire.report.page import Grid

    best = advice.recommended or min(advice.rows, key=lambda row: row.seconds).scheme
    routes = {
        scheme: route(traffic.flows, traffic.topology, scheme, arguments.seed)
        for scheme in (HASHES, best)
    }
    test = f"To test it: {advice.test}"
    return network_page(
        f"gradwire network plan: {arguments.topology}", advice.verdict,
        Grid(_HEADERS, _rows(advice)), repeats(arguments), told=[_bound(advice), test],
        notes=_refused(advice), loads=heatmap(routes),
    )  # fmt: skip


_HEADERS = ("scheme", "seconds", "p95", "× least", "cut", "pieces", "of a host")


def _rows(advice: Advice) -> list[tuple[str, ...]]:
    least = advice.bounds.seconds
    return [
        (row.scheme, f"{row.seconds:.4g}", f"{row.p95:.4g}",
         f"{row.seconds / least:.2f}" if least else "–", f"{row.cut:,}", f"{row.pieces:,}",
         f"{row.most_pieces:,}")
        for row in advice.rows
    ]  # fmt: skip


def _bound(advice: Advice) -> str:
    own = advice.bounds
    return (
        f"At least: {own.seconds:.4g} s (links between switches {own.fabric_seconds:.4g}, "
        f"hosts' own {own.host_seconds:.4g})"
    )


def _refused(advice: Advice) -> list[str]:
    return [f"not tried: {name}: {why}" for name, why in advice.refused]


def _as_text(advice: Advice) -> str:
    from gradwire.report.table import Table

    table, test = Table(_HEADERS, _rows(advice)).as_text(), f"To test it: {advice.test}"
    return "\n".join([advice.verdict, "", table, "", _bound(advice), test, *_refused(advice)])

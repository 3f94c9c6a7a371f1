"""gradwire network heatmap: loads of every leaf and uplink, hashed beside planned, as SVG.

gradwire network heatmap --topology "leaf_spine(16, 16, 16)" --placement shuffled -o loads.svg
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from gradwire.cli.arguments import answering, check_output, writing
from gradwire.cli.network_traffic import add_traffic_arguments, traffic_of
from gradwire.cli.progress import telling
from gradwire.document import save_file
from gradwire.progress import each


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options."""
    add_traffic_arguments(parser)
    default = "routing scheme to draw; repeatable (default: ecmp and coloured, side by side)"
    parser.add_argument("--scheme", action="append", metavar="TEXT", help=default)
    file = "write the drawing to FILE, as SVG"
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="FILE", help=file)


def run(arguments: argparse.Namespace) -> int:
    """Draws the loads; returns the exit code. Raises NetworkError."""
    reads = arguments.topology, arguments.traffic, arguments.flows
    check_output("a heat map", arguments.output, reads)
    with telling(arguments, "network heatmap") as progress:
        from gradwire.network.heatmap import heatmap
        from gradwire.network.routing.route import route

        topology, flows = traffic_of(arguments)
        routes = {
            scheme: route(flows, topology, scheme, arguments.seed)
            for scheme in each(progress, "schemes", arguments.scheme or ("ecmp", "coloured"))
        }
        progress("drawing")
        drawn = heatmap(routes)
    fullest = {scheme: float(own.max_load) for scheme, own in routes.items()}
    told = {"file": str(arguments.output), "fullest_bytes": fullest}
    lines = [f"  {scheme}: {load:.4g}" for scheme, load in fullest.items()]
    text = "\n".join([f"{arguments.output}: bytes on the fullest link", *lines])
    answer = json.dumps(told, indent=2) if arguments.json else text
    with answering(answer, arguments.json), writing(arguments.output):
        save_file(arguments.output, drawn)
    return 0

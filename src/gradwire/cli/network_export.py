"""gradwire network export: paths that `network plan -o` wrote, as other tools read them.

gradwire network export routes.json -o pins.json
gradwire network export routes.json --format htsim
gradwire network export routes.json --format 'hccl("hosts.txt", "ports.json")'
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from gradwire.cli.arguments import add_quiet, check_output, writing
from gradwire.cli.progress import telling
from gradwire.document import save_file


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options."""
    parser.add_argument(
        "routes", type=Path, help="the paths, as `gradwire network plan -o` writes them"
    )
    known = (
        "pins, for gradwire.attach(…, planes=…); htsim, a connection matrix without paths; topo, "
        "the topology for htsim; or another package's (default: %(default)s)"
    )
    parser.add_argument("--format", default="pins", metavar="TEXT", help=known)
    file = "write the text to FILE, instead of to standard output"
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help=file)
    parser.add_argument("--json", action="store_true", help="print the text in a JSON document")
    add_quiet(parser)


def run(arguments: argparse.Namespace) -> int:
    """Writes the paths; returns the exit code. Raises NetworkError."""
    check_output("a file of paths", arguments.output, [arguments.routes])
    with telling(arguments, "network export") as progress:
        from gradwire.network.exports import written
        from gradwire.network.saved import load

        progress("reading the paths")
        routes = load(arguments.routes)
        progress("writing them")
        text = written(arguments.format, routes)
    if arguments.output:
        with writing(arguments.output):
            save_file(arguments.output, text)
    told = json.dumps({"format": arguments.format, "text": text}) + "\n"
    if arguments.json or not arguments.output:
        print(told if arguments.json else text, end="")
    else:
        print(f"{arguments.output}: {arguments.format}, {len(text):,} characters")
    return 0

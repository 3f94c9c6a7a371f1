"""gradwire network export: paths that `network plan -o` wrote, as other tools read them.

gradwire network export routes.json --format srv6
gradwire network export routes.json --format pins -o pins.json
gradwire network export routes.json --format ports --ports ports.json
gradwire network export routes.json --format hccl --addresses hosts.txt --ports ports.json
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

from gradwire.cli.output import check_output
from gradwire.errors import NetworkError

if TYPE_CHECKING:
    from gradwire.network.exports.ports import Ports
    from gradwire.network.routes import Routes

FORMATS = {
    "srv6": "segment lists, a line for each piece",
    "pins": "for gradwire.attach(…, planes=…): a rule for each pair of hosts",
    "ports": "the source port of each piece",
    "hccl": "MultiQpSrcPort.cfg: source ports for each pair of addresses",
    "nccl": "environment of NCCL, RCCL and UCCL",
    "htsim": "a connection matrix, without paths: for other simulators",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("routes", type=Path, help="a routes.json")
    known = "; ".join(f"{name}: {line}" for name, line in FORMATS.items())
    parser.add_argument("--format", choices=FORMATS, default="srv6", help=known)
    address = "hccl: the address of every host, a line each"
    parser.add_argument("--addresses", type=Path, metavar="FILE", help=address)
    ports = 'ports, hccl: JSON, source ports by pair and path: {"0,4": {"2": [61000, …], …}, …}'
    parser.add_argument("--ports", type=Path, metavar="FILE", help=ports)
    file = "write it there, instead of to standard output"
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help=file)
    parser.add_argument("--json", action="store_true", help="the text in a JSON document")


def run(arguments: argparse.Namespace) -> int:
    """Write it; the exit code. Raises NetworkError."""
    from gradwire.network.saved import load

    if arguments.output:
        check_output("a file of paths", arguments.output)
    text = _exported(load(arguments.routes), arguments)
    if arguments.output:
        arguments.output.write_text(text, encoding="utf-8")
    told = json.dumps({"format": arguments.format, "text": text}) + "\n"
    if arguments.json or not arguments.output:
        print(told if arguments.json else text, end="")
    else:
        print(f"{arguments.output}: {arguments.format}, {len(text):,} characters")
    return 0


def _exported(routes: Routes, arguments: argparse.Namespace) -> str:
    from gradwire.network.exports import hccl, nccl, pins, ports, srv6
    from gradwire.network.importers import htsim, read

    if arguments.format == "srv6":
        return srv6.write(routes)
    if arguments.format == "pins":
        return pins.write(routes).to_json()
    if arguments.format == "nccl":
        return nccl.write(routes)
    if arguments.format == "htsim":
        return htsim.connections(routes.flows, routes.fabric.hosts)
    if arguments.ports is None or (arguments.format == "hccl" and arguments.addresses is None):
        raise NetworkError(
            f"{arguments.format} pins by source ports, which switches hash: it needs --ports, and "
            "hccl --addresses too. Probe which port takes which path, and write what is missing."
        )
    if arguments.format == "ports":
        return ports.write(routes, _ports(arguments.ports))
    addresses = read(arguments.addresses).split()
    if len(addresses) < routes.fabric.hosts:
        raise NetworkError(
            f"every host has an address; got {len(addresses)} for {routes.fabric.hosts} hosts. "
            f"Add the others to {arguments.addresses}."
        )
    return hccl.write(routes, addresses, _ports(arguments.ports))


def _ports(path: Path) -> Ports:
    from gradwire.document import Document
    from gradwire.schema import List, Made, Map, Text, Whole

    by_path = Map(List(Whole(0, 65_535)), key=Made(Text(), _number))
    ports: Ports = Document(
        "a document of ports", Map(by_path, key=Made(Text(), _pair)), NetworkError,
        """Write pairs of hosts, paths and ports, {'0,4': {'2': [61000]}}""",
    ).load(path)  # fmt: skip
    return ports


def _pair(text: str) -> tuple[int, ...]:
    source, _, target = text.partition(",")
    return _number(source), _number(target)


def _number(text: str) -> int:
    from gradwire.schema import broken

    if not text.strip().isdecimal() or len(text) > 9:
        raise broken("is a whole number", text)
    return int(text)

"""gradwire network plan: which paths a job's traffic should take, and what that gains.

gradwire network plan --topology "leaf_spine(16, 16, 16)" --traffic ring --placement shuffled
gradwire network plan --topology "fat_tree(4, 8, 16, 8, 8)" --traffic all_to_all --json
"""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING

from gradwire.errors import NetworkError

if TYPE_CHECKING:
    from gradwire.network.advice import Advice
    from gradwire.network.flows import Flows
    from gradwire.network.placement import Placement


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    from gradwire.network.patterns import PATTERNS

    names = [pattern.__name__ for pattern in PATTERNS]
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    plan = actions.add_parser("plan", help="schemes side by side, and what to do")
    where = "leaf_spine(4, 4, 4), …, or a file: .toml, .topo, .txt, .json, .yaml"
    plan.add_argument("--topology", required=True, metavar="TEXT", help=where)
    plan.add_argument("--traffic", choices=names, default="ring", help="default: ring")
    plan.add_argument("--bytes", type=float, default=25e6, help="of the collective; default: 25e6")
    plan.add_argument("--ranks", type=int, help="default: one on every host")
    machine = "ranks that reach each other without the network; default: 1"
    plan.add_argument("--per-machine", type=int, default=1, metavar="N", help=machine)
    places, how = ("in-order", "shuffled"), "of machines; default: in-order"
    plan.add_argument("--placement", choices=places, default="in-order", help=how)
    plan.add_argument("--scheme", action="append", metavar="TEXT", help="only these; repeatable")
    fails = "a switch, or a cable as leaf0-spine1; repeatable"
    plan.add_argument("--fail", action="append", default=[], metavar="NAME", help=fails)
    plan.add_argument("--seed", type=int, default=0, help="default: 0")
    plan.add_argument("--json", action="store_true", help="one JSON document on stdout")


def run(arguments: argparse.Namespace) -> int:
    """Advise; the exit code. Raises NetworkError."""
    from gradwire.network.advice import ROWS, advise
    from gradwire.network.importers.toml import both_ways
    from gradwire.network.topologies import topology_of

    topology = topology_of(arguments.topology)
    failed = [link for name in arguments.fail for link in both_ways(name)]
    flows = _placement(arguments, topology.hosts).placed(_traffic(arguments, topology.hosts))
    advice = advise(flows, topology.without(*failed), arguments.scheme or ROWS, arguments.seed)
    print(json.dumps(advice.to_json(), indent=2) if arguments.json else _as_text(advice))
    return 0


def _traffic(arguments: argparse.Namespace, hosts: int) -> Flows:
    from gradwire.network.patterns import PATTERNS

    pattern = next(p for p in PATTERNS if p.__name__ == arguments.traffic)
    ranks = _ranks(arguments, hosts)
    return pattern(ranks, -(-round(arguments.bytes) // ranks) * ranks)  # in equal parts


def _ranks(arguments: argparse.Namespace, hosts: int) -> int:
    ranks: int = hosts if arguments.ranks is None else arguments.ranks
    if ranks > hosts:
        raise NetworkError(
            f"every rank has a host; got {ranks} ranks for {hosts}. Use a larger topology."
        )
    return ranks


def _placement(arguments: argparse.Namespace, hosts: int) -> Placement:
    from gradwire.network.fabric import count
    from gradwire.network.placement import Placement

    each, ranks = count("--per-machine", arguments.per_machine), _ranks(arguments, hosts)
    if arguments.placement == "shuffled":
        everywhere = Placement.shuffled(hosts - hosts % each, arguments.seed, each)
        return everywhere.of(range(min(ranks, everywhere.ranks)))
    return Placement.in_order(ranks, each)


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
    return "\n".join([advice.verdict, "", Table(headers, rows).as_text(), "", bound, *refused])

"""Options of the actions of `gradwire network` that have traffic: a topology, and what is sent
where."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from gradwire.cli.arguments import add_quiet
from gradwire.errors import NetworkError

if TYPE_CHECKING:
    from gradwire.network.fabric import Fabric, Link
    from gradwire.network.flows import Flows
    from gradwire.network.placement import Placement


_MOST_BYTES = 1e15
_OF_RANKS = ("--bytes", "--groups-of", "--density", "--ranks", "--per-machine", "--placement")


class Traffic(NamedTuple):
    """The requested traffic, on its topology."""

    topology: Fabric
    flows: Flows


def add_traffic_arguments(parser: argparse.ArgumentParser) -> argparse._ArgumentGroup:
    """Declares the options. Returns the group of those that exclude each other: what is sent."""
    from gradwire.network.patterns import MEMBERS

    names = ", ".join(pattern.__name__ for pattern in MEMBERS)
    where = "the topology, such as leaf_spine(4, 4, 4), or a file (.toml, .topo)"
    parser.add_argument("--topology", required=True, metavar="TEXT", help=where)
    what = parser.add_mutually_exclusive_group()
    known = f"the pattern: {names}, or another package's (default: %(default)s)"
    what.add_argument("--traffic", metavar="TEXT", default="ring", help=known)
    strategy = "send an fp32 gradient of --bytes by this strategy, instead of --traffic"
    what.add_argument("--strategy", metavar="TEXT", help=strategy)
    matrix = "send the flows of an htsim connection matrix (.cm), instead of --traffic"
    what.add_argument("--flows", metavar="FILE", help=matrix)
    size = "size of the collective in bytes, for each rank (default: 25e6)"
    parser.add_argument("--bytes", type=float, default=25e6, metavar="X", help=size)
    groups = "--traffic in groups of N ranks, all at once (default: one group of all)"
    parser.add_argument("--groups-of", type=int, metavar="N", help=groups)
    density = "the part of a gradient that is not zero, for strategies such as nonzero"
    parser.add_argument("--density", type=float, metavar="X", help=density)
    number = "number of ranks (default: one on every host)"
    parser.add_argument("--ranks", type=int, metavar="N", help=number)
    machine = "ranks on each machine, which need no network among them (default: %(default)s)"
    parser.add_argument("--per-machine", type=int, default=1, metavar="N", help=machine)
    places, how = (
        ("in-order", "shuffled"),
        "order in which machines get their ranks (default: %(default)s)",
    )
    parser.add_argument("--placement", choices=places, default="in-order", help=how)
    fails = (
        "remove a switch, or a cable such as leaf0-spine1; NAME@SECONDS (simulate only): "
        "from that time on; repeatable"
    )
    parser.add_argument("--fail", action="append", default=[], metavar="NAME", help=fails)
    draw = "seed of placements and of random routing (default: %(default)s)"
    parser.add_argument("--seed", type=int, default=0, metavar="N", help=draw)
    parser.add_argument("--json", action="store_true", help="print one JSON document to stdout")
    add_quiet(parser)
    parser.set_defaults(of_ranks=defaults_of(parser, _OF_RANKS))
    return what


def defaults_of(parser: argparse.ArgumentParser, names: Iterable[str]) -> dict[str, Any]:
    """Returns these options' default values."""
    return {name: parser.get_default(_attribute(name)) for name in names}


def changed(arguments: argparse.Namespace, usual: Mapping[str, Any]) -> str:
    """Returns the names of options that have another value than the usual one."""
    return ", ".join(
        name for name, value in usual.items() if getattr(arguments, _attribute(name)) != value
    )


def _attribute(option: str) -> str:
    return option.removeprefix("--").replace("-", "_")


def traffic_of(arguments: argparse.Namespace, seed: int | None = None) -> Traffic:
    """Returns the requested traffic. Raises NetworkError for what cannot be. seed: of the
    placement, instead of --seed."""
    topology = topology_asked(arguments)
    own = arguments.seed if seed is None else seed
    return Traffic(topology, flows_on(arguments, topology.hosts, own))


def topology_asked(arguments: argparse.Namespace) -> Fabric:
    """Returns the topology without what failed before the start. Raises NetworkError."""
    from gradwire.network.topologies import topology_of

    return without_failed(arguments, topology_of(arguments.topology))


def without_failed(arguments: argparse.Namespace, topology: Fabric) -> Fabric:
    """Returns a topology without what failed before the start. Raises NetworkError."""
    from gradwire.network.importers.toml import both_ways

    failed = [link for name, when in _failures(arguments) if when is None
              for link in both_ways(topology, name)]  # fmt: skip
    return topology.without(*failed)


def fails_asked(arguments: argparse.Namespace, topology: Fabric) -> dict[Link, float]:
    """Returns the second at which each link dies, for those that die meanwhile. Raises
    NetworkError."""
    from gradwire.network.importers.toml import both_ways

    found: dict[Link, float] = {}
    for name, when in _failures(arguments):
        if when is not None:
            for link in topology.named(*both_ways(topology, name)):
                found[link] = min(when, found.get(link, when))
    return found


def _failures(arguments: argparse.Namespace) -> list[tuple[str, float | None]]:
    """Returns what fails, and at which second; None: before the start."""
    found = list[tuple[str, float | None]]()
    for text in arguments.fail:
        name, at, seconds = text.partition("@")
        if at and not hasattr(arguments, "convergence_ms"):
            raise NetworkError(
                f"a failure during the run needs `gradwire network simulate`; got --fail {text}. "
                f"Use that command, or leave out @{seconds}."
            )
        try:
            found.append((name, float(seconds) if at else None))
        except ValueError:
            raise NetworkError(
                f"--fail must be NAME or NAME@SECONDS; got {text!r}. Write for example "
                "leaf0-spine1@0.001."
            ) from None
    return found


def flows_on(arguments: argparse.Namespace, hosts: int, seed: int) -> Flows:
    """Returns the requested flows, between so many hosts."""
    from gradwire.network.importers import htsim, read

    if arguments.flows is not None:
        if names := changed(arguments, arguments.of_ranks):
            raise NetworkError(
                f"the flows of a file have their own hosts and bytes; got {names} beside --flows. "
                "Leave them out."
            )
        return htsim.flows(read(arguments.flows))
    if arguments.groups_of is not None and arguments.strategy is not None:
        raise NetworkError(
            f"--groups-of works only with --traffic; got --groups-of {arguments.groups_of} beside "
            "--strategy. Leave one out."
        )
    if arguments.density is not None and arguments.strategy is None:
        raise NetworkError(
            f"--density is of the gradient that a strategy sends; got --density "
            f"{arguments.density} without --strategy. Add one, or leave --density out."
        )
    where = placement_of(arguments, hosts, seed)
    if arguments.strategy is not None:
        return _of_strategy(arguments, where)
    return where.placed(_traffic(arguments, where.ranks))


def _of_strategy(arguments: argparse.Namespace, where: Placement) -> Flows:
    from gradwire.network.demand import flows_of
    from gradwire.planner.traffic import moves_of

    moves = moves_of(
        arguments.strategy, [max(1, _bytes(arguments) // 4)], where.ranks,
        per_node=arguments.per_machine, density=arguments.density,
    )  # fmt: skip
    return flows_of(moves, where)


def _bytes(arguments: argparse.Namespace) -> int:
    asked: float = arguments.bytes
    if not 1 <= asked <= _MOST_BYTES:
        raise NetworkError(
            f"--bytes must be from 1 to {_MOST_BYTES:.0e}; got {asked}. Write for example 25e6."
        )
    return round(asked)


def _traffic(arguments: argparse.Namespace, ranks: int) -> Flows:
    from gradwire.network.demand import in_groups, pattern_of
    from gradwire.network.fabric import count

    each = ranks if arguments.groups_of is None else count("--groups-of", arguments.groups_of)
    equal = -(-_bytes(arguments) // each) * each
    return in_groups(pattern_of(arguments.traffic), ranks, each, equal)


def placement_of(arguments: argparse.Namespace, hosts: int, seed: int) -> Placement:
    """Returns the hosts of the requested ranks. Raises NetworkError for more ranks than hosts."""
    from gradwire.network.fabric import count
    from gradwire.network.placement import Placement

    each = count("--per-machine", arguments.per_machine)
    if each > hosts:
        raise NetworkError(
            f"each rank of a machine needs a host of its own; got --per-machine {each} and "
            f"{hosts} hosts. Use a smaller number, or a larger topology."
        )
    ranks = hosts - hosts % each
    if arguments.ranks is not None:
        ranks = count("--ranks", arguments.ranks)
    if ranks > hosts:
        raise NetworkError(
            f"every rank needs a host of its own; got {ranks} ranks for {hosts} hosts. Use a "
            "larger topology."
        )
    if arguments.placement == "shuffled":
        everywhere = Placement.shuffled(hosts - hosts % each, seed, each)
        if ranks > everywhere.ranks:
            raise NetworkError(
                f"machines of {each} ranks fill only {everywhere.ranks} of {hosts} hosts; got "
                f"{ranks} ranks. Use fewer ranks, or another --per-machine."
            )
        return everywhere.of(range(ranks))
    return Placement.in_order(ranks, each)

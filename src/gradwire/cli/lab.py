"""`gradwire lab`: run a command on an emulated cluster, or measure the cluster's links."""

from __future__ import annotations

import argparse
import contextlib
import json
import signal
import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from gradwire.cli.arguments import above_0, add_quiet, after_dashes, say
from gradwire.cli.endings import ending_on_sigterm
from gradwire.cli.progress import telling
from gradwire.errors import UsageError
from gradwire.lab.addresses import LARGEST_CLUSTER
from gradwire.lab.availability import available, refused
from gradwire.lab.cluster import Cluster, LabTimeoutError
from gradwire.lab.forwarding import Forwarded
from gradwire.lab.job import print_prefixed
from gradwire.lab.outages import outage_of
from gradwire.lab.rates import format_rate
from gradwire.progress import part

if TYPE_CHECKING:
    from gradwire.network.fabric import Fabric

_HOSTS = 4
_TIMED_OUT = 124  # as timeout(1) returns
_INTERRUPTED = 128 + signal.SIGINT


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the subcommands run and probe."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="run|probe")
    running = actions.add_parser("run", help="run a command on every host of an emulated cluster")
    _add_cluster_arguments(running, f"{_HOSTS}, or those of --topology")
    rate = "bandwidth of every host's link, each way (default: %(default)s)"
    running.add_argument("--rate", default="1gbit", help=rate)
    ranks = "ranks on each host (default: %(default)s)"
    running.add_argument("--procs-per-host", type=int, default=1, metavar="N", help=ranks)
    topology = "leaves and spines, such as 'leaf_spine(4, 4, 4)' (default: one switch)"
    running.add_argument("--topology", metavar="TEXT", help=topology)
    seed = "seed of the hashes that choose paths in --topology (default: %(default)s)"
    running.add_argument("--hash-seed", type=int, default=1, metavar="N", help=seed)
    places = ("in-order", "shuffled")
    how = "order in which ranks fill the hosts (default: %(default)s)"
    running.add_argument("--placement", choices=places, default="in-order", help=how)
    draw = "seed of --placement shuffled (default: %(default)s)"
    running.add_argument("--seed", type=int, default=0, metavar="N", help=draw)
    most = "end the command after this time, with exit code 124 (default: never)"
    running.add_argument("--timeout", type=above_0, metavar="SECONDS", help=most)
    down = "take a link (host3, leaf0-spine1) down SECONDS after the start; repeatable"
    running.add_argument(
        "--down", action="append", default=[], metavar="LINK@SECONDS[:UNTIL]", help=down
    )
    command = "the command to start once for each rank"
    running.add_argument(
        "command_line", nargs=argparse.REMAINDER, metavar="-- CMD …", help=command
    )
    probing = actions.add_parser(
        "probe", help="measure the bandwidth and latency that the links really have"
    )
    _add_cluster_arguments(probing, f"{_HOSTS}")
    probing.set_defaults(topology=None)
    rates = "bandwidths of the links to measure, one after the other (default: 1gbit)"
    probing.add_argument("--rate", nargs="+", default=["1gbit"], help=rates)


def _add_cluster_arguments(parser: argparse.ArgumentParser, hosts: str) -> None:
    number = f"number of hosts (default: {hosts})"
    parser.add_argument("--hosts", type=int, metavar="N", help=number)
    parser.add_argument(
        "--loopback",
        action="store_true",
        help="emulate no network: all ranks on 127.0.0.1, at full speed; works everywhere",
    )
    for name, none, what in (
        ("--delay", "0s", "how much later frames arrive at another host, such as 40ms"),
        ("--jitter", "0s", "by how much the delay varies, either way, such as 5ms"),
        ("--loss", "0%", "the share of frames that are lost, such as 0.1%%"),
    ):
        text = f"{what} (default: none)"
        parser.add_argument(name, default=none, metavar=name[2:].upper(), help=text)
    parser.add_argument("--json", action="store_true", help="print one JSON document to stdout")
    add_quiet(parser)


def run(arguments: argparse.Namespace) -> int:
    """Runs the subcommand; returns its exit code: for `run`, that of the first rank to fail."""
    with ending_on_sigterm():
        try:
            return _probe(arguments) if arguments.action == "probe" else _run(arguments)
        except LabTimeoutError as error:
            if arguments.json:
                print(json.dumps({"error": type(error).__name__, "message": str(error)}))
            _say(str(error))
            return _TIMED_OUT
        except KeyboardInterrupt:
            _say("interrupted; all processes have ended")
            return _INTERRUPTED


def _run(arguments: argparse.Namespace) -> int:
    command = after_dashes(arguments.command_line)
    if not command:
        raise UsageError(
            "lab run needs the command that every rank runs; got none. Write it after --, as "
            "gradwire lab run --hosts 4 -- python train.py."
        )
    outages = [outage_of(text) for text in arguments.down]
    topology = None
    if arguments.topology is not None:
        from gradwire.network.topologies import topology_of

        topology = topology_of(arguments.topology)
    cluster = Cluster(
        _hosts(arguments),
        arguments.rate,
        procs_per_host=arguments.procs_per_host,
        loopback=arguments.loopback,
        topology=topology,
        hash_seed=arguments.hash_seed,
        order=_order(arguments, topology),
        delay=arguments.delay,
        jitter=arguments.jitter,
        loss=arguments.loss,
    )
    _announce(cluster, arguments)
    with contextlib.ExitStack() as built:
        with telling(arguments, "lab run") as progress:
            progress(f"building {cluster.hosts} hosts")
            built.enter_context(cluster)
        started = time.monotonic()
        code = cluster.run(
            command,
            on_line=_to_stderr if arguments.json else None,
            timeout_seconds=arguments.timeout,
            outages=outages,
        )
        seconds, forwarded = time.monotonic() - started, cluster.forwarded()
        if arguments.json:
            print(json.dumps(_run_document(cluster, command, code, seconds, forwarded)))
        elif forwarded is not None and not arguments.quiet:
            _say(f"the switch: {forwarded}")
    return code


def _hosts(arguments: argparse.Namespace) -> int | None:
    given: int | None = arguments.hosts
    return _HOSTS if given is None and arguments.topology is None else given


def _order(arguments: argparse.Namespace, topology: Fabric | None) -> Sequence[int] | None:
    if arguments.placement == "in-order":
        return None
    from gradwire.network.placement import Placement

    hosts = topology.hosts if topology else _hosts(arguments) or 0
    if not 1 <= hosts <= LARGEST_CLUSTER:  # the cluster says so
        return None
    return Placement.shuffled(hosts, arguments.seed).host


def _run_document(
    cluster: Cluster, command: list[str], code: int, seconds: float, forwarded: Forwarded | None
) -> dict[str, object]:
    links = {} if cluster.loopback else cluster.link_bytes()
    return {
        "hosts": cluster.hosts,
        "procs_per_host": cluster.procs_per_host,
        "bits_per_second": None if cluster.loopback else cluster.bits_per_second,
        "mode": "loopback" if cluster.loopback else available().mode,
        "command": command,
        "exit_code": code,
        "seconds": round(seconds, 3),
        "distance": asdict(cluster.distance) if cluster.distance else None,
        "forwarded": None if forwarded is None else forwarded._asdict(),
        "links": [{"from": a, "to": b, "bytes": sent} for (a, b, _), sent in links.items()],
    }


def _probe(arguments: argparse.Namespace) -> int:
    from gradwire.lab.probe import probe

    hosts, reports = _hosts(arguments), []
    clusters = [
        Cluster(
            hosts,
            rate,
            loopback=arguments.loopback,
            delay=arguments.delay,
            jitter=arguments.jitter,
            loss=arguments.loss,
        )
        for rate in arguments.rate
    ]
    for number, cluster in enumerate(clusters):
        _announce(cluster, arguments)
        with telling(arguments, "lab probe") as progress, cluster:
            reports.append(probe(cluster, part(progress, "links", number, len(clusters))))
        if not arguments.json:
            print(reports[-1].as_text(), flush=True)
    if arguments.json:
        print(json.dumps({"probes": [report.as_json() for report in reports]}))
    return 0


def _announce(cluster: Cluster, arguments: argparse.Namespace) -> None:
    """Says what is built. Raises LabError, in the words of a command line, where it cannot be."""
    if not cluster.loopback and available().mode == "none":
        raise refused(available(), "--loopback, without --topology")
    if arguments.quiet:
        return
    if cluster.loopback:
        _say(f"{cluster.ranks} processes on 127.0.0.1, at full speed: --rate has no effect")
        return
    topology, rate = cluster.topology, f"{format_rate(cluster.bits_per_second)}/s each way"
    if topology is None:
        where = f"one switch, every link {rate}"
    else:
        where = f"{topology.leaves} leaves and {len(topology.uplinks)} spines, hosts' links {rate}"
    far = f", {cluster.distance}" if cluster.distance else ""
    _say(f"{cluster.hosts} hosts × {cluster.procs_per_host} on {where}{far}")


def _say(words: str) -> None:
    say(words, "gradwire lab")


def _to_stderr(rank: int, stream: str, line: str) -> None:
    print_prefixed(rank, "stderr", line)

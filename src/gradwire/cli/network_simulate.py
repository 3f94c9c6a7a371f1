"""gradwire network simulate: how long schemes take, by one of the engines.

gradwire network simulate --topology "leaf_spine(16, 16, 16)" --placement shuffled --engine flow
gradwire network simulate --topology "leaf_spine(4, 4, 4)" --traffic direct --engine packet
gradwire network simulate --topology "leaf_spine(4, 4, 4)" --step plan.json --profile profile.json
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from gradwire.cli.network_traffic import (
    add_traffic_arguments,
    placement_of,
    topology_asked,
    traffic_of,
)
from gradwire.errors import NetworkError

if TYPE_CHECKING:
    from gradwire.network.engines.transport import Spraying
    from gradwire.network.fabric import Fabric
    from gradwire.network.placement import Placement
    from gradwire.network.workload import Workload


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    demand = add_traffic_arguments(parser)
    parser.add_argument("--scheme", action="append", metavar="TEXT", help="only these; repeatable")
    what = (
        "a whole step instead: a plan (.json), a parallel job (.toml), or another package's step"
    )
    demand.add_argument("--step", metavar="TEXT", help=what)
    parser.add_argument("--profile", metavar="FILE", help="of the job whose plan --step is")
    engines = ("static", "flow", "packet")
    parser.add_argument("--engine", choices=engines, default="flow", help="default: flow")
    near = "of the flow engine: ends so near, as a part, are found at once; default: 0.01"
    parser.add_argument("--tolerance", type=float, default=0.01, help=near)
    how = (
        "of the packet engine: how sprayed packets, or switches, choose; default: all, a row each"
    )
    sprays = ("random", "rotating", "recycled", "adaptive", "round_robin")
    parser.add_argument("--spraying", choices=sprays, help=how)
    for name, default, what in (
        ("--window", 64, "packets under way"),
        ("--header-bytes", 0, "of each packet, besides its 4096"),
        ("--ack-bytes", 0, "of each acknowledgement"),
        ("--ack-packets", 1, "that an acknowledgement is for"),
    ):
        text = f"of the packet engine: {what}; default: {default}"
        parser.add_argument(name, type=int, default=default, metavar="N", help=text)
    latency = "of the packet engine: of each link; default: what a .topo file says, else 500"
    parser.add_argument("--latency-ns", type=float, help=latency)


def run(arguments: argparse.Namespace) -> int:
    """Simulate; the exit code. Raises NetworkError."""
    seconds_by, least = _step(arguments) if arguments.step else _collective(arguments)
    rows, refused = list[dict[str, float | str]](), dict[str, str]()
    failure: NetworkError | None = None
    for scheme, asked in _asked(arguments).items():
        try:
            seconds = seconds_by(*asked)
        except NetworkError as error:
            if arguments.scheme:
                raise
            refused[scheme], failure = str(error), error
            continue
        rows.append({"scheme": scheme, "seconds": seconds})
    if failure and not rows:
        raise failure
    _tell(rows, least, refused, arguments)
    return 0


_SecondsBy: TypeAlias = "Callable[[str, Spraying], float]"


def _asked(arguments: argparse.Namespace) -> dict[str, tuple[str, Spraying]]:
    """Schemes and how packets choose, by the name of the row. Unasked, where packets are
    simulated, what is sprayed has a row for each way."""
    from gradwire.network.advice import compared
    from gradwire.network.engines.transport import SPRAYING
    from gradwire.network.routing.route import scheme_of

    texts = arguments.scheme or compared()
    how: Spraying = arguments.spraying or "random"
    if arguments.engine != "packet" or arguments.scheme:
        for text in texts:
            scheme_of(text)
        return {text: (text, how) for text in texts}
    rows = {text: (text, how) for text in texts if scheme_of(text).name != "spray"}
    ways = (how,) if arguments.spraying else SPRAYING
    return rows | {f"spray, {way}": ("spray", way) for way in ways}


def _collective(arguments: argparse.Namespace) -> tuple[_SecondsBy, float]:
    """Seconds by a scheme, and at least."""
    from gradwire.network.bounds import bounds
    from gradwire.network.engines.transport import Transport
    from gradwire.network.routing.route import route
    from gradwire.network.simulate import simulate
    from gradwire.network.topologies import latency_ns_of

    topology, flows = traffic_of(arguments)
    how = Transport(
        window=arguments.window, header_bytes=arguments.header_bytes,
        ack_bytes=arguments.ack_bytes, ack_packets=arguments.ack_packets,
    )  # fmt: skip
    latency = arguments.latency_ns
    if latency is None and arguments.engine == "packet":
        latency = latency_ns_of(arguments.topology)
    if latency is not None:
        how = replace(how, latency_ns=latency)

    def seconds(scheme: str, spraying: Spraying) -> float:
        return simulate(
            route(flows, topology, scheme, arguments.seed), arguments.engine,
            tolerance=arguments.tolerance, transport=replace(how, spraying=spraying),
            seed=arguments.seed,
        )  # fmt: skip

    return seconds, bounds(flows, topology).seconds


def _step(arguments: argparse.Namespace) -> tuple[_SecondsBy, float]:
    """Seconds by a scheme, and without a network."""
    if arguments.engine != "flow":
        raise NetworkError(
            f"a step is simulated by fair shares; got --engine {arguments.engine}. Leave it out."
        )
    topology = topology_asked(arguments)
    workload, where = _workload(arguments, topology)

    def seconds(scheme: str, _: Spraying) -> float:
        return workload.seconds(
            topology, where, scheme, tolerance=arguments.tolerance, seed=arguments.seed
        )

    return seconds, workload.work_seconds()


def _workload(arguments: argparse.Namespace, topology: Fabric) -> tuple[Workload, Placement]:
    """What --step names, a plan, a parallel job or another step, and where its ranks are."""
    from gradwire.network.parallelism import step_of

    text, end = arguments.step, Path(arguments.step).suffix
    if end == ".json":
        return _of_plan(arguments, topology)
    made = step_of(f"parallel({text!r})" if end == ".toml" else text)
    return made, _placed(arguments, topology, made.ranks)


def _placed(arguments: argparse.Namespace, topology: Fabric, ranks: int) -> Placement:
    if arguments.ranks not in (None, ranks):
        raise NetworkError(
            f"this step says how many ranks it has, {ranks}; got --ranks {arguments.ranks}. Leave "
            "it out."
        )
    own = argparse.Namespace(**{**vars(arguments), "ranks": ranks})
    return placement_of(own, topology.hosts, arguments.seed)


def _of_plan(arguments: argparse.Namespace, topology: Fabric) -> tuple[Workload, Placement]:
    """The plan's traffic on as many ranks as the topology has hosts, unless --ranks says
    otherwise."""
    from gradwire.network.demand import workload_of
    from gradwire.plan import Plan
    from gradwire.planner.profile import Profile
    from gradwire.planner.traffic import traffic_of
    from gradwire.planner.whatif import on
    from gradwire.topology import Cluster

    if arguments.profile is None:
        raise NetworkError(
            "a plan's step needs the times of its job; --profile is missing. Measure one by "
            "gradwire profile."
        )
    where = placement_of(arguments, topology.hosts, arguments.seed)
    plan, profile = Plan.load(arguments.step), Profile.load(arguments.profile)
    if where.ranks != profile.world:
        each = arguments.per_machine
        rate = float(topology.host_up.sum(1).min())
        profile = on(profile, Cluster(where.ranks // each, each, cross_bits_per_second=rate))
    buckets = traffic_of(plan, profile, arguments.per_machine)
    return workload_of(buckets, where, profile.backward_seconds), where


def _tell(
    rows: list[dict[str, float | str]], least: float, refused: dict[str, str],
    arguments: argparse.Namespace,
) -> None:  # fmt: skip
    from gradwire.report.table import Table

    if arguments.json:
        told = {"engine": arguments.engine, "least": least, "rows": rows, "refused": refused}
        print(json.dumps(told, indent=2))
        return
    cells = [
        (str(row["scheme"]), f"{row['seconds']:.4g}",
         f"{float(row['seconds']) / least:.2f}" if least else "–")
        for row in rows
    ]  # fmt: skip
    print(Table(("scheme", "seconds", "× least"), cells).as_text())
    what = "Without a network" if arguments.step else "At least"
    print(f"\n{what}: {least:.4g} s; engine: {arguments.engine}")
    for scheme, why in refused.items():
        print(f"not tried: {scheme}: {why}")

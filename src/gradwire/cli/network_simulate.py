"""gradwire network simulate: how long schemes take, by one of the engines.

gradwire network simulate --topology "leaf_spine(16, 16, 16)" --placement shuffled --engine flow
gradwire network simulate --topology "leaf_spine(4, 4, 4)" --traffic direct --engine packet
gradwire network simulate --topology "leaf_spine(4, 4, 4)" --fail leaf0-spine1@0.001
gradwire network simulate --topology "leaf_spine(4, 4, 4)" --jobs jobs.toml --placement shuffled
gradwire network simulate --topology "leaf_spine(4, 4, 4)" --step plan.json --profile profile.json
gradwire network simulate --topology "leaf_spine(4, 4, 4)" --traffic direct --html messages.html
gradwire network simulate --topology "leaf_spine(4, 4, 4)" --perfetto messages.json.gz
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from gradwire.cli.arguments import (
    add_perfetto,
    answering,
    check_output,
    repeats,
    save_page,
    save_timelines,
)
from gradwire.cli.network_traffic import (
    add_traffic_arguments,
    changed,
    defaults_of,
    fails_asked,
    flows_on,
    placement_of,
    topology_asked,
)
from gradwire.cli.progress import telling
from gradwire.errors import NetworkError
from gradwire.progress import Progress, each

if TYPE_CHECKING:
    from gradwire.network.engines.transport import Spraying, Transport
    from gradwire.network.fabric import Fabric, Link
    from gradwire.network.jobs import Jobs
    from gradwire.network.placement import Placement
    from gradwire.network.sharing import Placed
    from gradwire.network.workload import Workload
    from gradwire.trace import Trace


_LONGEST_SECONDS = 1000.0  # the longest that a transport may wait
_OF_TRAFFIC = ("--bytes", "--groups-of", "--density")
_OF_ONE_JOB = (*_OF_TRAFFIC, "--ranks", "--per-machine")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options."""
    demand = add_traffic_arguments(parser)
    scheme = "routing scheme to compare; repeatable (default: all usual ones)"
    parser.add_argument("--scheme", action="append", metavar="TEXT", help=scheme)
    what = "simulate a whole step: of a plan (.json), a job (.toml), or another package"
    demand.add_argument("--step", metavar="TEXT", help=what)
    profile = "profile of the job, if --step is a plan"
    parser.add_argument("--profile", metavar="FILE", help=profile)
    jobs = "simulate several jobs at once, each with traffic and hosts of its own (.toml)"
    demand.add_argument("--jobs", metavar="FILE", help=jobs)
    converges = "milliseconds until routing avoids what failed @SECONDS (default: %(default)g)"
    parser.add_argument("--convergence-ms", type=float, default=100.0, metavar="N", help=converges)
    engines = ("static", "flow", "packet")
    by = "by the fullest link, by fair shares, or by every packet (default: %(default)s)"
    parser.add_argument("--engine", choices=engines, default="flow", help=by)
    near = "by which part times of the flow engine may be too long (default: %(default)s)"
    parser.add_argument("--tolerance", type=float, default=0.01, metavar="X", help=near)
    page = "write a page with the result to FILE; flow engine: also when messages travel"
    parser.add_argument("--html", type=Path, metavar="FILE", help=page)
    add_perfetto(parser, "messages, or of a step,")
    of_packets = defaults_of(parser, _add_packet_arguments(parser))
    of_flows, of_failures, of_traffic, of_one_job = (
        defaults_of(parser, names)
        for names in (["--tolerance"], ["--convergence-ms"], _OF_TRAFFIC, _OF_ONE_JOB)
    )
    parser.set_defaults(
        of_packets=of_packets, of_flows=of_flows, of_failures=of_failures, of_traffic=of_traffic,
        of_one_job=of_one_job,
    )  # fmt: skip


def _add_packet_arguments(parser: argparse.ArgumentParser) -> list[str]:
    """Declares how packets travel, and what happens to lost ones. Returns the options' names."""
    packets = parser.add_argument_group("the packet engine")
    added = list[argparse.Action]()
    for name, what in (
        ("--slow-down", "shrink windows when packets are marked, as DCTCP does"),
        ("--trim", "full queues drop payloads only; headers arrive, and senders resend at once"),
        ("--selective", "pinned connections resend only lost packets, as sprayed ones do"),
    ):
        added.append(packets.add_argument(name, action="store_true", help=what))
    for name, default, what in (
        ("--window", 64, "the most packets of a connection under way"),
        ("--header-bytes", 0, "bytes of each packet's header, besides 4096 of payload"),
        ("--ack-bytes", 0, "bytes of each acknowledgement"),
        ("--ack-packets", 1, "packets for each acknowledgement"),
        ("--queue-bytes", 64 << 20, "the most bytes in a queue of a switch"),
        ("--timeout-us", 100.0, "microseconds until an unacknowledged packet is sent again"),
    ):
        kind, text = type(default), f"{what} (default: {default:.0f})"
        added.append(
            packets.add_argument(name, type=kind, default=default, metavar="N", help=text)
        )
    for name, what in (
        ("--latency-ns", "latency of each link in ns (default: that of a .topo file, else 500)"),
        ("--exclude-us", "microseconds for which a host avoids a path after a timeout (default: "
         "--convergence-ms if something fails @SECONDS, else 0)"),
    ):  # fmt: skip
        added.append(packets.add_argument(name, type=float, metavar="N", help=what))
    sprays = ("random", "rotating", "recycled", "adaptive", "round_robin")
    how = "how packets or switches choose paths (default: each way; with --scheme: random)"
    added.append(packets.add_argument("--spraying", choices=sprays, help=how))
    return [action.option_strings[0] for action in added]


def run(arguments: argparse.Namespace) -> int:
    """Simulates; returns the exit code. Raises NetworkError."""
    _refuse_unheard(arguments)
    reads = (arguments.topology, arguments.traffic, arguments.flows, arguments.step,
             arguments.profile, arguments.jobs)  # fmt: skip
    check_output("a page", arguments.html, reads)
    check_output("a timeline", arguments.perfetto, reads, beside=[arguments.html])
    with telling(arguments, "network simulate") as progress:
        rows, least, refused = _simulated(arguments, progress)
    _tell(rows, least, refused, arguments)
    return 0


def _simulated(
    arguments: argparse.Namespace, progress: Progress
) -> tuple[list[_Row], float, dict[str, str]]:
    """Returns the rows, the seconds that they take at least, and the schemes that were not tried,
    with the reason."""
    measured, least = _step(arguments) if arguments.step is not None else _traffic(arguments)
    rows, refused = list[_Row](), dict[str, str]()
    failure: NetworkError | None = None
    schemes = list(_asked(arguments).items())
    for scheme, asked in each(progress, "schemes", schemes, lambda one: one[0]):
        try:
            rows += [{"scheme": scheme, **row} for row in measured(*asked)]
        except NetworkError as error:
            if arguments.scheme:
                raise
            refused[scheme], failure = str(error), error
    if failure and not rows:
        raise failure
    return rows, least, refused


def _refuse_unheard(arguments: argparse.Namespace) -> None:
    """Raises NetworkError for options that would have no effect."""
    if arguments.engine != "packet" and (names := changed(arguments, arguments.of_packets)):
        raise NetworkError(
            f"these options need --engine packet; got {names} and --engine {arguments.engine}. "
            "Add --engine packet, or leave them out."
        )
    if arguments.engine != "flow" and changed(arguments, arguments.of_flows):
        raise NetworkError(
            f"--tolerance is of --engine flow; the {arguments.engine} engine has none. Leave it "
            "out, or add --engine flow."
        )
    if arguments.perfetto is not None and not _has_time(arguments):
        raise NetworkError(
            "a timeline needs an engine that simulates time, and nothing that fails during the "
            f"run; got --perfetto, --engine {arguments.engine} and "
            f"{' '.join(['--fail', *arguments.fail]) if arguments.fail else 'no --fail'}. Leave "
            "--perfetto out, or take --engine flow without NAME@SECONDS."
        )
    if arguments.profile is not None and Path(arguments.step or "").suffix != ".json":
        raise NetworkError(
            f"--profile tells when a plan's messages are sent; got --profile {arguments.profile} "
            "and no --step PLAN.json. Add the plan of this job, or leave --profile out."
        )
    if changed(arguments, arguments.of_failures) and not any("@" in t for t in arguments.fail):
        raise NetworkError(
            "--convergence-ms is the time after a failure during the run; got no --fail "
            "NAME@SECONDS. Add one, or leave --convergence-ms out."
        )
    if arguments.step is not None and (names := changed(arguments, arguments.of_traffic)):
        raise NetworkError(
            f"a step has its own messages; got {names} beside --step. Leave them out."
        )
    if arguments.jobs is not None and (names := changed(arguments, arguments.of_one_job)):
        raise NetworkError(
            f"with --jobs, these options must stand in its file; got {names} beside --jobs. Write "
            f"them into {arguments.jobs}, or leave them out."
        )


_Row: TypeAlias = dict[str, Any]
_Measured: TypeAlias = "Callable[[str, Spraying], Sequence[_Row]]"
"""Measures a scheme, given how its packets choose. A row has its seconds; several jobs have a row
each, also with the seconds that the job takes alone; whole: the seconds if nothing fails
meanwhile."""


def _asked(arguments: argparse.Namespace) -> dict[str, tuple[str, Spraying]]:
    """Returns each scheme and how its packets choose, by the row's name. If packets are simulated
    and no scheme is named, spraying has a row for each way."""
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


def _traffic(arguments: argparse.Namespace) -> tuple[_Measured, float]:
    """Returns a function that measures a collective, or jobs, and the seconds that they take at
    least."""
    from gradwire.network.bounds import bounds
    from gradwire.network.jobs import routed
    from gradwire.network.outages import outages
    from gradwire.network.routing.route import scheme_of
    from gradwire.network.simulate import simulate_jobs

    topology = topology_asked(arguments)
    jobs, usual = _jobs(arguments, topology), _transport(arguments)
    flows, fails = [job.flows for job in jobs], fails_asked(arguments, topology)
    convergence, how = arguments.convergence_ms * 1e-3, usual
    if fails and arguments.exclude_us is None and 0 < convergence <= _LONGEST_SECONDS:
        how = replace(how, exclude_us=convergence * 1e6)
    knows_time = arguments.engine != "static"
    begun = [job.start_seconds if knows_time else 0.0 for job in jobs]
    least = [
        max(0.0, bounds(own, topology, starts=knows_time).seconds - start)
        for own, start in zip(flows, begun)
    ]

    def ends(
        which: slice, scheme: str, own: Transport, dying: Mapping[Link, float]
    ) -> list[float]:
        part, seed = flows[which], arguments.seed + which.start
        took = simulate_jobs(
            routed(part, topology, scheme, seed), arguments.engine,
            tolerance=arguments.tolerance, transport=own, seed=arguments.seed,
            outages=outages(part, topology, scheme, dying, convergence, seed),
        )  # fmt: skip
        return [max(0.0, float(end) - start) for end, start in zip(took, begun[which])]

    def measured(scheme: str, spraying: Spraying) -> Sequence[_Row]:
        own, everyone = replace(how, spraying=spraying), slice(0, len(jobs))
        if fails:
            own = replace(own, repath=not scheme_of(scheme).is_hashed)
        rows: list[_Row] = [{"seconds": took} for took in ends(everyone, scheme, own, fails)]
        if len(jobs) > 1:
            for number, (row, job) in enumerate(zip(rows, jobs)):
                alone = ends(slice(number, number + 1), scheme, own, fails)
                row.update(job=job.name, alone=alone[0], least=least[number])
        if fails:
            sound = replace(usual, spraying=spraying)
            for row, whole in zip(rows, ends(everyone, scheme, sound, {})):
                row["whole"] = whole
        return rows

    return measured, max(least)


def _jobs(arguments: argparse.Namespace, topology: Fabric) -> list[Placed]:
    """Returns the jobs of the file, or the one that the options describe."""
    from gradwire.network.placement import Placement
    from gradwire.network.sharing import Placed, jobs_of, placed

    if arguments.jobs is None:
        return [Placed("job0", flows_on(arguments, topology.hosts, arguments.seed), 0.0)]
    order = Placement.in_order(topology.hosts)
    if arguments.placement == "shuffled":
        order = Placement.shuffled(topology.hosts, arguments.seed)
    return placed(jobs_of(arguments.jobs), order.host)


def _transport(arguments: argparse.Namespace) -> Transport:
    from gradwire.network.engines.transport import Transport
    from gradwire.network.topologies import latency_ns_of

    how = Transport(
        window=arguments.window, header_bytes=arguments.header_bytes,
        ack_bytes=arguments.ack_bytes, ack_packets=arguments.ack_packets,
        queue_bytes=arguments.queue_bytes, timeout_us=arguments.timeout_us,
        exclude_us=arguments.exclude_us or 0.0, slow_down=arguments.slow_down,
        trim=arguments.trim, selective=arguments.selective,
    )  # fmt: skip
    latency = arguments.latency_ns
    if latency is None and arguments.engine == "packet":
        latency = latency_ns_of(arguments.topology)
    return how if latency is None else replace(how, latency_ns=latency)


def _step(arguments: argparse.Namespace) -> tuple[_Measured, float]:
    """Returns a function that measures a step by a scheme, and the step's seconds without a
    network."""
    if arguments.engine != "flow":
        raise NetworkError(
            f"--step needs --engine flow; got --engine {arguments.engine}. Leave --engine out."
        )
    topology = topology_asked(arguments)
    if fails_asked(arguments, topology):
        raise NetworkError(
            "a failure @SECONDS needs traffic, and cannot be simulated with a step; got --step "
            f"and --fail {' '.join(arguments.fail)}. Leave one out, or let it fail from the "
            "start, without @."
        )
    workload, where = _workload(arguments, topology)

    def measured(scheme: str, _: Spraying) -> Sequence[_Row]:
        took = workload.seconds(
            topology, where, scheme, tolerance=arguments.tolerance, seed=arguments.seed
        )
        return [{"seconds": took}]

    return measured, workload.work_seconds()


def _workload(arguments: argparse.Namespace, topology: Fabric) -> tuple[Workload, Placement]:
    """Returns what --step names (a plan, a parallel job or another step), and where its ranks
    are."""
    from gradwire.network.parallelism import step_of

    text, end = arguments.step, Path(arguments.step).suffix
    if end == ".json":
        return _of_plan(arguments, topology)
    made = step_of(f"parallel({text!r})" if end == ".toml" else text)
    return made, _placed(arguments, topology, made.ranks)


def _placed(arguments: argparse.Namespace, topology: Fabric, ranks: int) -> Placement:
    if arguments.ranks not in (None, ranks):
        raise NetworkError(
            f"this step has a fixed number of ranks, {ranks}; got --ranks {arguments.ranks}. "
            "Leave --ranks out."
        )
    own = argparse.Namespace(**{**vars(arguments), "ranks": ranks})
    return placement_of(own, topology.hosts, arguments.seed)


def _of_plan(arguments: argparse.Namespace, topology: Fabric) -> tuple[Workload, Placement]:
    """Returns the plan's traffic on as many ranks as the topology has hosts, unless --ranks says
    otherwise, and where the ranks are."""
    from gradwire.network.demand import workload_of
    from gradwire.plan import Plan
    from gradwire.planner.candidates import stages_of
    from gradwire.planner.profile import Profile
    from gradwire.planner.traffic import traffic_of
    from gradwire.planner.whatif import on
    from gradwire.topology import Cluster

    if arguments.profile is None:
        raise NetworkError(
            "the step of a plan needs the times of its job; --profile is missing. Measure the job "
            "with gradwire profile, and pass its file."
        )
    where = placement_of(arguments, topology.hosts, arguments.seed)
    each = arguments.per_machine
    if where.ranks % each:
        raise NetworkError(
            f"the ranks of a plan must fill their machines; got {where.ranks} ranks and "
            f"--per-machine {each}. Pass --ranks {where.ranks - where.ranks % each or each}."
        )
    plan, profile = Plan.load(arguments.step), Profile.load(arguments.profile)
    if where.ranks != profile.world:
        rate = float(topology.host_up.sum(1).min())
        profile = on(profile, Cluster(where.ranks // each, each, cross_bits_per_second=rate))
    buckets = traffic_of(plan, profile, each)
    job = stages_of(profile, plan).executor(plan.lanes)
    return workload_of(buckets, where, job.backward_seconds, job.around_seconds), where


def _tell(
    rows: Sequence[_Row], least: float, refused: dict[str, str], arguments: argparse.Namespace
) -> None:
    from gradwire.report.table import Table

    headers, cells = _table(rows, least)
    what = "Without a network" if arguments.step is not None else "At least"
    bound = f"{what}: {least:.4g} s; engine: {arguments.engine}"
    not_tried = [f"not tried: {scheme}: {why}" for scheme, why in refused.items()]
    told = {"engine": arguments.engine, "least": least, "rows": rows, "refused": refused}
    text = "\n".join([Table(headers, cells).as_text(), "", bound, *not_tried])
    with answering(json.dumps(told, indent=2) if arguments.json else text, arguments.json):
        if arguments.html or arguments.perfetto:
            _save(arguments, rows, (headers, cells), [bound], not_tried)


def _table(rows: Sequence[_Row], least: float) -> tuple[Sequence[str], list[tuple[str, ...]]]:
    """Returns headers and cells, as they are printed."""
    names = {"scheme": "scheme", "job": "job", "seconds": "seconds", "alone": "alone",
             "whole": "nothing fails"}  # fmt: skip
    columns = [key for key in names if key in rows[0]]
    cells = [
        (*(f"{row[key]:.4g}" if isinstance(row[key], float) else row[key] for key in columns),
         f"{row['seconds'] / own:.2f}" if (own := row.get("least", least)) else "–")
        for row in rows
    ]  # fmt: skip
    return (*(names[key] for key in columns), "× least"), cells


def _save(
    arguments: argparse.Namespace, rows: Sequence[_Row],
    table: tuple[Sequence[str], Sequence[Sequence[str]]], told: list[str], refused: Sequence[str],
) -> None:  # fmt: skip
    """Writes the timeline and the page, with loads and messages of the first and the fastest
    scheme, or with what a step's ranks do."""
    from gradwire.network.heatmap import heatmap
    from gradwire.network.jobs import together
    from gradwire.report.network_page import by_host, network_page
    from gradwire.report.page import Grid
    from gradwire.report.timeline import Step, by_rank

    took = {row["scheme"]: max(r["seconds"] for r in rows if r["scheme"] == row["scheme"])
            for row in rows}  # fmt: skip
    first, best = rows[0]["scheme"], min(took, key=lambda scheme: took[scheme])
    asked = {name: _asked(arguments)[name] for name in dict.fromkeys((first, best))}
    is_step, routes = arguments.step is not None, _routes(arguments, asked)
    traces = _traces(arguments, asked, routes) if _has_time(arguments) else {}
    if arguments.perfetto:
        save_timelines(traces, arguments.perfetto, by_rank if is_step else by_host)
    if not arguments.html:
        return
    gain = took[first] / took[best] if took[best] else 1.0
    what = "the longest job" if len({row.get("job") for row in rows}) > 1 else "it"
    verdict = (
        f"By '{best}' {what} takes {took[best]:.4g} s"
        + ("." if best == first else f", by '{first}' {gain:.2f} times as long.")
    )  # fmt: skip
    if meanwhile := [text for text in arguments.fail if "@" in text]:
        failed = ", ".join(meanwhile)
        told.append(
            f"During the run {failed} fails, at that second; the loads are those before it."
        )
    loads = heatmap({name: together(own).routes for name, own in routes.items()}) if routes else ""
    steps = [Step(*one) for one in traces.items()]
    page = network_page(
        f"gradwire network simulate: {arguments.topology}", verdict, Grid(*table),
        repeats(arguments), told=told, notes=refused, loads=loads,
        messages=() if is_step else steps, steps=steps if is_step else (),
    )  # fmt: skip
    save_page(page, arguments.html)


def _has_time(arguments: argparse.Namespace) -> bool:
    """Whether it is known when messages travel: the engine simulates time, and nothing fails
    meanwhile."""
    return arguments.engine != "static" and not any("@" in text for text in arguments.fail)


def _routes(
    arguments: argparse.Namespace, asked: Mapping[str, tuple[str, Spraying]]
) -> dict[str, Jobs]:
    """Returns the jobs' routes by these schemes. A step has none: messages come and go."""
    from gradwire.network.jobs import routed

    if arguments.step is not None:
        return {}
    topology = topology_asked(arguments)
    flows = [job.flows for job in _jobs(arguments, topology)]
    return {
        name: routed(flows, topology, text, arguments.seed) for name, (text, _) in asked.items()
    }


def _traces(
    arguments: argparse.Namespace, asked: Mapping[str, tuple[str, Spraying]],
    routes: Mapping[str, Jobs],
) -> dict[str, Trace]:  # fmt: skip
    """Returns when messages travel, by these schemes, or what a step's ranks do."""
    from gradwire.network.engines import flow, packet

    if arguments.step is not None:
        topology = topology_asked(arguments)
        workload, where = _workload(arguments, topology)
        options = {"tolerance": arguments.tolerance, "seed": arguments.seed}
        return {
            name: workload.trace(topology, where, scheme, **options)
            for name, (scheme, _) in asked.items()
        }
    if arguments.engine == "flow":
        return {name: flow.trace_of(own, arguments.tolerance) for name, own in routes.items()}
    how = _transport(arguments)
    return {
        name: packet.trace_of(own, replace(how, spraying=asked[name][1]), arguments.seed)
        for name, own in routes.items()
    }

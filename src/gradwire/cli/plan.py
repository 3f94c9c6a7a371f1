"""gradwire plan: the best plan for a profiled job, on its own cluster or on another.

    gradwire plan --profile profile.json --optimizer adamw -o plan.json
    gradwire plan --profile profile.json --workers 64 --per-host 8 --bandwidth 10gbit -o plan.json
    gradwire plan --profile profile.json --optimizer sgd --table
    gradwire plan --profile profile.json --optimizer sgd --html plan.html

Plans use only strategies that are known to be sound with the optimizer, or with every optimizer if
none is named. What no option says of the other cluster is the profile's. --table plans for many
numbers of workers and bandwidths at once, and says where the decision changes.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gradwire.cli.arguments import (
    add_perfetto,
    add_quiet,
    answering,
    check_output,
    repeats,
    save_page,
    save_timelines,
    say,
    writing,
)
from gradwire.cli.progress import telling
from gradwire.errors import UsageError
from gradwire.progress import Progress
from gradwire.report.terminal import printable

if TYPE_CHECKING:
    from gradwire.plan import Plan
    from gradwire.planner.choose import Choice
    from gradwire.planner.paths import Offer
    from gradwire.planner.profile import Profile
    from gradwire.planner.story import Explanation
    from gradwire.planner.tables import Cell, Table
    from gradwire.planner.whatif import Again
    from gradwire.report.page import Page
    from gradwire.topology import Cluster
    from gradwire.trace import Trace

_ALGORITHMS = ("joint", "mergecomp", "bytecomp", "hipress", "byteps")
_POWERS = tuple(4**i for i in range(8))
_RATES = ("100mbit", "1gbit", "5gbit", "10gbit", "25gbit", "100gbit")
_TIMES = "× : how much shorter than with the better of tuned fp32 and bf16"
_SHORT = {"none | allreduce": "fp32", "bf16 | allreduce": "bf16"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options."""
    add = parser.add_argument
    profile = "the job's profile, as `gradwire profile` writes it"
    add("--profile", type=Path, required=True, metavar="FILE", help=profile)
    add("-o", "--output", type=Path, metavar="FILE", help="write the plan to FILE")
    page = "write a page that shows the plan, or the table, to FILE"
    add("--html", type=Path, metavar="FILE", help=page)
    add_perfetto(parser, "a rank's step, predicted with the plan, tuned fp32 and bf16,")
    add("--json", action="store_true", help="print one JSON document to stdout")
    add_quiet(parser)
    add = parser.add_argument_group("the cluster, if not the profile's").add_argument
    add(
        "--workers", type=int, nargs="+", metavar="N", help="number of ranks; several with --table"
    )
    add("--per-host", type=int, metavar="N", help="ranks on each host")
    rate = "bandwidth of each host, such as 1gbit; several with --table"
    add("--bandwidth", nargs="+", metavar="RATE", help=rate)
    late = "latency between hosts in ms, on top of the start-up times in the profile"
    add("--latency-ms", type=float, metavar="X", help=late)
    cluster = "a cluster.toml that describes the cluster; the options above replace its values"
    add("--topology", type=Path, metavar="FILE", help=cluster)
    add = parser.add_argument_group("the search").add_argument
    how = "gradwire's own algorithm (joint) or a published one (default: %(default)s)"
    add("--algorithm", choices=_ALGORITHMS, default="joint", help=how)
    groups = "the largest number of groups of mergecomp (default: 2)"
    add("--groups", type=int, metavar="N", help=groups)
    lanes = "numbers of lanes to try (default: 1 2; with --table: 1)"
    add("--lanes", type=int, nargs="+", metavar="N", help=lanes)
    optimizer = "the job's: adamw, muon, sgd, sgdm (SGD with momentum), … (default: any)"
    add("--optimizer", metavar="NAME", help=optimizer)
    allow = "strategies to use (default: all in the profile); 'X | paths': all paths of X"
    add("--allow", nargs="+", metavar="STRATEGY", help=allow)
    budget = "the largest relative error of a step's average gradient (default: no limit)"
    add("--error-budget", type=float, metavar="X", help=budget)
    table = "print a table over workers and bandwidths, instead of one plan"
    add("--table", action="store_true", help=table)


def run(arguments: argparse.Namespace) -> int:
    """Plans, or makes the table; returns the exit code. Raises PlanError, UsageError, LabError."""
    _check(arguments)
    with telling(arguments, "plan") as progress:
        show = _planned(arguments, progress)
    show()
    return 0


def _planned(arguments: argparse.Namespace, progress: Progress) -> Callable[[], None]:
    """Does all the work; returns a function that shows the result."""
    from gradwire.planner.profile import Profile

    profile = Profile.load(arguments.profile)
    progress("what may be used")
    profile, texts, offers = _with_paths(arguments, profile)
    allowed, unsound = _sound(texts, arguments.optimizer)
    if arguments.table:
        found = _table(arguments, profile, allowed, progress)
        return lambda: _show_table(found, arguments.json, arguments.html)
    return _plan(arguments, profile, allowed, unsound, offers, progress)


def _check(arguments: argparse.Namespace) -> None:
    several = [
        name for name in ("workers", "bandwidth") if len(getattr(arguments, name) or ()) > 1
    ]
    if several and not arguments.table:
        raise UsageError(
            f"a plan is for one number of workers and one bandwidth; got several of "
            f"{' and '.join(several)}. Add --table, or choose one."
        )
    for option, path, what in (
        ("-o", arguments.output, "plan"), ("--perfetto", arguments.perfetto, "timeline"),
    ):  # fmt: skip
        if arguments.table and path:
            raise UsageError(
                f"a table has no {what} that {option} could write; got {option} {path} beside "
                "--table. Leave one out."
            )
    reads = arguments.profile, arguments.topology
    check_output("a plan", arguments.output, reads)
    check_output("a page", arguments.html, reads, beside=[arguments.output])
    written = arguments.output, arguments.html
    check_output("a timeline", arguments.perfetto, reads, beside=written)
    latency = arguments.latency_ms
    if latency is not None and not 0 <= latency < float("inf"):
        raise UsageError(f"latency must be 0 ms or more; got {latency}. Use for example 0.1.")
    if arguments.groups is not None and (arguments.algorithm != "mergecomp" or arguments.table):
        raise UsageError(
            f"--groups needs a plan by the algorithm mergecomp; got --groups {arguments.groups} "
            f"for {'a table' if arguments.table else arguments.algorithm}. Leave --groups out."
        )
    counted = {
        "groups": () if arguments.groups is None else (arguments.groups,),
        "workers": arguments.workers or (), "lanes": arguments.lanes or (),
        "ranks per host": () if arguments.per_host is None else (arguments.per_host,),
    }  # fmt: skip
    for name, given in counted.items():
        if wrong := [n for n in given if n < 1]:
            raise UsageError(
                f"the number of {name} must be at least 1; got {wrong[0]}. Use for example 2."
            )


def _allowed(profile: Profile, texts: Sequence[str] | None) -> list[str]:
    """Returns the strategies as the profile writes them. Raises PlanError for one that it has
    not."""
    from gradwire.planner.paths import is_pattern
    from gradwire.strategy import Strategy

    def known(text: str) -> str:
        asked = Strategy.parse(text)
        profile.cost(text)
        found = profile.measured(text)
        return found if found and Strategy.parse(found) == asked else str(asked)

    if texts is None:
        return list(profile.strategies)
    return [text if is_pattern(text) else known(text) for text in texts]


def _with_paths(
    arguments: argparse.Namespace, profile: Profile
) -> tuple[Profile, list[str], list[Offer]]:
    """Returns the profile, the strategies that may be used, and offers: a pattern (all paths of a
    compressor) becomes the paths that are worth a look, in the former two."""
    from gradwire.planner.paths import is_pattern, with_paths

    texts = _allowed(profile, arguments.allow)
    patterns = [text for text in texts if is_pattern(text)]
    if patterns and (arguments.table or _is_elsewhere(arguments)):
        raise UsageError(
            "a pattern of paths needs the cluster of the profile, where each move was measured; "
            f"got '{patterns[0]}' for another, or a table. Allow a path by name, such as steps(…)."
        )
    judged = _optimizers(arguments.optimizer)
    found = with_paths(profile, texts, lambda text: _is_sound(text, judged))
    for offer in found[2]:
        say(str(offer))
        if not offer.strategies:
            say(
                f"'{offer.pattern}' adds nothing: no path that fits is sound and not measured "
                "already"
            )
    return found


def _optimizers(optimizer: str | None) -> Sequence[str]:
    from gradwire.soundness import ONE_OF_EACH_RULE

    return ONE_OF_EACH_RULE if optimizer is None else (optimizer,)


def _is_sound(text: str, optimizers: Sequence[str]) -> bool:
    from gradwire.soundness import sound

    return all(sound(text, optimizer).kind == "sound" for optimizer in optimizers)


def _adds_momentum(text: str, optimizers: Sequence[str]) -> bool:
    from gradwire.soundness import adds_momentum
    from gradwire.strategy import Strategy

    return any(adds_momentum(Strategy.parse(text), optimizer) for optimizer in optimizers)


def _sound(texts: Sequence[str], optimizer: str | None) -> tuple[list[str], list[str]]:
    """Returns the strategies that are known to be sound with the optimizer and do not add momentum
    to it, and the others. Raises UsageError if there is none."""
    optimizers = _optimizers(optimizer)
    sound = [text for text in texts if _is_sound(text, optimizers)]
    kept = [text for text in sound if not _adds_momentum(text, optimizers)]
    out = [text for text in texts if text not in sound]
    adding = [text for text in sound if text not in kept]
    beside = "every optimizer" if optimizer is None else optimizer
    if out:
        hint = "; name yours with --optimizer" if optimizer is None else ""
        say(f"left out, as not known to be sound with {beside}: {', '.join(out)}{hint}")
    if adding:
        hint = "if the job has momentum, pass --optimizer sgdm"
        say(f"left out, as {beside} has no momentum: {', '.join(adding)}; {hint}")
    if not kept:
        other = ", or name your optimizer, such as --optimizer adamw" if optimizer is None else ""
        raise UsageError(
            f"a plan can use only strategies that are known to be sound with {beside}; got "
            f"{', '.join(map(repr, texts)) or 'nothing'}. Allow 'none | allreduce'{other}."
        )
    return kept, out + adding


# -- one plan ----------------------------------------------------------------------------------


def _plan(
    arguments: argparse.Namespace, profile: Profile, allowed: list[str], unsound: list[str],
    offers: list[Offer], progress: Progress,
) -> Callable[[], None]:  # fmt: skip
    """Plans; returns a function that writes and shows the plan."""
    from gradwire.planner.choose import choose
    from gradwire.planner.explain import explain, with_prediction

    asked, left_out = profile, list[str]()
    if _is_elsewhere(arguments):
        asked, allowed, left_out = _elsewhere(arguments, profile, allowed)
    choice = choose(
        asked, allowed, lanes=arguments.lanes or (1, 2), error_budget=arguments.error_budget,
        algorithm=arguments.algorithm, groups=arguments.groups or 2, progress=progress,
    )  # fmt: skip
    _say_uncounted(asked)
    _say_left_out(left_out, "this cluster")
    story = explain(choice, asked)
    plan = with_prediction(choice, asked) if arguments.output else None
    traces = _traces(choice) if arguments.html or arguments.perfetto else {}
    page = _page(traces, story, arguments) if arguments.html else None
    kept = str(arguments.output) if arguments.output else None
    told = {"plan": kept, "left_out": [*unsound, *left_out], **story.to_json()}
    if offers:
        told["paths"] = [offer.to_json() for offer in offers]
    answer = json.dumps(told, indent=2) if arguments.json else printable(story.as_text())
    return lambda: _keep(plan, page, traces, answer, arguments)


def _say_uncounted(profile: Profile) -> None:
    """Says whose rows no predicted step has."""
    from gradwire.planner.candidates import tables_of, ways_of

    buckets = [bucket for bucket, _ in tables_of(profile) if not ways_of(profile, bucket)]
    names = [name for bucket in buckets for name in bucket.names]
    if names:
        say(
            "steps are without the sparse gradients of these tables, as what their rows take on "
            f"this cluster was not measured: {', '.join(names)}"
        )


def _say_left_out(strategies: Sequence[str], where: str) -> None:
    if strategies:
        say(f"left out, as their cost cannot be computed for {where}: {', '.join(strategies)}")


def _keep(
    plan: Plan | None, page: Page | None, traces: Mapping[str, Trace], answer: str,
    arguments: argparse.Namespace,
) -> None:  # fmt: skip
    """Writes the requested files, and prints the answer."""
    with answering(answer, arguments.json):
        if plan is None:
            say("the plan was not saved: add -o plan.json")
        else:
            with writing(arguments.output):
                plan.save(arguments.output)
            say(f"wrote {arguments.output}")
        if page is not None:
            save_page(page, arguments.html)
        if arguments.perfetto:
            save_timelines(traces, arguments.perfetto)


def _traces(choice: Choice) -> dict[str, Trace]:
    """Returns a rank's step by the plan, and by what the plan is compared with."""
    tuned = {f"tuned {_SHORT[text]}": found for text, found in choice.baselines.items()}
    ways = {"the plan": choice.best, **tuned}
    return {name: found.timeline.trace() for name, found in ways.items()}


def _page(traces: Mapping[str, Trace], story: Explanation, arguments: argparse.Namespace) -> Page:
    from gradwire.report.plan_page import Way, plan_page

    return plan_page(
        f"gradwire plan: {arguments.profile}", story.to_json(), story.summary,
        [Way(*one) for one in traces.items()], repeats(arguments),
    )  # fmt: skip


def _is_elsewhere(arguments: argparse.Namespace) -> bool:
    names = ("workers", "per_host", "bandwidth", "latency_ms", "topology")
    return any(getattr(arguments, name) is not None for name in names)


def _elsewhere(
    arguments: argparse.Namespace, profile: Profile, allowed: list[str]
) -> tuple[Profile, list[str], list[str]]:
    """Returns the profile on the other cluster, the strategies that may be used there, and those
    that cannot be planned with."""
    from gradwire.planner.whatif import Again

    again = Again(profile)
    workers, rates = arguments.workers or [None], arguments.bandwidth or [None]
    cluster = _cluster(arguments, profile, workers[0], rates[0])
    _refuse_idle(arguments, cluster)
    usable, left_out = _priced(again, allowed, arguments, cluster)
    say(f"planning for {_describe(cluster)}")
    return again.on(cluster), usable, left_out


def _refuse_idle(arguments: argparse.Namespace, cluster: Cluster) -> None:
    """Raises UsageError for a network between hosts where there is one host."""
    given = {"--bandwidth": arguments.bandwidth, "--latency-ms": arguments.latency_ms}
    named = [name for name, value in given.items() if value is not None]
    if cluster.hosts == 1 and named:
        asked, ranks = " and ".join(named), cluster.ranks_per_host
        raise UsageError(
            f"a network is between hosts; got {asked} for {_describe(cluster)}. Ask for two hosts "
            f"or more, as by --workers {2 * ranks} --per-host {ranks}, or leave {asked} out."
        )


def _priced(
    again: Again, allowed: list[str], arguments: argparse.Namespace,
    cluster: Cluster | None = None,
) -> tuple[list[str], list[str]]:  # fmt: skip
    """Returns the strategies that can be priced for another cluster, None: for some, and the
    others. Raises PlanError or UsageError if one of these was named."""
    if arguments.allow is not None:
        return again.usable(allowed, cluster), []
    usable = again.usable(None, cluster)
    left_out = [text for text in allowed if text not in usable]
    return [text for text in allowed if text in usable], left_out


def _cluster(
    arguments: argparse.Namespace, profile: Profile, workers: int | None, rate: str | None
) -> Cluster:
    from gradwire.lab.rates import parse_rate
    from gradwire.planner.whatif import wanted
    from gradwire.topology import Cluster

    like = Cluster.load(arguments.topology) if arguments.topology else None
    late = arguments.latency_ms
    return wanted(
        profile, like, workers=workers, per_host=arguments.per_host,
        bits_per_second=None if rate is None else parse_rate(rate),
        latency_seconds=None if late is None else 1e-3 * late,
    )  # fmt: skip


def _describe(cluster: Cluster) -> str:
    from gradwire.lab.rates import format_rate

    ranks = "1 rank" if cluster.ranks_per_host == 1 else f"{cluster.ranks_per_host} ranks"
    hosts = "1 host" if cluster.hosts == 1 else f"{cluster.hosts} hosts"
    rate = f", {format_rate(cluster.cross_bits_per_second)}" if cluster.hosts > 1 else ""
    return f"{hosts} of {ranks}{rate}"


# -- a table -----------------------------------------------------------------------------------


def _table(
    arguments: argparse.Namespace, profile: Profile, allowed: list[str], progress: Progress
) -> Table:
    from gradwire.lab.rates import parse_rate
    from gradwire.planner.tables import table
    from gradwire.planner.whatif import Again

    again = Again(profile)
    allowed, left_out = _priced(again, allowed, arguments)
    rates = arguments.bandwidth or _RATES
    given = arguments.workers or [arguments.per_host]
    like = _cluster(arguments, profile, given[0], rates[0])
    workers = arguments.workers or _usual_workers(like.ranks_per_host)
    _say_uncounted(replace(profile, tables=()))
    _say_left_out(left_out, "other clusters")
    for count in dict.fromkeys(workers):
        usable = again.usable(None, like.with_workers(count))
        _say_left_out([text for text in allowed if text not in usable], f"{count} workers")
    return table(
        profile, workers, [parse_rate(r) for r in rates], like, strategies=allowed,
        lanes=arguments.lanes or (1,), error_budget=arguments.error_budget,
        algorithm=arguments.algorithm, progress=progress,
    )  # fmt: skip


def _usual_workers(per_host: int) -> list[int]:
    """Returns powers of 4 that fill whole hosts, or else so many full hosts."""
    from gradwire.planner.whatif import MOST_WORKERS

    powers = [n for n in _POWERS if n % per_host == 0] or [per_host * n for n in _POWERS]
    return [n for n in powers if 1 < n <= MOST_WORKERS]


def _show_table(found: Table, as_json: bool, html: Path | None) -> None:
    from gradwire.lab.rates import format_rate
    from gradwire.report.page import Grid, Page, Section
    from gradwire.report.table import Table as Text

    headers = ["workers", *map(format_rate, found.rates)]
    rows = [[str(row[0].workers), *map(_cell, row)] for row in found.cells]
    crossings = [_crossover(crossing.before, crossing.after) for crossing in found.crossovers]
    text = printable("\n".join([Text(headers, rows).as_text(), "", _TIMES, *crossings]))
    answer = json.dumps(_document(found), indent=2) if as_json else text
    with answering(answer, as_json):
        if html is None:
            return
        changes = Section(
            "Where the decision changes", [], crossings or ["Nowhere in this table."]
        )
        steps = Section("Steps", [Grid(headers, rows, text=range(1, len(headers)))], [_TIMES])
        save_page(Page("gradwire plan --table", _pays(found), [steps, changes]), html)


def _pays(found: Table) -> str:
    cells = [cell.verdict.kind for row in found.cells for cell in row]
    return (
        f"Compressing pays in {cells.count('compress')} of {len(cells)} cases of workers and "
        "bandwidth."
    )


def _cell(cell: Cell) -> str:
    from gradwire.planner.story import ms

    if cell.verdict.kind == "dense":
        return f"{_SHORT.get(cell.strategy, cell.strategy)} {ms(cell.seconds)}"
    return f"{cell.strategy} {ms(cell.seconds)} {cell.verdict.speedup:.3g}×"


def _crossover(before: Cell, after: Cell) -> str:
    from gradwire.lab.rates import format_rate

    change = f"{before.decision} → {after.decision}"
    if before.workers == after.workers:
        ends = format_rate(before.bits_per_second), format_rate(after.bits_per_second)
        return f"{before.workers} workers, between {ends[0]} and {ends[1]}: {change}"
    ends = str(before.workers), str(after.workers)
    rate = format_rate(before.bits_per_second)
    return f"{rate}, between {ends[0]} and {ends[1]} workers: {change}"


def _document(found: Table) -> dict[str, Any]:
    def facts(cell: Cell) -> dict[str, Any]:
        return {
            "workers": cell.workers, "bits_per_second": cell.bits_per_second,
            "seconds": cell.seconds, "lower_bound": cell.lower_bound, "strategy": cell.strategy,
            "decision": cell.decision, "verdict": str(cell.verdict),
            "speedup": cell.verdict.speedup,
        }  # fmt: skip

    cells = [facts(cell) for row in found.cells for cell in row]
    crossovers = [{"before": facts(c.before), "after": facts(c.after)} for c in found.crossovers]
    return {"workers": found.workers, "bits_per_second": found.rates, "cells": cells,
            "crossovers": crossovers}  # fmt: skip

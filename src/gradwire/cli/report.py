"""gradwire report: what a recorded run did, and where its time went.

gradwire report run/                               one run, in some lines
gradwire report dense/ compressed/                 side by side: is the second faster beyond noise?
gradwire report run/ -o report.html                a page, which also shows the steps themselves
gradwire report run/ --perfetto trace.json.gz      its timeline, for ui.perfetto.dev
"""

from __future__ import annotations

import argparse
import json
import re
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gradwire.cli.arguments import add_perfetto, add_quiet, answering, check_output, save_page
from gradwire.cli.progress import telling
from gradwire.errors import GradwireError, UsageError
from gradwire.progress import Progress, each, part
from gradwire.report.terminal import printable

if TYPE_CHECKING:
    from gradwire.plan import Plan
    from gradwire.report.page import Page, Section
    from gradwire.report.run import Run
    from gradwire.report.summary import Summary
    from gradwire.trace import Trace

_Events = list[dict[str, Any]]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options."""
    add = parser.add_argument
    run = "a folder that gradwire.record wrote; each further one is compared with the first"
    add("runs", type=Path, nargs="+", metavar="RUN", help=run)
    page = "write the report to FILE as one HTML page, which loads nothing else"
    add("-o", "--output", type=Path, metavar="FILE", help=page)
    planned = "profile to predict the last run's step from, for the page of -o"
    add("--profile", type=Path, metavar="FILE", help=planned)
    routes = "paths that `gradwire network plan -o` wrote, to show how full links are on the page"
    add("--routes", type=Path, metavar="FILE", help=routes)
    add_perfetto(parser, "all ranks")
    which = "steps of the timeline, A or A to B - 1 (default: the last recorded span by span)"
    add("--steps", metavar="A:B", help=which)
    beside = "traces of this run's ranks by torch's profiler, to merge into the timeline"
    add("--torch-trace", type=Path, nargs="+", default=[], metavar="FILE", help=beside)
    add("--json", action="store_true", help="print one JSON document to stdout")
    add_quiet(parser)


def run(arguments: argparse.Namespace) -> int:
    """Reads the runs and prints what they did; returns the exit code. Raises UsageError."""
    _check(arguments)
    with telling(arguments, "report") as progress:
        summaries, timeline, page = _read(arguments, progress)
        told = _json(summaries) if arguments.json else printable(_text(summaries))
    with answering(told, arguments.json):
        _save(timeline, page, arguments)
    if arguments.perfetto is not None and not arguments.json:
        print(f"\ntimeline: {arguments.perfetto}; open it in ui.perfetto.dev")
    return 0


def _check(arguments: argparse.Namespace) -> None:
    if arguments.perfetto is None and (arguments.steps is not None or arguments.torch_trace):
        raise UsageError(
            "--steps and --torch-trace are of a timeline, which needs --perfetto; got no "
            "--perfetto. Pass --perfetto trace.json.gz."
        )
    for option, what in (("profile", "the predicted step"), ("routes", "how full links are")):
        if arguments.output is None and getattr(arguments, option) is not None:
            raise UsageError(
                f"--{option} adds {what} to a page, which needs -o; got no -o. Pass -o "
                "report.html."
            )
    recorded = map(_recorded, arguments.runs)
    reads = [
        *chain.from_iterable(recorded), arguments.profile, arguments.routes, *arguments.torch_trace
    ]  # fmt: skip
    check_output("a timeline", arguments.perfetto, reads)
    check_output("a page", arguments.output, reads, beside=[arguments.perfetto])


def _recorded(folder: Path) -> list[Path]:
    try:
        return list(folder.glob("rank-*.jsonl"))
    except OSError:  # reported when it is read
        return []


def _save(timeline: _Events, page: Page | None, arguments: argparse.Namespace) -> None:
    from gradwire.report import perfetto

    if arguments.perfetto is not None:
        perfetto.save(timeline, arguments.perfetto)
    if page is not None:
        save_page(page, arguments.output)


def _read(
    arguments: argparse.Namespace, progress: Progress
) -> tuple[list[Summary], _Events, Page | None]:
    """Returns the runs' summaries, the timeline and the page, the latter two only if requested."""
    from gradwire.report.run import Run, tell_apart
    from gradwire.report.summary import summarize

    folders = arguments.runs
    told = [part(progress, "reading", number, len(folders)) for number in range(len(folders))]
    runs = [Run(folder, own) for folder, own in zip(folders, told)]
    tell_apart(runs)
    timeline, page = _Events(), None
    if arguments.perfetto is not None:
        if len(runs) > 1:
            raise UsageError(
                f"a timeline can show only one run; got {len(runs)}. Pass --perfetto with one."
            )
        progress("the timeline")
        timeline = _timeline(runs[0], arguments.steps, arguments.torch_trace)
    named = each(progress, "summing up", runs, lambda found: found.name)
    summaries = [_needed(summarize(found), found) for found in named]
    if arguments.output is not None:
        progress("the page")
        page = _page(summaries, arguments.profile, arguments.routes)
    return summaries, timeline, page


def _needed(summary: Summary | None, run: Run) -> Summary:
    if summary is None:
        raise UsageError(
            f"a report needs a finished step; '{run.folder}' has none. {' '.join(run.problems)} "
            "Let the job finish a step."
        )
    return summary


def _text(summaries: list[Summary]) -> str:
    from gradwire.report import run_text

    return run_text.one(summaries[0]) if len(summaries) == 1 else run_text.several(summaries)


def _page(summaries: list[Summary], profile: Path | None, routes: Path | None) -> Page:
    from gradwire.report.run_page import Shown, run_page

    shown = [Shown(summary, _story(summary.run)) for summary in summaries]
    if profile is not None:
        story, predicted = _predicted(summaries[-1].run, profile)
        shown[-1] = Shown(summaries[-1], story, predicted)
    return run_page(shown, [] if routes is None else [_links(routes)])


def _links(file: Path) -> Section:
    """Returns how full these paths make links, beside hashes."""
    from gradwire.network.advice import HASHES
    from gradwire.network.heatmap import heatmap
    from gradwire.network.routing.route import route
    from gradwire.network.saved import load
    from gradwire.report.network_page import how_full
    from gradwire.report.run_text import as_bytes

    planned = load(file)
    flows, fabric = planned.flows, planned.fabric
    hashed = route(flows, fabric, HASHES)
    what = (
        f"The paths of {file} are for {as_bytes(float(sum(flows.bytes.tolist())))} in all between "
        f"{fabric.hosts} hosts, as they were planned and not measured. Beside them stands where "
        "hashes would send the same messages."
    )
    return how_full(heatmap({"hashes": hashed, "planned": planned}), what)


def _plan(run: Run) -> Plan | None:
    from gradwire.plan import Plan

    _, planned = run.in_force
    return None if planned is None else Plan.from_json(json.dumps(planned.document))


def _story(run: Run) -> str:
    """Returns why the run's plan is as it is; "" if the plan has no prediction."""
    _, planned = run.in_force
    if planned is None or "prediction" not in planned.document:
        return ""
    from gradwire.planner.explain import saved

    try:
        plan = _plan(run)
        return "" if plan is None else saved(plan).as_text()
    except GradwireError as error:  # such as a member that is not installed here
        return f"The reasons cannot be shown here: {error}"


def _predicted(run: Run, profile: Path) -> tuple[str, Trace]:
    """Returns what a profile says of the plan, in words, and the trace of a step as it predicts
    it."""
    from gradwire.planner.choose import judge
    from gradwire.planner.explain import explain
    from gradwire.planner.paths import with_named
    from gradwire.planner.profile import Profile

    plan = _plan(run)
    if plan is None:
        raise UsageError(
            f"a prediction needs the plan that rank 0 recorded; '{run.folder}' has none. Copy "
            "rank 0's file into the folder, or leave --profile out."
        )
    own = with_named(Profile.load(profile), map(str, plan.strategies))
    if run.averaged_over not in (None, own.world):
        raise UsageError(
            f"a prediction needs a profile of as many ranks as the run; got one of {own.world} "
            f"for '{run.folder}', where {run.averaged_over} average. Profile this job, or leave "
            "--profile out."
        )
    choice = judge(own, plan)
    return explain(choice, own).as_text(), choice.best.timeline.trace()


def _json(summaries: list[Summary]) -> str:
    from gradwire.report.run_text import learns_less
    from gradwire.report.summary import ratio_of

    first = summaries[0]
    documents = []
    for summary in summaries:
        documents.append(_document(summary))
        if summary is not first:
            found = ratio_of(first, summary)
            documents[-1]["first_over_this"] = None if found is None else found._asdict()
            documents[-1]["learns_less"] = learns_less(first, summary)
    return json.dumps({"runs": documents}, allow_nan=False)


def _document(s: Summary) -> dict[str, Any]:
    from gradwire.run_folder import number

    return {
        "folder": str(s.run.folder), "world": s.run.world, "ranks": sorted(s.run.ranks),
        "steps": s.steps, "step_seconds": s.seconds._asdict(),
        "compute_seconds": s.computes._asdict(), "wait_seconds": s.waits._asdict(),
        "lane_seconds": s.lanes, "waits_for_seconds": s.waits_for, "overlap": s.overlap,
        "bytes_sent": s.bytes_sent, "bytes_given": s.bytes_given,
        "compute_seconds_by_rank": s.computes_by_rank, "skipped": s.skipped,
        "since_step": s.since, "last_loss": number(s.losses[-1][2]) if s.losses else None,
        "problems": s.run.problems,
    }  # fmt: skip


def _timeline(run: Run, asked: str | None, torch_traces: list[Path]) -> _Events:
    from gradwire.report import perfetto

    trace = run.trace(_steps(run, asked))
    about = {rank: found.about for rank, found in run.ranks.items()}
    names = {rank: f"rank {rank} on {own.host}" for rank, own in about.items()}
    if not torch_traces:
        zero = min((span.start_seconds for span in trace.spans), default=0.0)
        return perfetto.events(trace, names, zero_seconds=zero)
    theirs, zero, pids = _beside(run, torch_traces)
    return [*theirs, *perfetto.events(trace, names, pids, zero)]


def _beside(run: Run, torch_traces: list[Path]) -> tuple[_Events, float, dict[int, int | str]]:
    """Returns the events of torch's profiler, each file's placed by the clock of its rank; the
    run's second that is 0 in them: where the first file begins; and each rank's process."""
    from gradwire.report import perfetto

    found, zero, ids = _Events(), None, 0
    numbers, taken = dict[int, dict[int | str, int | str]](), set[int | str]()
    for file in torch_traces:
        theirs, unix_seconds, known = perfetto.read_torch(file)
        there = perfetto.processes(theirs)
        ranks = [own for own in run.ranks.values() if own.about.pid in there]
        # On several hosts processes may have the same number; a group may number its ranks anew.
        rank = next((own for own in ranks if own.rank == known), ranks[0] if ranks else None)
        if rank is None:
            wanted = sorted(own.about.pid for own in run.ranks.values())
            raise UsageError(
                f"a trace of torch must be of a rank of this run; none of {wanted}, the processes "
                f"of '{run.folder}', is in '{file}'. Pass the trace of a process that recorded "
                "this run."
            )
        begin = run.begin_of(rank.about.start) or 0.0
        at = rank.last.zero - begin + unix_seconds - rank.about.unix_seconds
        zero = at if zero is None else zero
        theirs = perfetto.without_names_of(rank.about.pid, theirs)
        theirs = perfetto.renumbered(theirs, numbers.setdefault(rank.rank, {}), taken)
        theirs, ids = perfetto.with_ids_from(theirs, ids)
        found += perfetto.moved(theirs, at - zero)
    pids = {
        n: numbers[n][own.about.pid] if n in numbers else perfetto.take(own.about.pid, taken)
        for n, own in run.ranks.items()
    }
    return found, zero or 0.0, pids


def _steps(run: Run, asked: str | None) -> list[int]:
    """Returns the requested steps of those that were recorded span by span; by default the
    last."""
    there = run.steps_with_spans()
    if not there:
        raise UsageError(
            f"a timeline needs steps that all ranks recorded span by span; '{run.folder}' has "
            "none. Copy the files of all ranks into it."
        )
    if asked is None:
        return there[-1:]
    bounds = re.fullmatch(r"(\d*)(:?)(\d*)", asked)
    if bounds is None or asked in ("", ":"):
        raise UsageError(
            f"--steps must be a number, or the first step and one beyond the last; got {asked!r}. "
            "Pass for example --steps 10:20."
        )
    begin = int(bounds[1] or 0)
    end = (int(bounds[3]) if bounds[3] else there[-1] + 1) if bounds[2] else begin + 1
    chosen = [step for step in there if begin <= step < end]
    if not chosen:
        shown = ", ".join(map(str, there[:12]))
        raise UsageError(
            f"a timeline can show only steps that were recorded span by span: {shown}"
            f"{', …' if len(there) > 12 else ''}; --steps {asked} has none. Pass others."
        )
    return chosen

"""gradwire network whatif: what failures, other spines and other places of ranks cost.

gradwire network whatif --topology "leaf_spine(16, 16, 16)" --traffic ring --placement shuffled
gradwire network whatif --topology "leaf_spine(8, 8, 8)" --traffic direct --vary spines=4,6,8,12
gradwire network whatif --topology "leaf_spine(8, 8, 8)" --traffic direct --html whatif.html
"""

from __future__ import annotations

import argparse
import json
import math
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gradwire.cli.arguments import answering, check_output, repeats, save_page, whole
from gradwire.cli.network_traffic import (
    Traffic,
    add_traffic_arguments,
    flows_on,
    traffic_of,
    without_failed,
)
from gradwire.cli.progress import telling
from gradwire.errors import NetworkError
from gradwire.progress import Progress, each

if TYPE_CHECKING:
    from gradwire.report.page import Page


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options."""
    add_traffic_arguments(parser)
    scheme = "routing scheme (default: %(default)s)"
    parser.add_argument("--scheme", default="coloured", metavar="TEXT", help=scheme)
    numbers = "a parameter of --topology and values to try, such as spines=4,8; repeatable"
    parser.add_argument("--vary", action="append", default=[], metavar="NAME=V,…", help=numbers)
    places = "number of shuffled placements to try (default: %(default)s)"
    parser.add_argument("--places", type=whole(0, 10_000), default=20, metavar="N", help=places)
    page = "write a page with the result and the loads of links to FILE"
    parser.add_argument("--html", type=Path, metavar="FILE", help=page)


def run(arguments: argparse.Namespace) -> int:
    """Prints what changes cost; returns the exit code. Raises NetworkError, and UsageError for a
    file that cannot be written."""
    check_output(
        "a page", arguments.html, (arguments.topology, arguments.traffic, arguments.flows)
    )
    with telling(arguments, "network whatif") as progress:
        traffic = traffic_of(arguments)
        told = {
            "scheme": arguments.scheme, "seconds": _seconds(traffic, arguments),
            "cables": _failures(traffic, arguments, "cables", progress),
            "switches": _failures(traffic, arguments, "switches", progress),
            "vary": [row for text in arguments.vary for row in _varied(text, arguments, progress)],
            "places": _places(arguments, progress),
        }  # fmt: skip
        page = _page(told, traffic, arguments) if arguments.html else None
    answer = _as_json(told) if arguments.json else _as_text(told)
    with answering(answer, arguments.json):
        if page is not None:
            save_page(page, arguments.html)
    return 0


def _seconds(traffic: Traffic, arguments: argparse.Namespace) -> float:
    from gradwire.network.routing.route import route

    return route(traffic.flows, traffic.topology, arguments.scheme, arguments.seed).seconds


def _failures(
    traffic: Traffic, arguments: argparse.Namespace, kind: str, progress: Progress
) -> dict[str, Any]:
    """Returns what failures cost, each alone, over all steps of the traffic. Seconds are infinite
    for those that leave hosts without a path, and None, as all names are, if nothing can fail."""
    import numpy as np

    from gradwire.network import failures
    from gradwire.network.routing.route import route

    what = {"cables": failures.cables, "switches": failures.switches}[kind](traffic.topology)
    if not what:
        return {"number": 0, "median": None, "worst": None, "which": None, "to": None,
                "cable": None, "cut_off": 0}  # fmt: skip
    total = np.zeros(len(what))
    alike = list(traffic.flows.steps())
    for steps in each(progress, f"failing {kind}", alike, lambda steps: ""):
        flows = traffic.flows[steps[0]]
        routes = route(flows, traffic.topology, arguments.scheme, arguments.seed)
        total += len(steps) * failures.sweep(routes, what, arguments.seed).seconds
    worst = int(total.argmax())
    links, is_cable = what[worst], kind == "cables"
    return {
        "number": len(what), "median": float(np.median(total)), "worst": float(total[worst]),
        "which": links[0].source if is_cable else _common(links),
        "to": links[0].target if is_cable else None,
        "cable": links[0].number if is_cable else None,
        "cut_off": int(np.isinf(total).sum()),
    }  # fmt: skip


def _common(links: tuple[Any, ...]) -> str:
    """Returns the switch that all these links have in common."""
    from gradwire.network.fabric import LEAF

    names = set(links[0][:2]).intersection(*(link[:2] for link in links))
    return str(min(names, key=lambda name: (bool(re.fullmatch(LEAF, name)), name)))


def _varied(text: str, arguments: argparse.Namespace, progress: Progress) -> list[dict[str, Any]]:
    from gradwire.network.topologies import varied

    name, equals, values = text.partition("=")
    rows = []
    for value in each(progress, name, values.split(",") if equals and values else ()):
        topology = without_failed(arguments, varied(arguments.topology, name, value))
        traffic = Traffic(topology, flows_on(arguments, topology.hosts, arguments.seed))
        rows.append({"name": name, "value": value, "seconds": _seconds(traffic, arguments)})
    if not rows:
        raise NetworkError(
            f"--vary must be a name and its values; got {text!r}. Write for example spines=4,8."
        )
    return rows


def _places(arguments: argparse.Namespace, progress: Progress) -> dict[str, float] | None:
    import numpy as np

    if arguments.places < 1 or arguments.flows is not None:
        return None
    shuffled = argparse.Namespace(**{**vars(arguments), "placement": "shuffled"})
    found = [
        _seconds(traffic_of(shuffled, seed), arguments)
        for seed in each(progress, "other places", range(arguments.places), lambda seed: "")
    ]
    ordered = argparse.Namespace(**{**vars(arguments), "placement": "in-order"})
    return {
        "in_order": _seconds(traffic_of(ordered), arguments), "median": float(np.median(found)),
        "least": min(found), "most": max(found),
    }  # fmt: skip


def _as_json(told: dict[str, Any]) -> str:
    """Returns the document, with null for infinite seconds: JSON has no such number."""
    finite = {
        kind: {name: None if value == math.inf else value for name, value in told[kind].items()}
        for kind in _KINDS
    }
    return json.dumps({**told, **finite}, indent=2, allow_nan=False)


def _as_text(told: dict[str, Any]) -> str:
    from gradwire.report.table import Table

    return "\n\n".join([Table(*_table(told)).as_text(), *_notes(told)])


def _notes(told: dict[str, Any]) -> list[str]:
    """Says what the seconds of failures do not say."""
    from gradwire.network.routing.route import scheme_of

    hashed = (
        f"What fails is gone around as if '{told['scheme']}' were pinned: its flows take the "
        "least loaded paths. Switches would hash them anew, to paths that may be shared; network "
        "simulate --fail shows such a draw."
    )
    is_drawn = _failing(told) and scheme_of(told["scheme"]).is_hashed
    return [note for note in (_cut_off(told), hashed if is_drawn else "") if note]


def _cut_off(told: dict[str, Any]) -> str:
    """Says how many failures leave hosts without a path; "" if none does."""
    cut = told["cables"]["cut_off"] + told["switches"]["cut_off"]
    return f"{cut} of these failures leave hosts without a path." if cut else ""


def _page(told: dict[str, Any], traffic: Traffic, arguments: argparse.Namespace) -> Page:
    """Returns the page, with loads as they are now."""
    from gradwire.network.heatmap import heatmap
    from gradwire.network.routing.route import route
    from gradwire.report.network_page import network_page
    from gradwire.report.page import Grid

    routes = route(traffic.flows, traffic.topology, arguments.scheme, arguments.seed)
    return network_page(
        f"gradwire network whatif: {arguments.topology}", _verdict(told), Grid(*_table(told)),
        repeats(arguments), heading="What if", notes=_notes(told),
        loads=heatmap({arguments.scheme: routes}),
    )  # fmt: skip


def _verdict(told: dict[str, Any]) -> str:
    """Says how long the traffic takes, and the worst of what was tried."""
    now = told["seconds"]
    tried = [(own["worst"], f"without {_which(own)}") for _, own in _failing(told)]
    tried += [(row["seconds"], f"with {row['name']} = {row['value']}") for row in told["vary"]]
    if told["places"]:
        tried.append((told["places"]["most"], "with its ranks elsewhere"))
    tried.append((now, "as it is"))
    most, when = max(tried, key=lambda one: one[0])
    found = f"By '{told['scheme']}' it takes {now:.4g} s"
    if math.isinf(most):
        return f"{found}; {when} some hosts have no path."
    if most <= now * (1 + 1e-9):
        return (
            f"{found}; nothing that was tried makes it longer." if len(tried) > 1 else f"{found}."
        )
    return f"{found}, at most {most / now:.2f} times as long: {when}." if now else f"{found}."


_KINDS = ("cables", "switches")


def _failing(told: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """Returns the kinds of what can fail, and what that costs."""
    return [(kind, told[kind]) for kind in _KINDS if told[kind]["number"]]


def _which(failure: dict[str, Any]) -> str:
    from gradwire.network.fabric import Link

    ends = failure["which"], failure["to"]
    return Link(*ends, failure["cable"]).name if failure["to"] else str(ends[0])


def _table(told: dict[str, Any]) -> tuple[tuple[str, ...], list[tuple[str, str, str]]]:
    """Returns headers and rows, as they are printed."""
    now = told["seconds"]

    def row(name: str, seconds: float) -> tuple[str, str, str]:
        return name, f"{seconds:.4g}", f"{seconds / now:.2f}" if now else "–"

    rows = [row("as it is", now)]
    for kind, own in _failing(told):
        rows.append(row(f"one of {own['number']} {kind} fails, median", own["median"]))
        rows.append(row(f"the worst: {_which(own)}", own["worst"]))
    rows += [row(f"{v['name']} = {v['value']}", v["seconds"]) for v in told["vary"]]
    if told["places"]:
        rows.append(row("ranks in order", told["places"]["in_order"]))
        rows.append(row("ranks anywhere, median", told["places"]["median"]))
        rows.append(row("ranks anywhere, most", told["places"]["most"]))
    return (f"paths by {told['scheme']}", "seconds", "× as it is"), rows

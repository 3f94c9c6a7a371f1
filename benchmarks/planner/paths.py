"""All paths of ByteComp's tree for a real job: how many are useful, and do they win?

    python benchmarks/planner/paths.py many_small --hosts 2 --procs-per-host 2 --rate 200mbit

One job in the lab: attach(model, "auto", strategies=[…, "topk(0.01)+ef | paths"]) watches,
measures, prices all paths, measures those that are offered, lets plans race and adopts one. Then
the best plans of paths, of whole strategies and of the published planners, all for the same
profile, take turns on real steps. It also compares each path's price, from single moves and the
compressor, with the time that it took as a whole.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import torch
import torch.distributed as dist
from models import MODELS
from predicted import differ, rounds_of, tuned
from published import TOPK, plans_of
from turns import measure, seconds_of

from gradwire.lab import Cluster
from gradwire.plan import Plan
from gradwire.planner.candidates import FP32, timeline_of
from gradwire.planner.choose import choose
from gradwire.planner.links import sizes_of
from gradwire.planner.paths import Offer, offer
from gradwire.planner.profile import Profile
from gradwire.report.table import Table
from gradwire.soundness import sound
from gradwire.tuning import auto
from gradwire.tuning.paths import with_measured_paths

PATTERN = "topk(0.01)+ef | paths"
LEVELS = "topk(0.01)+ef | hierarchical"
WHOLE = (TOPK, "int8+ef | alltoall")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model", choices=[*MODELS])
    parser.add_argument("--hosts", type=int, default=2)
    parser.add_argument("--procs-per-host", type=int, default=2)
    parser.add_argument("--rate", default="1gbit")
    parser.add_argument("--rounds", type=int, nargs=2, default=(4, 8), help="at least, at most")
    parser.add_argument("--patience", type=float, default=60.0, help="seconds, for calm turns")
    parser.add_argument(
        "--corrections", type=int, default=2, help="races after the first, at most"
    )
    parser.add_argument("--json", type=Path)
    parser.add_argument("--profile", type=Path, help="written, for a closer look")
    arguments = parser.parse_args()
    if "RANK" in os.environ:
        work(arguments)
        return 0
    each = arguments.procs_per_host
    with Cluster(arguments.hosts, arguments.rate, procs_per_host=each) as cluster:
        return cluster.run([sys.executable, *sys.argv])


def work(arguments: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo")
    levels = (LEVELS,) if arguments.hosts > 1 and arguments.procs_per_host > 1 else ()
    auto._CORRECTIONS = arguments.corrections
    began = perf_counter()
    trainer, tuner = tuned(MODELS[arguments.model](), (*WHOLE, *levels, PATTERN))
    took, profile, adopted = perf_counter() - began, tuner.profile, tuner.handle.plan
    assert profile is not None
    tuner.close()
    session = tuner.handle._session
    every = with_measured_paths(profile, session, [PATTERN], lambda text: True)
    plans = named([("adopted", adopted), *contestants(profile, every)])
    predicted = {name: timeline_of(every, plan).iteration_seconds for name, plan in plans.items()}
    rounds = rounds_of(arguments.rounds, list(predicted.values()))
    steps = measure(trainer, list(plans.values()), rounds, arguments.patience)
    seconds = dict(zip(plans, seconds_of(steps)))
    if dist.get_rank() == 0:
        report(arguments, every, plans, predicted, seconds, took)
    dist.barrier()
    sys.stdout.flush()
    os._exit(0)  # torch 2.13 sometimes aborts while it shuts down Gloo's threads


def contestants(profile: Profile, every: Profile) -> Iterator[tuple[str, Plan]]:
    """Yields plans. profile: with paths that are sound with SGD; every: with all paths that are
    offered."""
    own, all_paths = paths_of(profile), paths_of(every)
    whole = [text for text in profile.strategies if text not in own]
    yield "auto's choice", choose(profile).best.plan
    yield "whole strategies", choose(profile, whole).best.plan
    if own:
        yield "paths that are sound", choose(profile, [*own, FP32]).best.plan
    if all_paths:
        yield "paths", choose(every, [*all_paths, FP32]).best.plan
    compressed = [text for text in all_paths if text.startswith("topk")]
    yield from plans_of(every, TOPK, compressed).items()
    if LEVELS in whole:
        yield "HiTopKComm", choose(profile, [LEVELS, FP32]).best.plan


def named(plans: Sequence[tuple[str, Plan]]) -> dict[str, Plan]:
    """Returns each plan once; equal plans share it."""
    names, first = dict[int, list[str]](), dict[int, Plan]()
    for name, plan in plans:
        names.setdefault(plan.digest(), []).append(name)
        first.setdefault(plan.digest(), plan)
    return {" = ".join(own): first[digest] for digest, own in names.items()}


def paths_of(profile: Profile) -> list[str]:
    return [text for text in profile.strategies if "| steps(" in text]


def offers(profile: Profile) -> dict[str, Offer]:
    """Returns the paths that the pattern offers beside whole strategies: sound ones, and all."""
    whole = {t: c for t, c in profile.strategies.items() if "| steps(" not in t}
    bare = replace(profile, strategies=whole)
    return {
        "sound": offer(bare, PATTERN, lambda text: sound(text, "sgd").kind == "sound"),
        "all": offer(bare, PATTERN),
    }


def priced_and_measured(profile: Profile, offered: Offer) -> Iterator[tuple[str, float, float]]:
    """Yields seconds of the whole model in one bucket by each path: from its parts, and as
    measured."""
    n = sizes_of(profile)[-1]
    for text, parts in offered.strategies.items():
        both = parts, profile.cost(text)
        yield text, *(cost.encode(n) + cost.wire(n) + cost.decode(n) for cost in both)


def report(
    arguments: argparse.Namespace, profile: Profile, plans: dict[str, Plan],
    predicted: dict[str, float], seconds: dict[str, list[float]], took: float,
) -> None:  # fmt: skip
    found = offers(profile)
    priced = list(priced_and_measured(profile, found["all"]))
    middle = {name: median(own) for name, own in seconds.items()}
    best = min(middle, key=lambda name: middle[name])
    print(f"{arguments.model}, {arguments.hosts} × {arguments.procs_per_host}, {arguments.rate}: "
          f"adopted after {took:.0f} s")  # fmt: skip
    for name, own in found.items():
        print(f"{name}: {own}")
    rows = [(text, f"{1e3 * a:.1f}", f"{1e3 * b:.1f}", f"{100 * (a / b - 1):+.0f} %")
            for text, a, b in priced]  # fmt: skip
    print(Table(("path", "by parts, ms", "measured, ms", "off"), rows).as_markdown())
    ordered = sorted(middle, key=lambda name: middle[name])
    print(Table(HEADERS, [_row(n, plans[n], predicted[n], seconds, best) for n in ordered])
          .as_markdown())  # fmt: skip
    if arguments.profile:
        profile.save(arguments.profile)
    if arguments.json:
        document = {
            "model": arguments.model, "hosts": arguments.hosts, "rate": arguments.rate,
            "procs_per_host": arguments.procs_per_host, "settled_seconds": took,
            "offers": {name: own.to_json() for name, own in found.items()},
            "priced": priced,
            "plans": {
                name: {
                    "predicted": predicted[name],
                    "seconds": [round(own, 5) for own in seconds[name]],
                    "strategies": sorted({str(s) for s in plan.strategies}),
                    "buckets": len(plan.buckets), "lanes": plan.lanes,
                }
                for name, plan in plans.items()
            },
        }  # fmt: skip
        arguments.json.write_text(json.dumps(document, indent=1) + "\n")


HEADERS = ("plan", "mostly by", "buckets on lanes", "predicted, ms", "measured, ms", "range",
           "than the best")  # fmt: skip


def _row(
    name: str, plan: Plan, predicted: float, seconds: dict[str, Any], best: str
) -> Sequence[str]:
    own = seconds[name]
    slower = (
        "a tie"
        if not differ(own, seconds[best])
        else f"{median(own) / median(seconds[best]):.2f} ×"
    )
    return (
        name, str(plan.main_strategy), f"{len(plan.buckets)} on {plan.lanes}",
        f"{1e3 * predicted:.1f}", f"{1e3 * median(own):.1f}",
        f"{1e3 * min(own):.1f} – {1e3 * max(own):.1f}", "" if name == best else slower,
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())

"""Predicted against measured step times, plan by plan, on one emulated network.

    python benchmarks/planner/predicted.py many_small --hosts 2 --rate 1gbit

One job: watches and measures as attach(model, "auto") does, takes a dozen plans or more (every
strategy × the planner's own groups, one bucket, four, one per parameter, one lane and two),
predicts their steps, and then lets them take turns on real ones.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median
from time import perf_counter
from typing import Any

import mergecomp
import torch
import torch.distributed as dist
from models import MODELS, REMEMBERED, Training
from replay import REPLAYS
from turns import (
    COUNTED,
    UNCOUNTED,
    Step,
    Trainer,
    against,
    kendall,
    measure,
    niced_seconds,
    parts,
    seconds_of,
    wait_for_quiet,
)

import gradwire
from gradwire.dynamics import PLAIN, Dynamics, has_vectors_apart
from gradwire.lab import Cluster
from gradwire.plan import Plan
from gradwire.planner.candidates import FP32, timeline_of
from gradwire.planner.choose import choose
from gradwire.planner.profile import Profile
from gradwire.planner.timeline import Timeline
from gradwire.report.table import Table
from gradwire.strategy import Strategy
from gradwire.tuning.attach import TunedHandle
from gradwire.tuning.auto import Tuner
from gradwire.tuning.profiling import OF_MACHINES

STRATEGIES = (
    "none | allreduce", "bf16 | allreduce", "topk(0.01)+ef | allgather",
    "sign(scaled=True)+ef | allgather",
)  # fmt: skip
JOBS = {**MODELS, **REMEMBERED, **REPLAYS}
_NEAR = 1.25  # times the best plan's median of a few turns


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model", choices=[*JOBS])
    parser.add_argument("--hosts", type=int, default=2)
    parser.add_argument("--procs-per-host", type=int, default=1)
    parser.add_argument("--rate", default="1gbit", help="or loopback")
    parser.add_argument(
        "--rounds", type=int, nargs=2, default=(4, 10),
        help="turns of each plan: at least, and at most, if all take a minute or so",
    )  # fmt: skip
    parser.add_argument(
        "--finals", type=int, default=8, help="more turns of what may be the best, and of bf16"
    )
    parser.add_argument("--strategies", nargs="*")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--profile", type=Path, help="written, for a closer look")
    parser.add_argument(
        "--wrong",
        type=float,
        nargs="*",
        default=(),
        help="race again with all moves this many times as slow in the profile",
    )
    parser.add_argument("--patience", type=float, default=200.0, help="seconds, for calm turns")
    parser.add_argument("--parts", action="store_true")
    arguments = parser.parse_args()
    if "RANK" in os.environ:
        work(arguments)
        return 0
    loopback = arguments.rate == "loopback"
    rate = "1gbit" if loopback else arguments.rate
    hosts, each = arguments.hosts, arguments.procs_per_host
    with Cluster(hosts, rate, procs_per_host=each, loopback=loopback) as cluster:
        return cluster.run([sys.executable, *sys.argv])


def work(arguments: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo")
    training = JOBS[arguments.model]()
    wait_for_quiet(arguments.patience)
    began, others = perf_counter(), niced_seconds()
    levels = OF_MACHINES if arguments.hosts > 1 and arguments.procs_per_host > 1 else ()
    usual = () if arguments.model in REMEMBERED else (*STRATEGIES, *levels)
    trainer, tuner = tuned(training, arguments.strategies or training.strategies or usual)
    took = perf_counter() - began
    others = (niced_seconds() - others) / took
    profile = tuner.profile
    assert profile is not None
    raced = {plan.digest(): median(own) for plan, own in tuner.raced}
    plans = {"adopted": trainer.handle.plan}
    for factor in arguments.wrong:
        tuner.plan_again(profile.slowed(factor))
        settle(trainer, tuner)
        plans[f"adopted, wires × {factor:g}"] = trainer.handle.plan
    tuner.close()
    plans |= contestants(profile, plans["adopted"])
    for text in usual:
        if "+ef" in text and profile.measured(text):
            plans[f"{short_name(text)}, mergecomp, 1"] = mergecomp.measured(trainer, profile, text)
    plans = only_once(plans)
    predicted = {name: timeline_of(profile, plan) for name, plan in plans.items()}
    rounds = rounds_of(arguments.rounds, [t.iteration_seconds for t in predicted.values()])
    steps = measure(trainer, list(plans.values()), rounds, arguments.patience)
    seconds = dict(zip(plans, seconds_of(steps)))
    best = finalists(seconds)
    more = measure(trainer, [plans[name] for name in best], arguments.finals, arguments.patience)
    for name, own in zip(best, seconds_of(more)):
        seconds[name] += own
    if dist.get_rank() == 0:
        report(arguments, Outcome(profile, raced, plans, predicted, seconds, took, others))
        if arguments.parts:
            print(Table(PART_HEADERS, _parts(predicted, dict(zip(plans, steps)))).as_markdown())
            print(profile.contention)
        if arguments.profile:
            profile.save(arguments.profile)
    dist.barrier()
    sys.stdout.flush()
    os._exit(0)  # torch 2.13 sometimes aborts while it shuts down Gloo's threads


def tuned(training: Training, strategies: Sequence[str] = ()) -> tuple[Trainer, Tuner]:
    """Returns a trainer whose model was watched, measured and planned for. Collective."""
    optimizer = training.make_optimizer(training.model.parameters())
    handle = gradwire.attach(
        training.model, "auto", strategies=strategies or None, optimizer=optimizer
    )
    assert isinstance(handle, TunedHandle)
    trainer = Trainer(training, handle, optimizer)
    settle(trainer, handle.tuner)
    return trainer, handle.tuner


def settle(trainer: Trainer, tuner: Tuner) -> None:
    """Trains until a plan is adopted. Collective."""
    while not tuner.is_settled:
        trainer.step()


def rounds_of(limits: Sequence[int], seconds: Sequence[float]) -> int:
    """Returns as many rounds as take a minute, within limits."""
    fewest, most = limits
    return max(fewest, min(most, int(60 / (sum(seconds) * (UNCOUNTED + COUNTED)))))


def finalists(seconds: dict[str, list[float]]) -> list[str]:
    """Returns the adopted plans, all that a few lucky turns may have made the best, and the best
    bf16."""
    middle = {name: median(own) for name, own in seconds.items()}
    best, dense = min(middle.values()), [name for name in middle if name.startswith("bf16")]
    fastest = {min(dense, key=lambda name: middle[name])} if dense else set()
    return [
        name for name in middle
        if middle[name] <= _NEAR * best or name.startswith("adopted") or name in fastest
    ]  # fmt: skip


def only_once(plans: dict[str, Plan]) -> dict[str, Plan]:
    """Returns each plan once; adopted ones always stay, under their own names."""
    seen, found = set[int](), dict[str, Plan]()
    for name, plan in plans.items():
        if name.startswith("adopted") or plan.digest() not in seen:
            found[name] = plan
        seen.add(plan.digest())
    return found


def contestants(profile: Profile, adopted: Plan) -> dict[str, Plan]:
    """Returns a dozen plans or more, each of which can follow any other."""
    return dict(_every(profile, Dynamics.of(adopted.main_strategy)))


def _every(profile: Profile, dynamics: Dynamics) -> Iterator[tuple[str, Plan]]:
    yield "chosen", choose(profile, dynamics=dynamics).best.plan
    largest = sum(p.bytes for p in profile.parameters)
    ordered = list(reversed(profile.parameters))  # as registered: last is ready first
    caps = {"25 MB": 25 << 20, "one": largest, "four": -(-largest // 4), "layer-wise": 1}
    whole = dynamics.take(FP32)
    taken = (dynamics.take(text) for text in profile.strategies)
    for text in dict.fromkeys(text for text in taken if text and profile.measured(text)):
        short, strategy = short_name(text), Strategy.parse(text)
        own = list(dict.fromkeys((text, whole or text)))
        for lanes in (1, 2):
            yield f"{short}, planned, {lanes}", planned(profile, own, lanes, dynamics)
        apart = [p.name for p in ordered if len(p.shape) <= 1] * has_vectors_apart(strategy)
        for caption, cap in caps.items():
            for lanes in (1, 2) if caption == "four" else (2,):
                made = Plan.make(ordered, strategy, bucket_bytes=cap, lanes=lanes, dense=apart)
                yield f"{short}, {caption}, {lanes}", made


def short_name(strategy: str) -> str:
    """Returns a strategy's compressor, with "levels " before it if the strategy sums inside
    machines first."""
    parsed = Strategy.parse(strategy)
    compressor = str(parsed.compressor)
    if parsed.collective.per_node is not None:
        return f"levels {compressor}"
    return f"{compressor}, {parsed.collective}" if compressor.startswith("lloyd") else compressor


def planned(
    profile: Profile, strategies: Sequence[str], lanes: int, dynamics: Dynamics = PLAIN
) -> Plan:
    """Returns the planner's own groups for these strategies."""
    return choose(profile, strategies, lanes=[lanes], dynamics=dynamics).best.plan


@dataclass
class Outcome:
    """The outcome of one job. raced: seconds of a step in the race, by digest, of the plans whose
    steps the profile knows. took: seconds until the first plan was adopted. others: the share of a
    processor that other work had meanwhile."""

    profile: Profile
    raced: dict[int, float]
    plans: dict[str, Plan]
    predicted: dict[str, Timeline]
    seconds: dict[str, list[float]]
    took: float
    others: float

    def document(self) -> dict[str, Any]:
        """Returns the content of the JSON file."""
        return {
            "settled_seconds": self.took, "others": self.others,
            "contention": self.profile.contention.to_json(),
            "plans": {
                name: {
                    "predicted": self.predicted[name].iteration_seconds,
                    "seconds": [round(seconds, 5) for seconds in own],
                    "strategy": str(self.plans[name].main_strategy),
                    "buckets": len(self.plans[name].buckets), "lanes": self.plans[name].lanes,
                    "race_seconds": self.raced.get(self.plans[name].digest()),
                }
                for name, own in self.seconds.items()
            },
        }  # fmt: skip


def report(arguments: argparse.Namespace, outcome: Outcome) -> None:
    seconds = outcome.seconds
    middle = {name: median(own) for name, own in seconds.items()}
    guess = {name: own.iteration_seconds for name, own in outcome.predicted.items()}
    errors = {name: abs(guess[name] - middle[name]) / middle[name] for name in middle}
    unseen = [errors[name] for name in errors if outcome.plans[name].digest() not in outcome.raced]
    guesses, found, own = list(guess.values()), list(middle.values()), list(seconds.values())
    tau = kendall(guesses, found)
    beyond = kendall(guesses, found, lambda i, j: differ(own[i], own[j]))
    rows = [
        (
            name, f"{1e3 * guess[name]:.1f}", f"{1e3 * middle[name]:.1f}",
            f"{100 * (guess[name] / middle[name] - 1):+.0f} %",
            f"{1e3 * min(seconds[name]):.1f} – {1e3 * max(seconds[name]):.1f}",
        )
        for name in sorted(middle, key=middle.__getitem__)
    ]  # fmt: skip
    place = f"{arguments.hosts} hosts of {arguments.procs_per_host}, {arguments.rate}"
    print(
        f"{arguments.model}, {place}: MAPE {100 * mean(errors.values()):.1f} % "
        f"({100 * mean(unseen):.1f} % of those that had not raced), τ {tau:.2f} "
        f"({beyond:.2f} of pairs that differ beyond noise), {len(rows)} plans, adopted after "
        f"{outcome.took:.0f} s (others had {100 * outcome.others:.0f} %)\n"
    )
    print(Table(("plan", "predicted, ms", "measured, ms", "off", "range"), rows).as_markdown())
    if arguments.json:
        document = {
            "model": arguments.model, "hosts": arguments.hosts, "rate": arguments.rate,
            "procs_per_host": arguments.procs_per_host, "mape": mean(errors.values()),
            "mape_unseen": mean(unseen), "tau": tau, "tau_beyond_noise": beyond,
            **outcome.document(),
        }  # fmt: skip
        arguments.json.write_text(json.dumps(document, indent=1) + "\n")


def differ(one: Sequence[float], other: Sequence[float]) -> bool:
    """Whether one plan is faster than another beyond noise."""
    _, low, high = against(one, [other])
    return not low <= 1.0 <= high


PART_HEADERS = ("plan: predicted/measured, ms", "around", "backward", "exposed", "encode", "wire",
                "decode")  # fmt: skip


def _parts(
    predicted: dict[str, Timeline], steps: dict[str, list[Step]]
) -> Iterator[tuple[str, ...]]:
    for name, timeline in predicted.items():
        own = parts(steps[name])
        spans = {
            kind: sum(s.seconds for s in timeline.spans if s.kind == kind)
            for kind in ("encode", "wire", "decode")
        }
        guess = {
            "around": timeline.executor.around_seconds, "backward": timeline.backward_end_seconds,
            "exposed": timeline.exposed_seconds, **spans,
        }  # fmt: skip
        own["around"] = own["whole"] - own["backward"] - own["exposed"]
        yield name, *(f"{1e3 * guess[k]:.1f} / {1e3 * own[k]:.1f}" for k in guess)


if __name__ == "__main__":
    sys.exit(main())

"""How far from the best possible are the choices that the search finds?

    OMP_NUM_THREADS=1 python benchmarks/planner/gap.py [--json FILE]

1. Random two-level instances, small enough to try every choice: the search, the published greedy
   (Algorithm 1 on the same timeline), one option for all, no compression, against the best.
2. A model of 314 tensors with all options of the tree, on four networks: time to search, and how
   much better any choice could be at most.
3. What one evaluation of 300 jobs takes.

Times are of the processor, so that other work on the machine does not count.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path as File

import torch
from options import Costs, paths

from gradwire.kernels.choices import undominated
from gradwire.kernels.schedule import simulate_step
from gradwire.planner.bytecomp import Option, Tensor, greedy
from gradwire.planner.search import Alternatives, chosen, exhaust, search
from gradwire.planner.timeline import Executor, Resource, machine, step_seconds, tensors
from gradwire.tasks import Path

INSTANCES = 800
OPTIONS = 6
PATHS = paths()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--instances", type=int, default=INSTANCES)
    parser.add_argument("--json", metavar="FILE", help="write the numbers here; - for the output")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    result = {
        "small": small(arguments.instances),
        "large": [large(*row) for row in NETWORKS],
        "evaluation": [evaluation(lanes) for lanes in (1, 2, 4)],
    }
    text = json.dumps(result, indent=1)
    if arguments.json == "-":
        print(text)
    elif arguments.json:
        File(arguments.json).write_text(text + "\n", encoding="utf-8")
    return 0


# -- small instances --------------------------------------------------------------------------


def between(rng: random.Random, low: float, high: float) -> float:
    """Draws a number; each order of magnitude is equally likely."""
    return math.exp(rng.uniform(math.log(low), math.log(high)))


def cluster(rng: random.Random) -> Costs:
    return Costs(
        machines=rng.choice((2, 4, 8)),
        ranks=rng.choice((2, 4, 8)),
        node_start_seconds=between(rng, 3e-6, 3e-5),
        node_bytes_per_second=between(rng, 2e9, 1e11),
        cross_start_seconds=between(rng, 1e-5, 2e-4),
        cross_bytes_per_second=between(rng, 1e8, 1e10),
        density=rng.choice((0.0, 0.001, 0.01)),
        gpu_start_seconds=between(rng, 1e-5, 1e-4),
        gpu_elements_per_second=between(rng, 1e9, 2e10),
        cpu_start_seconds=between(rng, 1e-5, 5e-5),
        cpu_elements_per_second=between(rng, 2e8, 4e9),
    )


def instance(rng: random.Random) -> tuple[list[int], list[Alternatives], Executor]:
    """Returns sizes, jobs and an executor: backward takes about as long as the uncompressed
    wire."""
    own, jobs = cluster(rng), rng.randint(5, 8)
    sizes = [int(between(rng, 1e4, 2e7)) for _ in range(jobs)]
    plain = [p for p in PATHS if not p.compressions]
    coded = rng.sample([p for p in PATHS if p.compressions], OPTIONS - 1)
    drawn: list[tuple[Path, Resource]] = [(rng.choice(plain), Resource.COMPUTE)]
    drawn += [(path, rng.choice((Resource.COMPUTE, Resource.WORKERS))) for path in coded]
    options = [tuple(own.stages(p, size, lane) for p, lane in drawn) for size in sizes]
    wire = sum(stage.seconds for job in options for stage in job[0])
    ready = ready_seconds([rng.random() + 0.1 for _ in sizes], wire * between(rng, 0.1, 2.0))
    executor = Executor(
        lanes=rng.choice((1, 2)),
        cores=rng.choice((math.inf, 2.0, 4.0)),
        wire_demand=rng.choice((0.0, 0.3)),
        workers=rng.choice((1.0, 2.0)),
        backward_seconds=ready[-1],
    )
    return sizes, [Alternatives(r, o) for r, o in zip(ready, options)], executor


def ready_seconds(shares: Sequence[float], backward: float) -> list[float]:
    total, at, ready = sum(shares), 0.0, []
    for share in shares:
        at += share / total * backward
        ready.append(at)
    return ready


def published(sizes: Sequence[int], jobs: Sequence[Alternatives], executor: Executor) -> float:
    """Runs Algorithm 1 with the same timeline as evaluator."""
    own = [
        Tensor(job.ready_seconds, size, tuple(Option(stages) for stages in job.options))
        for job, size in zip(jobs, sizes)
    ]
    found = greedy(own, lambda tried: step_seconds(tried, executor), executor)
    return step_seconds(chosen(jobs, [choice.option for choice in found]), executor)


def uniform(jobs: Sequence[Alternatives], executor: Executor) -> float:
    options = range(len(jobs[0].options))
    return min(step_seconds(chosen(jobs, [o] * len(jobs)), executor) for o in options)


def small(instances: int) -> dict[str, object]:
    rng = random.Random(1)
    gaps: dict[str, list[float]] = {
        name: [] for name in ("search", "published greedy", "one option for all", "no compression")
    }
    bounds, seconds = [], []
    for _ in range(instances):
        sizes, jobs, executor = instance(rng)
        best = exhaust(jobs, executor).seconds
        began = time.thread_time()
        found = search(jobs, executor)
        seconds.append(time.thread_time() - began)
        assert found.lower_bound <= best * (1 + 1e-9), "not a bound"
        bounds.append(best / found.lower_bound - 1)
        reached = (
            found.seconds, published(sizes, jobs, executor), uniform(jobs, executor),
            step_seconds(chosen(jobs, [0] * len(jobs)), executor),
        )  # fmt: skip
        for name, own in zip(gaps, reached):
            gaps[name].append(own / best - 1)
    rows = {name: spread(own) for name, own in gaps.items()}
    rows["the bound, below the best"] = spread(bounds)
    print(f"{instances} instances of 5 to 8 jobs, {OPTIONS} options; percent above the best")
    print(f"{'':28}   best    mean  median     p95   worst")
    for name, row in rows.items():
        cells = "".join(f"{100 * row[key]:8.2f}" for key in ("mean", "median", "p95", "worst"))
        print(f"{name:28}{100 * row['optimal']:6.1f}%{cells}")
    print(f"a search takes {1e3 * statistics.median(seconds):.1f} ms", flush=True)
    return {"instances": instances, "gaps": rows, "search_seconds": statistics.median(seconds)}


def spread(gaps: Sequence[float]) -> dict[str, float]:
    """Summarizes gaps. optimal: the share within 1e-9 of the best."""
    own = sorted(gaps)
    return {
        "optimal": sum(gap < 1e-9 for gap in own) / len(own),
        "mean": statistics.fmean(own),
        "median": statistics.median(own),
        "p95": own[int(0.95 * (len(own) - 1))],
        "worst": own[-1],
    }


# -- a model with all options ------------------------------------------------------------------

NETWORKS = (
    ("100 Gb/s, NVLink", 1.25e10, 1e11, (Resource.COMPUTE,)),
    ("25 Gb/s, PCIe", 3.1e9, 1e10, (Resource.COMPUTE,)),
    ("10 Gb/s, PCIe", 1.25e9, 1e10, (Resource.COMPUTE,)),
    ("10 Gb/s, PCIe, both devices", 1.25e9, 1e10, (Resource.COMPUTE, Resource.WORKERS)),
)


def model(rng: random.Random) -> list[int]:
    """Returns 314 tensors, 44.6 M elements, with as many small ones as ResNet-101 has."""
    sizes = [rng.choice((64, 128, 256, 512, 1024, 2048)) for _ in range(209)]
    sizes += [int(between(rng, 4e3, 2.4e6)) for _ in range(104)]
    rng.shuffle(sizes)
    return [2_048_000, *sizes]


def large(name: str, cross: float, node: float, lanes: Sequence[Resource]) -> dict[str, object]:
    """Searches for 8 machines of 8 ranks, two lanes of the conductor, 120 ms of backward."""
    rng = random.Random(1)
    own = Costs(8, 8, 1e-5, node, 3e-5, cross, 0.01, 2e-5, 1e10, 2e-5, 1e9)
    sizes = model(rng)
    drawn = [(p, lane) for p in PATHS for lane in lanes if lane == lanes[0] or p.compressions]
    ready = ready_seconds([math.sqrt(size) for size in sizes], 0.12)
    jobs = [
        Alternatives(r, tuple(own.stages(p, size, lane) for p, lane in drawn))
        for r, size in zip(ready, sizes)
    ]
    executor = Executor(lanes=2, workers=2.0, backward_seconds=0.12)
    took = []
    for _ in range(5):
        began = time.thread_time()
        found = search(jobs, executor)
        took.append(time.thread_time() - began)
    inner = tensors([job.ready_seconds for job in jobs], [job.options for job in jobs])
    row = {
        "network": name,
        "options": len(drawn),
        "kept": statistics.fmean(undominated(inner)),
        "search_seconds": statistics.median(took),
        "search_seconds_range": [min(took), max(took)],
        "step_seconds": found.seconds,
        "no_compression_seconds": step_seconds(chosen(jobs, [0] * len(jobs)), executor),
        "one_option_seconds": uniform(jobs, executor),
        "gap": found.gap,
        "evaluations": found.evaluations,
    }
    print(
        f"{name}: {len(jobs)} jobs × {len(drawn)} options, {row['kept']:.1f} kept; "
        f"{statistics.median(took):.2f} s; step {1e3 * found.seconds:.1f} ms, none "
        f"{1e3 * float(row['no_compression_seconds']):.1f}, one for all "
        f"{1e3 * float(row['one_option_seconds']):.1f}; gap at most {100 * found.gap:.2f} %; "
        f"{found.evaluations:.0f} evaluations",
        flush=True,
    )
    return row


# -- one evaluation ------------------------------------------------------------------------------


def evaluation(lanes: int, jobs: int = 300, repeats: int = 2000) -> dict[str, float]:
    """Times an evaluation of jobs of encode, latency, wire, decode: per call from Python, and
    inside one call."""
    rng = random.Random(1)
    chain = (Resource.WORKERS, Resource.LATENCY, Resource.CROSS, Resource.WORKERS)
    options = [[[(lane, rng.random()) for lane in chain]] for _ in range(jobs)]
    own = tensors([0.3 * i for i in range(jobs)], options)
    whole = machine(own, Executor(lanes=lanes, cores=2.0, wire_demand=0.3, workers=2.0))
    choice = torch.zeros(jobs, dtype=torch.int32)
    began = time.thread_time()
    for _ in range(repeats):
        simulate_step(own, whole, choice)
    call = (time.thread_time() - began) / repeats
    began = time.thread_time()
    simulate_step(own, whole, choice, repeats)
    inner = (time.thread_time() - began) / repeats
    print(f"{jobs} jobs, {lanes} lanes: {1e6 * call:.1f} us a call, {1e6 * inner:.1f} us inside")
    return {"lanes": lanes, "call_seconds": call, "inner_seconds": inner}


if __name__ == "__main__":
    sys.exit(main())

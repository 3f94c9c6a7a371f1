"""gradwire bench conductor: what a bucket costs beyond its kernels and the wire.

One rank, many small buckets, so that the wire is a loop-back and only our own work is left:

    overhead = (time of a step's exchange - the same kernels and moves in a plain loop) / buckets

Both are measured in turn, in one process, on the same tensors. Kernels and moves alternate in the
loop as they do in the exchange: a move that comes right after a move is several times cheaper,
because it finds Gloo's own thread still awake.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Any

from gradwire.cli.arguments import add_quiet, whole
from gradwire.cli.progress import telling
from gradwire.errors import UsageError
from gradwire.progress import Progress, each, silent
from gradwire.strategy import Strategy

TARGET_SECONDS = 40e-6


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the benchmark's arguments."""
    add = parser.add_argument
    number = "number of buckets in a step (default: %(default)s)"
    add("--buckets", type=whole(1, 4096), default=64, metavar="N", help=number)
    size = "fp32 elements of each bucket (default: %(default)s)"
    add("--elements", type=whole(1, 1 << 26), default=4096, metavar="N", help=size)
    steps = "number of steps to measure (default: %(default)s)"
    add("--repeats", type=whole(1), default=200, metavar="N", help=steps)
    lanes = "number of lanes (default: %(default)s)"
    add("--lanes", type=whole(1, 16), default=1, metavar="N", help=lanes)
    strategy = "strategy of all buckets, by allgather (default: %(default)s)"
    add("--strategy", default="dgc(0.01) | allgather", metavar="TEXT", help=strategy)
    add("--json", action="store_true", help="print one JSON document to stdout")
    add_quiet(parser)


def run(arguments: argparse.Namespace) -> int:
    """Measures and prints; returns the exit code. Raises GradwireError for a strategy that cannot
    be read, or whose moves the loop does not make."""
    strategy = Strategy.parse(arguments.strategy)
    if str(strategy.collective) != "allgather":
        raise UsageError(
            "--strategy must be by allgather, whose moves the loop makes; got "
            f"'{strategy}'. Use '{str(strategy).partition(' | ')[0]} | allgather'."
        )
    with telling(arguments, "bench conductor", beside=False) as progress:
        result = _alone(arguments, progress)
    print(json.dumps(result, indent=2) if arguments.json else _text(result))
    return 0


def _alone(arguments: argparse.Namespace, progress: Progress) -> dict[str, Any]:
    """Measures in a process group of one rank."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        store = torch._C._distributed_c10d.FileStore(str(Path(folder) / "store"), 1)
        dist.init_process_group("gloo", store=store, rank=0, world_size=1)
        try:
            return measure(
                arguments.buckets, arguments.elements, arguments.repeats, arguments.strategy,
                arguments.lanes, progress,
            )  # fmt: skip
        finally:
            dist.destroy_process_group()


def measure(
    buckets: int, elements: int, repeats: int, strategy: str, lanes: int = 1,
    progress: Progress = silent,
) -> dict[str, Any]:  # fmt: skip
    """Returns medians and ranges, in seconds per bucket. Needs a process group of one rank."""
    import torch
    from torch import nn

    import gradwire

    module = nn.Module()
    for i in range(buckets):
        module.register_parameter(f"p{i}", nn.Parameter(torch.zeros(1, elements)))
    handle = gradwire.attach(module, strategy, bucket_bytes=1, lanes=lanes)
    session = handle._session
    gradients = {name: torch.randn(elements) for name, _ in module.named_parameters()}
    parts = {
        "exchange": handle.synchronize,
        "kernels and moves": lambda: _plain_loop(session, gradients),
    }
    times: dict[str, list[float]] = {name: [] for name in parts}
    for repeat in each(progress, "steps", range(repeats + 10), lambda repeat: ""):
        for name, part in parts.items():
            for parameter, p in module.named_parameters():  # a new .grad, as backward gives
                p.grad = gradients[parameter].view_as(p)
            seconds = _time(part)
            if repeat >= 10:
                times[name].append(seconds / buckets)
    handle.detach()
    overhead = [exchange - loop for exchange, loop in zip(*times.values())]
    rows = {name: _range(values) for name, values in [*times.items(), ("overhead", overhead)]}
    facts = {"buckets": buckets, "elements": elements, "strategy": strategy, "lanes": lanes}
    return {**facts, "target_seconds": TARGET_SECONDS, "seconds_per_bucket": rows}


def _plain_loop(session: Any, gradients: dict[str, Any]) -> None:
    """Encodes, exchanges and decodes each bucket, without conductor, header and checks."""
    from gradwire.moves import AllGather
    from gradwire.strategy import Key, StepInfo

    info, performer = StepInfo(session.step), session.conductor.performers[0]
    for context in session.ledger.contexts:
        codec = context.codec
        (encoder,), (state,), (sections,) = codec._encoders, codec.states, codec._sections
        (name,) = context.bucket.names
        key, status = Key(0, 0, name), codec.header.status
        encoder.encode(gradients[name], state, sections, info, key, status)
        performer.perform(AllGather(codec.buffer), "bench")
        context.strategy.compressor.accumulate([sections], gradients[name], 1.0)


def _time(part: Callable[[], object]) -> float:
    began = perf_counter()
    part()
    return perf_counter() - began


def _range(values: list[float]) -> dict[str, float]:
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def _text(result: dict[str, Any]) -> str:
    lines = [
        f"{result['buckets']} buckets of {result['elements']} elements, {result['strategy']}, "
        f"lanes: {result['lanes']}, one rank; microseconds per bucket",
        f"{'':20}{'median':>10}{'min':>10}{'max':>10}",
    ]
    for name, row in result["seconds_per_bucket"].items():
        lines.append(f"{name:20}" + "".join(f"{1e6 * row[k]:10.1f}" for k in row))
    lines.append(f"target: overhead ≤ {1e6 * result['target_seconds']:.0f}")
    return "\n".join(lines)

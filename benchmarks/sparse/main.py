"""The costs of every sparse exchange over the number of workers.

    python benchmarks/sparse/main.py nmt --plot nmt.png
    python benchmarks/sparse/main.py nmt --scale 0.1 --count 2 4 8
    python benchmarks/sparse/main.py --tensors table-*.pt

Bytes and times by formula (sparsity/volumes.py) for a preset up to 4,096 workers, or for recorded
gradients up to as many as there are. With --count tensors are summed in lockstep and bytes
counted. Measured points are in brackets in the tables and are dots in the plot.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from sparsity import costs
from sparsity.counted import recorded

from gradwire.errors import GradwireError, UsageError
from gradwire.lab import parse_rate


def main(arguments: Sequence[str] | None = None) -> int:
    """Computes, draws, prints; returns the exit code, 2 for an error that a better call would
    avoid."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    add_arguments(parser)
    try:
        return run(parser.parse_args(arguments))
    except GradwireError as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return 2


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options."""
    parser.add_argument(
        "preset", nargs="?", default="nmt",
        help="lstm, nmt, bert, deepfm, topk, adversarial, uniform, identical (%(default)s)",
    )  # fmt: skip
    parser.add_argument("--scale", type=float, default=1.0, help="of the preset (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the preset (%(default)s)")
    parser.add_argument(
        "--tensors", type=Path, nargs="+", metavar="FILE",
        help="instead: recorded gradients, as torch.save wrote them, one per worker",
    )  # fmt: skip
    parser.add_argument("--workers", type=int, nargs="+", help="(2, 4, … 4096)")
    parser.add_argument(
        "--count", type=int, nargs="+", default=[], metavar="WORKERS",
        help="also sum so many tensors in lockstep, and count bytes",
    )  # fmt: skip
    parser.add_argument("--rate", default="1gbit", help="of every link (%(default)s)")
    parser.add_argument(
        "--latency-ms", type=float, default=0.1, help="of every wait for others (%(default)s)"
    )
    parser.add_argument(
        "--measured", type=Path, metavar="FILE",
        help='JSON: [{"scheme": "zen", "n": 4, "bytes": 52e6, "seconds": 0.4}, …]',
    )  # fmt: skip
    parser.add_argument("--plot", type=Path, metavar="FILE", help="such as sparse.png")
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout")


def run(arguments: argparse.Namespace) -> int:
    """Computes, draws, prints; returns the exit code. Raises UsageError."""
    if not 0 <= arguments.latency_ms < float("inf"):
        raise UsageError(
            f"latency is 0 ms or more; got {arguments.latency_ms}. Use for example 0.1."
        )
    document = costs.compute(
        arguments.preset, arguments.workers, arguments.scale, arguments.seed,
        costs.read_measured(arguments.measured) if arguments.measured else [],
        recorded=recorded(arguments.tensors) if arguments.tensors else None,
        count=arguments.count, bytes_per_second=parse_rate(arguments.rate) / 8,
        latency_seconds=1e-3 * arguments.latency_ms,
        progress=lambda line: print(line, file=sys.stderr),
    )  # fmt: skip
    if arguments.plot:
        costs.draw(document, arguments.plot)
    if arguments.json:
        print(json.dumps(document, indent=2))
    else:
        tables = (costs.table(document, cost).as_text() for cost in costs.COSTS)
        print("\n\n".join([costs.headline(document), *costs.facts(document), *tables]))
    return 0


if __name__ == "__main__":
    sys.exit(main())

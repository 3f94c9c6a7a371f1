"""Two ranks on one GPU train over an emulated network: DDP's methods and gradwire's, in turn.

Each is a host of its own (`gradwire.lab`, which needs root and Linux), linked at the given rate;
both share the GPU. A row's step is the median after its first steps, which compile.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from gradwire.lab import Cluster

JOB = Path(__file__).with_name("job.py")


class Row(NamedTuple):
    """One run. fresh: its first steps, which do not count."""

    model: str
    rate: str
    how: str
    steps: int
    fresh: int = 2


ROWS = (
    Row("gpt", "1gbit", "ddp", 3, 1),
    Row("gpt", "1gbit", "dgc(0.001) | allgather", 14),
    Row("gpt", "1gbit", "bf16", 3, 1),
    Row("gpt", "1gbit", "topk(0.01)+ef | allgather", 12),
    Row("gpt", "1gbit", "alone", 8),
    Row("convnet", "10gbit", "ddp", 12),
    Row("convnet", "10gbit", "bf16", 12),
    Row("convnet", "10gbit", "dgc(0.001) | allgather", 16),
    Row("convnet", "10gbit", "int8+ef | alltoall", 16),
    Row("gpt", "1gbit", "powersgd", 6, 3),
)


def run(row: Row, limit_seconds: float = 60.0) -> dict[str, Any]:
    """Returns what rank 0 reports, or the reason for a failure."""
    said: list[str] = []

    def listen(rank: int, stream: str, line: str) -> None:
        if rank == 0 and (stream == "stderr" or line.startswith("{")):
            said.append(line)

    with Cluster(hosts=2, rate=row.rate) as cluster:
        command = [sys.executable, str(JOB), row.model, row.how, str(row.steps)]
        code = cluster.run(command, on_line=listen, timeout_seconds=limit_seconds)
    found: Mapping[str, Any] = next((json.loads(x) for x in said if x.startswith("{")), {})
    if code or not found:
        return {**row._asdict(), "failed": said[-3:]}
    step = median(found["seconds"][row.fresh :])
    return {**found, "rate": row.rate, "step seconds": step}


def main() -> None:
    """Prints a line for each row, in the order above, and writes all to a file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-o", "--output", type=Path, help="a JSON file")
    output = parser.parse_args().output
    found = []
    for row in ROWS:
        one = run(row)
        found.append(one)
        step = f"{1e3 * one['step seconds']:.1f} ms" if "step seconds" in one else one["failed"]
        print(f"{row.model:>8} {row.rate:>7} {row.how:<28} {step}", flush=True)
        if output:
            output.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

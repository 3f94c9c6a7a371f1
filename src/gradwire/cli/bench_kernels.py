"""gradwire bench kernels: the native kernels against torch and this machine's memory."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict

from gradwire.bench.kernels import DENSITY, Row, measure
from gradwire.bench.machine import ELEMENTS, MOST_ELEMENTS, set_allocator
from gradwire.cli.arguments import whole


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add = parser.add_argument
    add("--elements", type=whole(1, MOST_ELEMENTS), default=ELEMENTS, help="(%(default)s)")
    add("--repeats", type=whole(1), default=25, help="turns of each (%(default)s)")
    add("--json", action="store_true", help="one JSON document on stdout")


def run(arguments: argparse.Namespace) -> int:
    """Measure and print; the exit code. Starts the process again to set the allocator. Raises
    KernelError."""
    set_allocator()
    from gradwire.kernels import instruction_set

    rows = measure(arguments.elements, arguments.repeats)
    if arguments.json:
        document = {
            "elements": arguments.elements,
            "density": DENSITY,
            "instruction_set": instruction_set(),
            "rows": [asdict(row) for row in rows],
        }
        print(json.dumps(document, indent=2))
    else:
        print(table(rows))
    return 0


def table(rows: list[Row]) -> str:
    """The rows as a Markdown table."""
    lines = [
        "| kernel | ms, median | ms, range | GB/s | of the memory limit | faster than torch |",
        "| --- | ---: | ---: | ---: | ---: | --- |",
    ]
    for row in rows:
        span = f"{row.seconds_least * 1e3:.2f} – {row.seconds_most * 1e3:.2f}"
        rivals = ", ".join(f"{x:.1f} × {name}" for name, x in row.times_faster_than_torch.items())
        lines.append(
            f"| {row.kernel} | {row.seconds * 1e3:.2f} | {span} "
            f"| {row.bytes_per_second / 1e9:.1f} | {row.fraction_of_memory_limit:.0%} | {rivals} |"
        )
    return "\n".join(lines)

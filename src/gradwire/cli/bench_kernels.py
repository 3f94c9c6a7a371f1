"""gradwire bench kernels: the kernels of processors, or of a GPU, against torch and memory."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict

from gradwire.bench.kernels import DENSITY, Row, measure
from gradwire.bench.machine import ELEMENTS, MOST_ELEMENTS, set_allocator
from gradwire.cli.arguments import add_quiet, whole
from gradwire.cli.progress import telling


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options."""
    add = parser.add_argument
    size = "number of fp32 elements (default: %(default)s)"
    add("--elements", type=whole(1, MOST_ELEMENTS), default=ELEMENTS, metavar="N", help=size)
    turns = "how often each is measured (default: %(default)s)"
    add("--repeats", type=whole(1), default=25, metavar="N", help=turns)
    kinds = "measure the kernels of the CPU (C++) or of a GPU (Triton) (default: %(default)s)"
    add("--device", choices=("cpu", "cuda"), default="cpu", help=kinds)
    add("--json", action="store_true", help="print one JSON document to stdout")
    add_quiet(parser)


def run(arguments: argparse.Namespace) -> int:
    """Measures and prints; returns the exit code. Starts the process again to set the allocator of
    processors. Raises KernelError."""
    if arguments.device == "cpu":
        set_allocator()
    elements, repeats, device = arguments.elements, arguments.repeats, arguments.device
    with telling(arguments, "bench kernels", beside=False) as progress:
        rows = measure(elements, repeats, device, progress)
    if arguments.json:
        document = {
            "elements": arguments.elements,
            "density": DENSITY,
            **_where(arguments.device),
            "rows": [asdict(row) for row in rows],
        }
        print(json.dumps(document, indent=2))
    else:
        print(table(rows))
    return 0


def _where(device: str) -> dict[str, str]:
    """Returns the instruction set, or the GPU's name."""
    if device == "cpu":
        from gradwire.kernels import instruction_set

        return {"instruction_set": instruction_set()}
    import torch

    return {"gpu": torch.cuda.get_device_name()}


def table(rows: list[Row]) -> str:
    """Returns the rows as a Markdown table."""
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

"""gradwire bench compressors: encoding and decoding against the bytes that must move."""

from __future__ import annotations

import argparse
import json
from typing import Any

from gradwire.bench.compressors import measure
from gradwire.bench.machine import ELEMENTS, MOST_ELEMENTS, set_allocator
from gradwire.cli.arguments import add_quiet, whole
from gradwire.cli.progress import telling
from gradwire.report.table import Table

_HEADERS = ("ms", "range", "B/element", "limit, ms", "× limit", "target", "met", "bits/element",
            "bits/kept")  # fmt: skip


def tables(document: dict[str, Any]) -> tuple[str, Table, Table]:
    """Returns what `measure` found: bandwidths in words, and tables of encoding and decoding."""
    n = document["elements"]
    facts = (
        f"{n / 1e6:.3g} M fp32 elements, one thread, {document['instruction_set']}; copy "
        f"{document['copy_bytes_per_second'] / 1e9:.1f} GB/s "
        f"({document['copy_bytes_per_second_least'] / 1e9:.1f} – "
        f"{document['copy_bytes_per_second_most'] / 1e9:.1f}), "
        f"read only {document['read_bytes_per_second'] / 1e9:.1f} GB/s"
    )
    encode = Table(("encode", *_HEADERS), [_cells(row, n) for row in document["encode"]])
    what = f"decode and sum {document['payloads']}"
    return facts, encode, Table((what, *_HEADERS), [_cells(r, n) for r in document["decode"]])


def _cells(row: dict[str, Any], n: int) -> list[str]:
    kept = row["bits_per_kept"]
    return [
        row["name"],
        f"{1e3 * row['seconds']:.2f}",
        f"{1e3 * row['seconds_least']:.2f} – {1e3 * row['seconds_most']:.2f}",
        " / ".join(f"{count / n:.2f}" for count in row["bytes"]),
        " / ".join(f"{1e3 * limit:.2f}" for limit in row["limits_seconds"]),
        " / ".join(f"{ratio:.2f}" for ratio in row["times_limit"]),
        "" if row["target"] is None else f"{row['target']:.1f}",
        {None: "", True: "yes", False: "no"}[row["met"]],
        f"{row['bits_per_element']:.3g}",
        "" if kept is None else f"{kept:.3g}",
    ]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options."""
    add = parser.add_argument
    add(
        "strategies",
        nargs="*",
        help='strategies to measure, such as "topk(0.001)+ef" (default: all)',
    )
    size = "number of fp32 elements (default: %(default)s)"
    add("--elements", type=whole(1, MOST_ELEMENTS), default=ELEMENTS, metavar="N", help=size)
    turns = "how often each is measured (default: %(default)s)"
    add("--repeats", type=whole(1), default=15, metavar="N", help=turns)
    summed = "number of payloads to decode and sum (default: %(default)s)"
    add("--payloads", type=whole(1, 1024), default=8, metavar="N", help=summed)
    add("--json", action="store_true", help="print one JSON document to stdout")
    add_quiet(parser)


def run(arguments: argparse.Namespace) -> int:
    """Measures and prints; returns the exit code. Starts the process again to set the allocator.
    Raises StrategyError and KernelError."""
    set_allocator()
    with telling(arguments, "bench compressors", beside=False) as progress:
        document = measure(
            arguments.strategies, arguments.elements, arguments.repeats, arguments.payloads,
            progress,
        )  # fmt: skip
    if arguments.json:
        print(json.dumps(document, indent=2))
    else:
        facts, encode, decode = tables(document)
        print(f"{facts}\n\n{encode.as_text()}\n\n{decode.as_text()}")
    return 0

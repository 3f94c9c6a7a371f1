"""gradwire bench: one file per benchmark, `bench_<name>.py` beside this one."""

from __future__ import annotations

import argparse
import importlib

BENCHMARKS = {
    "kernels": "each kernel: time, GB/s, ratio to its twin, fraction of the memory limit",
    "compressors": "each compressor: encoding and decoding against the bytes that must move",
    "conductor": "what a bucket costs beyond its kernels and the wire",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of every benchmark."""
    benchmarks = parser.add_subparsers(dest="benchmark", metavar="BENCHMARK", required=True)
    for name, line in BENCHMARKS.items():
        sub = benchmarks.add_parser(name, help=line, description=line[0].upper() + line[1:] + ".")
        _module(name).add_arguments(sub)


def run(arguments: argparse.Namespace) -> int:
    """Run one benchmark; return the exit code."""
    return int(_module(arguments.benchmark).run(arguments))


def _module(name: str):  # type: ignore[no-untyped-def]
    return importlib.import_module(f"gradwire.cli.bench_{name}")

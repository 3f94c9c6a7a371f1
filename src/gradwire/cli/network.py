"""gradwire network: one file per action, `network_<name>.py` beside this one."""

from __future__ import annotations

import argparse
import importlib

ACTIONS = {
    "plan": "schemes side by side, and what to do",
    "simulate": "how long schemes take: the fullest link, fair shares, or every packet",
    "whatif": "what failures, other spines and other places of ranks cost",
    "export": "paths as a job, a simulator or another package's format has them",
    "heatmap": "loads of every leaf and uplink, hashed beside planned, as SVG",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of all actions."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    for name, line in ACTIONS.items():
        sub = actions.add_parser(name, help=line, description=line[0].upper() + line[1:] + ".")
        _module(name).add_arguments(sub)


def run(arguments: argparse.Namespace) -> int:
    """The action; its exit code. Raises NetworkError."""
    return int(_module(arguments.action).run(arguments))


def _module(name: str):  # type: ignore[no-untyped-def]
    return importlib.import_module(f"gradwire.cli.network_{name}")

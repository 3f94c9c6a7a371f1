"""gradwire available: the members of every family."""

from __future__ import annotations

import argparse
import json


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="one JSON document on standard output")


def run(arguments: argparse.Namespace) -> int:
    from gradwire.registry import available

    families = available()
    if arguments.json:
        print(json.dumps(families, indent=2))
        return 0
    for family, members in families.items():
        print(family)
        for name, line in members.items():
            print(f"  {name:16} {line}")
    return 0

"""Calls every function that reaches the extension, with what no sane caller gives.

    python tests/fuzz/main.py --calls 1000000 --seed 0 --processes 2
    python tests/fuzz/main.py --replay kernels.selection.topk:0:1234

What is a finding, and what was found: docs/design/fuzzing.md. Exit status 1: something was found,
or a way into the extension was not reached.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import os
import re
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
os.environ.setdefault("OMP_NUM_THREADS", "1")

if NATIVE := os.environ.get("GRADWIRE_TEST_NATIVE"):  # as of tests/conftest.py
    _spec = importlib.util.spec_from_file_location("gradwire._native", NATIVE)
    assert _spec is not None
    assert _spec.loader is not None
    sys.modules[_spec.name] = importlib.util.module_from_spec(_spec)
    _spec.loader.exec_module(sys.modules[_spec.name])

from harness.calls import call, drawn
from harness.mutants import MUTANTS
from harness.pool import Pool, Report
from harness.reach import Reached
from harness.table import table
from harness.targets import TARGETS


def main() -> int:
    given = _arguments()
    if given.replay:
        return _replay(given.replay)
    reached = Reached()
    if given.mutants:
        return _mutants(given, reached)
    report = _run(given, reached, given.only, given.without)
    is_whole = not given.only and not given.without
    if not is_whole:
        report.missing.clear()
    print(table(report))
    return 1 if report.findings or report.missing else 0


def _run(given: argparse.Namespace, reached: Reached, only: str, checks: list[str]) -> Report:
    targets = [t for t in TARGETS if re.search(only, t.name)]
    pool = Pool(
        targets, reached, seed=given.seed, processes=given.processes, limit=given.limit,
        prepare=lambda: without(checks),
    )  # fmt: skip
    until = time.monotonic() + given.seconds if given.seconds else float("inf")
    return pool.run(given.calls, until)


def _mutants(given: argparse.Namespace, reached: Reached) -> int:
    """Returns 0 if removing each check leads to findings and, with all in place, none occurs."""
    status = 0
    for check, only in MUTANTS.items():
        if _run(given, reached, only, []).findings:
            print(f"{only}: there is a finding with all checks in place")
            status = 1
        found = _run(given, reached, only, [check]).findings
        print(f"without {check}: {', '.join(sorted({what for _, what, _ in found})) or 'NOTHING'}")
        status |= not found
    return status


def without(names: list[str]) -> None:
    """Removes checks, as 'gradwire.kernels.sparse.f', to see that what they prevent is found."""
    for name in names:
        where, _, function = name.rpartition(".")
        own = getattr(importlib.import_module(where), function)
        for module in list(sys.modules.values()):
            if getattr(module, "__name__", "").startswith("gradwire") and any(
                value is own for value in vars(module).values()
            ):
                setattr(module, function, lambda *given, **named: None)


def _replay(key: str) -> int:
    target = next(t for t in TARGETS if t.name == key.partition(":")[0])
    Reached()
    print(drawn(target, key)[1], flush=True)
    outcome = call(target, key)
    print(*outcome, sep="\n")
    return outcome.kind == "found"


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--calls", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--limit", type=float, default=10.0, help="seconds of computing of a call")
    parser.add_argument("--seconds", type=float, default=0.0, help="stop after so many; 0: never")
    parser.add_argument("--only", default="", help="targets whose names match")
    parser.add_argument("--replay", default="", help="one call again: a finding's key")
    parser.add_argument("--mutants", action="store_true", help="whether it finds lost checks")
    parser.add_argument("--without", nargs="*", default=[], help="checks to take away")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())

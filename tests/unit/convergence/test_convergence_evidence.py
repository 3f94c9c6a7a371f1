"""What members claim about optimizers agrees with the benchmark's records."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path
from statistics import fmean, stdev
from types import SimpleNamespace

import pytest

from gradwire import families
from gradwire.strategy import Evidence, Strategy

FAMILIES = (families.COMPRESSORS, families.FEEDBACK, families.COLLECTIVES)
EVIDENCE = [e for family in FAMILIES for member in family.values() for e in member.evidence]


def _rows(suite: SimpleNamespace, evidence: Evidence) -> Iterator[tuple[int, int, object]]:
    """Yields (workers, steps, row) of the method on the task, by the evidence's strategy."""
    method, task = suite.methods.BY_NAME[evidence.method], suite.tasks.TASKS[evidence.task]
    strategy = Strategy.parse(evidence.strategy)
    for name in ("full", "momentum"):
        records = suite.report.read([_page(suite)[0] / f"{name}.json"])
        own = [r for r in records if r["task"] == evidence.task]
        for (_, workers, steps, density), together in suite.report.groups(own).items():
            if method.strategy(density, task.settings) == strategy:
                for row in suite.report.rows(together):
                    if row.method == evidence.method:
                        yield workers, steps, row


@pytest.mark.parametrize("evidence", EVIDENCE, ids=lambda e: f"{e.task}-{e.method}")
def test_a_row_says_so(suite: SimpleNamespace, evidence: Evidence) -> None:
    """The longest runs that have dense runs beside them support the claim: at some rate the method
    is at least as good as dense at its best rate, among each number of workers that was run; or
    among some it is so at none."""
    found = list(_rows(suite, evidence))
    longest = max(steps for _, steps, _ in found)
    passed = defaultdict[int, list[bool]](list)
    for workers, steps, row in found:
        if steps == longest and row.verdicts:
            passed[workers].append(all(verdict.passed for verdict in row.verdicts))
    assert passed
    assert all(map(any, passed.values())) == evidence.sound
    settings = suite.tasks.TASKS[evidence.task].settings
    has_momentum = settings.optimizer == "sgd" and settings.momentum > 0
    assert ("sgdm" if has_momentum else settings.optimizer) == evidence.optimizer
    warmup = suite.methods.BY_NAME[evidence.method].warmup(settings, longest)
    if evidence.sound and warmup is not None:
        first = evidence.densities or (evidence.begins or 1.0,)
        assert (warmup.densities, warmup.steps) == (first, longest * evidence.warmup)
    assert warmup is not None or not evidence.warmup


FILES = "full", "momentum", "small", "whole"
T = 2.919986
"""Student's t of 95 %, one-sided, for two degrees of freedom."""


def _page(suite: SimpleNamespace) -> tuple[Path, str]:
    folder = Path(suite.report.__file__).parent
    return folder / "results", (folder / "README.md").read_text(encoding="utf-8")


def _tables(text: str) -> dict[str, tuple[list[str], list[str]]]:
    """Returns the tables that the suite prints, by their first lines: rows, and lines below."""
    found = {}
    parts = re.split(r"(?=^\*\*[\w-]+\*\*, density \S+ [\d,]+ steps of)", text, flags=re.MULTILINE)
    for first, _, *lines in map(str.splitlines, parts[1:]):
        rows = takewhile(lambda line: line.startswith("|"), lines)
        below = [line for line in lines if "points; within" in line]
        found[first] = sorted(row.replace(" †", "") for row in rows), below
    return found


def test_tables_of_the_page_are_what_is_printed(suite: SimpleNamespace) -> None:
    """So is what stands below them, where the page has it."""
    results, page = _page(suite)
    known = dict[str, tuple[list[str], list[str]]]()
    for name in FILES:
        known |= _tables(suite.report.tables(suite.report.read([results / f"{name}.json"])))
    shown = _tables(page)
    assert len(shown) == 28
    for first, (rows, below) in shown.items():
        assert rows == known[first][0]
        assert below in ([], known[first][1])


def test_what_the_page_says_of_chance_is_in_the_records(suite: SimpleNamespace) -> None:
    results, page = _page(suite)
    part = page.partition("**How sure is that?**")[2].partition("\n## ")[0]
    records = suite.report.read([results / "full.json"])
    count = 0
    for task, label, mean, most in re.findall(r"\| (.+?) \| (.+?) \| (.+?) % \| (.+?) % \|", part):
        (row,) = [
            row
            for (name, workers, *_), own in suite.report.groups(records).items()
            if (name, workers) == (task, 4)
            for row in suite.report.rows(own)
            if row.label == label and len(row.runs) == 3
        ]
        pairs = zip(row.runs, row.dense, strict=True)
        above = [100 * (own["metric"] / dense["metric"] - 1) for own, dense in pairs]
        bound = fmean(above) + T * stdev(above) / 3**0.5
        assert (f"{fmean(above):+.2f}", f"{bound:.2f}") == (mean, most)
        count += 1
    assert count == 11

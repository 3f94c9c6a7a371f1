"""What members claim about optimizers agrees with the benchmark's records."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from gradwire import families
from gradwire.strategy import Evidence, Strategy

FAMILIES = (families.COMPRESSORS, families.FEEDBACK, families.COLLECTIVES)
EVIDENCE = [e for family in FAMILIES for member in family.values() for e in member.evidence]


def _rows(suite: SimpleNamespace, evidence: Evidence) -> Iterator[tuple[float, int, object]]:
    """Yields (density, steps, row) of the method on the task."""
    folder = Path(suite.report.__file__).parent
    records = json.loads((folder / "results" / "full.json").read_text(encoding="utf-8"))
    own = [r for r in records if r["task"] == evidence.task]
    for (_, _, steps, density), together in suite.report.groups(own).items():
        for row in suite.report.rows(together):
            if row.method == evidence.method:
                yield density, steps, row


@pytest.mark.parametrize("evidence", EVIDENCE, ids=lambda e: f"{e.task}-{e.method}")
def test_a_row_says_so(suite: SimpleNamespace, evidence: Evidence) -> None:
    """The longest runs that have dense runs beside them support the claim: at some rate the method
    is at least as good as dense at its best rate, or at none."""
    found = list(_rows(suite, evidence))
    longest = max(steps for _, steps, _ in found)
    verdicts = [row.verdicts for _, steps, row in found if steps == longest]
    passed = [all(verdict.passed for verdict in both) for both in verdicts if both]
    assert passed
    assert any(passed) == evidence.sound
    density = next(density for density, steps, _ in found if steps == longest)
    method, settings = suite.methods.BY_NAME[evidence.method], suite.tasks.TASKS[evidence.task]
    assert method.strategy(density, settings.settings) == Strategy.parse(evidence.strategy)
    assert settings.settings.optimizer == evidence.optimizer
    warmup = method.warmup(settings.settings, longest)
    if evidence.sound and warmup is not None:
        first = evidence.densities or (evidence.begins or 1.0,)
        assert (warmup.densities, warmup.steps) == (first, longest * evidence.warmup)
    assert warmup is not None or not evidence.warmup

"""Results by number of workers: each number is compared with dense runs of its own."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any


def record(method: str, workers: int, accuracy: float, sent: float) -> dict[str, Any]:
    return {
        "task": "digits-mlp", "method": method, "seed": 0, "workers": workers, "steps": 2000,
        "density": 0.01, "metric": accuracy, "training_loss": 0.02, "bytes_per_step": sent,
        "ms_per_step": 1.0, "metrics": [[2000, accuracy]], "losses": [0.02],
    }  # fmt: skip


RECORDS = [
    record("dense", 4, 97.0, 9000.0), record("gtopk", 4, 96.8, 2000.0),
    record("dense", 32, 98.0, 9900.0), record("gtopk", 32, 97.0, 2500.0),
    record("ef-topk", 32, 97.9, 50_000.0),
]  # fmt: skip


def test_a_row_for_each_method_and_a_column_for_each_number(suite: SimpleNamespace) -> None:
    lines = suite.workers.table(RECORDS).splitlines()
    assert lines[0].startswith("**digits-mlp**, density 0.01, 2,000 steps")
    assert [line for line in lines if line.startswith("| ")] == [
        "| method | 4 workers | 32 workers |",
        "| --- | ---: | ---: |",
        "| dense | 97.00; 9.0 | 98.00; 9.9 |",
        "| ef-topk |  | 97.90 (-0.10, yes); 50.0 |",
        "| gtopk | 96.80 (-0.20, yes); 2.0 | 97.00 (-1.00, **no**); 2.5 |",
    ]


def test_what_the_plot_draws(suite: SimpleNamespace, tmp_path: Path) -> None:
    suite.workers.plot(RECORDS, tmp_path / "workers.png")
    assert (tmp_path / "workers.png").stat().st_size > 10_000

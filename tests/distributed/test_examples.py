"""The examples run as a reader would run them, for a few steps."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
LAST_LINE = {
    "train.py": "bytes sent a step",
    "compare_strategies.py": "dgc(0.01) | allgather",
    "embeddings.py": "ms a step",
}


def test_every_example_is_run() -> None:
    assert {path.name for path in EXAMPLES.glob("*.py")} == set(LAST_LINE)


@pytest.mark.parametrize("name", LAST_LINE)
def test_an_example_runs(name: str) -> None:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]
    ran = subprocess.run(
        [*launcher, "2", str(EXAMPLES / name), "--steps", "3"],
        env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    assert LAST_LINE[name] in ran.stdout.splitlines()[-1]

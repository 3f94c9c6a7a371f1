"""gradwire bench conductor: what a bucket costs, in a job of one rank."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest


@pytest.mark.parametrize("strategy", ["", "none | allreduce"])
def test_every_step_is_measured(strategy: str) -> None:
    """Also by strategies that remember, as the default does: a step has gradients of its own."""
    options = ["--buckets", "2", "--elements", "64", "--repeats", "3", "--json"]
    options += ["--strategy", strategy] if strategy else []
    done = subprocess.run(
        [sys.executable, "-m", "gradwire", "bench", "conductor", *options],
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    found = json.loads(done.stdout)
    assert found["seconds_per_bucket"]["exchange"]["median"] > 0
    assert found["strategy"] == (strategy or "dgc(0.01) | allgather")

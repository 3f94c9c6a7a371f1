"""The kernels of CUDA compile to machine code for each architecture, without a device."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")
STREAMING = {
    "mark", "encode", "inverted", "put_back", "add_dense", "add_scaled", "cast_all", "look",
    "step_all", "encode_powers", "top_of_all", "choose",
}  # fmt: skip
"""Kernels that are bound by reading numbers once, with wide loads where everything is aligned."""
FRAME = 64
"""Bytes of stack that ptxas may use for itself when nothing is spilled."""
MOST_REGISTERS = 255
"""The most registers that a thread can have; any beyond are spilled."""


@pytest.mark.parametrize(
    "given",
    [
        pytest.param(["90"], id="some for 9.0"),
        pytest.param(["80", "90", "100", "every"], id="all", marks=pytest.mark.full),
    ],
)
def test_none_spills_fuses_or_flushes(given: list[str]) -> None:
    """No kernel spills, fuses or flushes: the last two would give other numbers than the twins."""
    program = Path(__file__).with_name("compiling.py")
    done = subprocess.run(
        [sys.executable, program, *given], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(rows) >= 30
    for row in rows:
        assert row["LOCAL"] == 0, f"spills: {row}"
        assert row["STACK"] <= FRAME, f"spills: {row}"
        assert row["fused"] == row["flushed"] == row["divided"] == 0, f"other numbers: {row}"
        assert row["REG"] <= MOST_REGISTERS
        if row["kernel"] in STREAMING and row["constants"].get("aligned") != "False":
            assert row["wide"] > 0, f"no wide loads: {row}"

"""Packets take as long as in another simulator, uet-htsim, whose numbers were measured once.

Both simulated benchmarks/network/htsim/cells.py; with the other's source, compare.py beside it
measures both again.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from gradwire.network.native import core
from scripts import BENCHMARKS, script

MOST = 0.05
"""The largest relative difference in time, longer or shorter."""


@pytest.mark.skipif(core() is None, reason="needs the extension: ten million events")
def test_packets_take_as_long_as_in_another_simulator(golden: Callable[[str, str], None]) -> None:
    with script("network/htsim", "compare", "cells", "cases") as compare:
        known = compare.read(BENCHMARKS.parent / "tests" / "golden" / "htsim.json")
        rows = {
            cell.name: compare.row(cell, compare.by_ours(cell)[0], known[cell.name]["htsim_us"])
            for cell in compare.cells()
        }
        golden("htsim.json", compare.document(rows))
    assert len(rows) >= 40
    off = {name: row["ratio"] for name, row in rows.items() if abs(row["ratio"] - 1) > MOST}
    assert not off

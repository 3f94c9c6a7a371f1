"""Packets take as long as in another simulator, uet-htsim, whose numbers were measured once.

Both simulated benchmarks/network/htsim/cells.py; with the other's source, compare.py beside it
measures both again.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice

import pytest

from gradwire.network.native import core
from scripts import BENCHMARKS, script
from suites import first

MOST = 0.05
"""The largest relative difference in time, longer or shorter."""


@pytest.mark.skipif(core() is None, reason="needs the extension: ten million events")
@pytest.mark.parametrize("every", first([5, 1]))
def test_packets_take_as_long_as_in_another_simulator(
    golden: Callable[[str, str], None], every: int
) -> None:
    with script("network/htsim", "compare", "cells", "cases") as compare:
        known = compare.read(BENCHMARKS.parent / "tests" / "golden" / "htsim.json")
        rows = {
            cell.name: compare.row(cell, compare.by_ours(cell)[0], known[cell.name]["htsim_us"])
            for cell in islice(compare.cells(), 0, None, every)
        }
        golden("htsim.json", compare.document({**known, **rows} if every > 1 else rows))
    assert len(rows) >= 40 // every
    off = {name: row["ratio"] for name, row in rows.items() if abs(row["ratio"] - 1) > MOST}
    assert not off

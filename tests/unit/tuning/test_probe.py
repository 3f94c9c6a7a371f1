"""The probe's results from its runs: blocks, the slowest rank, sizes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import pytest

from gradwire.planner.profile import shape_of, whole_rows
from gradwire.runtime.torch_dist import Performer
from gradwire.tuning.probe import LARGEST, Probe, Run, _ladder, blocks, combined


def run(encode: float, wire: float, decode: float, sent: float = 8.0) -> Run:
    return Run(encode, wire, decode, sent)


def test_blocks_are_means_of_consecutive_runs() -> None:
    runs = [run(float(i), 2.0 * i, 0.0) for i in range(6)]
    assert blocks(runs, 3) == [run(0.5, 1.0, 0.0), run(2.5, 5.0, 0.0), run(4.5, 9.0, 0.0)]


def test_a_slow_run_counts_in_its_block() -> None:
    runs = [run(0.0, w, 0.0) for w in (1.0, 1.0, 1.0, 9.0)]
    assert [block.wire for block in blocks(runs, 1)] == [3.0]


@pytest.mark.parametrize(("runs", "count", "made"), [(1, 5, 1), (5, 5, 5), (7, 5, 5), (160, 5, 5)])
def test_no_block_is_empty_and_every_run_is_in_one(runs: int, count: int, made: int) -> None:
    found = blocks([run(1.0, 1.0, 1.0)] * runs, count)
    assert found == [run(1.0, 1.0, 1.0)] * made


def test_the_slowest_ranks_whole_counts_and_local_work_is_the_mean() -> None:
    (one,) = combined([[run(1.0, 5.0, 1.0)], [run(3.0, 1.0, 1.0)]])
    assert (one.encode, one.decode) == (2.0, 1.0)
    assert one.wire == 7.0 - 2.0 - 1.0


def test_moves_take_no_less_than_on_the_rank_that_waits_least() -> None:
    (one,) = combined([[run(9.0, 1.0, 0.0)], [run(9.0, 2.0, 0.0)]])
    assert one.wire == 2.0
    (skewed,) = combined([[run(0.0, 4.0, 0.0)], [run(0.0, 4.0, 3.0)]])
    assert skewed.wire == 5.5


def test_ranks_are_combined_run_by_run_and_the_most_bytes_count() -> None:
    found = combined([[run(1, 1, 1, 4.0), run(2, 2, 2, 4.0)], [run(1, 1, 1, 6.0), run(2, 2, 2)]])
    assert [r.bytes for r in found] == [6.0, 8.0]
    assert [r.wire for r in found] == [1.0, 2.0]


def test_sizes_end_with_the_largest_bucket() -> None:
    assert _ladder((256, 4096, 65_536), 10_000) == [256, 4096, 10_000]
    assert _ladder((256, 4096, 65_536), 4900) == [256, 4096]  # 4900 is too near to 4096
    assert _ladder((256,), 100) == [100]
    assert _ladder((256,), 0) == [1]


def test_no_bucket_is_larger_than_what_a_job_has_room_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tried = list[int]()

    def runs(self: Probe, strategy: str, sizes: Sequence[int], seconds: float) -> list[Run]:
        tried.extend(sizes)
        return [run(1e-3, 1e-3, 1e-3)]

    monkeypatch.setattr(Probe, "_runs", runs)
    probe = Probe(cast(Performer, None))
    (cost,) = probe.costs(["bf16 | allreduce"], 10**9).values()
    assert max(tried) == LARGEST
    assert cost.wire(1e9) >= cost.wire(LARGEST), "curves go on"


def test_what_fills_rows_is_a_matrix() -> None:
    assert shape_of(1024, 256) == (4, 256)
    assert shape_of(1000, 256) == (1000, 1)
    assert shape_of(whole_rows(1000, 256), 256) == (3, 256)
    assert (whole_rows(1024, 256), whole_rows(200, 256), whole_rows(0, 256)) == (1024, 200, 1)
    assert shape_of(1, 256) == (1, 1)

"""The rules of parity, worked out by hand, and the tables made from them."""

from __future__ import annotations

import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

NAN = math.nan


@pytest.mark.parametrize(
    ("dense", "other", "passed"),
    [
        ([95.0], [94.5], True),  # half a point
        ([95.0], [94.49], False),
        ([95.0, 95.0], [94.4, 94.4], False),
        ([94.0, 95.0], [93.6, 94.3], True),  # 0.55 below, pooled deviation 0.61
        ([94.0, 95.5], [93.3, 94.5], True),  # 0.85 below, pooled deviation 0.96
        ([94.0, 94.0], [93.5, 93.1], False),  # 0.7 below, pooled deviation 0.2
        ([94.0, 96.0], [10.0, 96.0], False),  # it must not excuse itself
        ([95.0], [99.0], True),
        ([95.0, 95.0], [95.0, NAN], False),
    ],
)
def test_accuracy_may_be_half_a_point_or_a_deviation_below(
    suite: SimpleNamespace, dense: list[float], other: list[float], passed: bool
) -> None:
    assert suite.parity.metric("accuracy", dense, other).passed is passed


@pytest.mark.parametrize(
    ("kind", "limit"), [("bits", 2.02), ("errors", 3.0)]
)  # of 2: one percent, one point
def test_bits_and_errors_may_be_a_percent_and_a_point_above(
    suite: SimpleNamespace, kind: str, limit: float
) -> None:
    dense = [1.0, 3.0]
    verdict = suite.parity.metric(kind, dense, [limit, limit])
    assert verdict == suite.parity.Verdict(limit, limit, True)
    assert not suite.parity.metric(kind, dense, [limit, limit + 1e-6]).passed
    assert not suite.parity.metric(kind, dense, [NAN, 1.0]).passed
    assert suite.parity.metric(kind, dense, [0.1, 0.1]).passed


def test_training_loss_may_be_a_tenth_above_and_a_little(suite: SimpleNamespace) -> None:
    loss = suite.parity.training_loss
    assert loss([1.0], [1.10]).passed
    assert not loss([1.0], [1.12]).passed
    assert loss([1e-4], [2e-3]).passed, "both have learnt everything by heart"
    assert not loss([1e-4], [2e-2]).passed
    assert not loss([1.0], [NAN]).passed


def test_global_topk_may_be_a_point_below(suite: SimpleNamespace) -> None:
    assert suite.parity.like_topk([95.0, 94.0], [93.5, 93.5]).passed
    assert not suite.parity.like_topk([95.0, 94.0], [93.5, 93.4]).passed


def test_a_single_run_has_no_deviation(suite: SimpleNamespace) -> None:
    assert suite.parity.pooled_deviation([1.0], [1.0, 2.0]) == 0.0
    assert suite.parity.pooled_deviation([0.0, 2.0], [0.0, 2.0]) == pytest.approx(math.sqrt(2))


def record(method: str, seed: int, metric: float, loss: float, **more: Any) -> dict[str, Any]:
    return {
        "task": "glyphs", "method": method, "seed": seed, "workers": 4, "steps": 100,
        "density": 0.01, "metric": metric, "training_loss": loss, "bytes_per_step": 1000.0,
        "ms_per_step": 1.0, "metrics": [(50, 50.0), (100, metric)], "losses": [2.0, 1.0, loss],
    } | more  # fmt: skip


def test_tables_pair_seeds_and_say_who_is_as_good(suite: SimpleNamespace, tmp_path: Path) -> None:
    records = [
        record("dense", 0, 95.0, 0.2),
        record("dense", 1, 96.0, 0.2),
        record("gtopk", 0, 91.0, 0.21, bytes_per_step=100.0),
        record("ef-topk", 1, 96.5, 0.5),
        record("ef-topk", 2, 0.0, 9.0),  # no dense run of that seed: not compared
    ]
    for r in records:
        (tmp_path / f"{r['method']},{r['seed']}.json").write_text(json.dumps(r))
    found = suite.report.read([tmp_path])
    text = suite.report.tables(found)
    lines = {line.split("|")[1].strip(): line for line in text.splitlines() if "|" in line}
    assert "| 2 | 95.50 ± 0.71 |" in lines["dense"]
    assert "| -4.00 | **no** | 0.2100 | yes | 0.1 | 10.0× |" in lines["gtopk"]
    assert "| 1 | 96.50 | +0.50 | yes | 0.5000 | **no** |" in lines["ef-topk"]
    file = tmp_path / "one.json"
    file.write_text(json.dumps(found))
    assert suite.report.tables(suite.report.read([file])) == text


def test_global_topk_is_compared_by_the_seeds_that_both_have(suite: SimpleNamespace) -> None:
    accuracies = {"ef-topk": [90.0, 94.0, 95.0], "gtopk": [93.0, 94.0]}  # seeds 0…, and 1…
    records = [
        record(method, seed + (method == "gtopk"), accuracy, 0.2)
        for method, found in accuracies.items()
        for seed, accuracy in enumerate(found)
    ]
    assert "gtopk less ef-topk: -1.00 points; within 1: yes." in suite.report.tables(records)


def test_dense_s_best_rate_is_found_by_all_seeds_that_two_have(suite: SimpleNamespace) -> None:
    """A third rate with one seed does not make one seed decide between the others."""
    read = {0.5: [95.2, 91.0, 91.0], 1.0: [95.0, 95.0, 95.0], 2.0: [94.0]}
    records = [
        record("dense", seed, accuracy, 0.2, rate=rate)
        for rate, found in read.items()
        for seed, accuracy in enumerate(found)
    ]
    lines = suite.report.tables(records).splitlines()
    assert [line for line in lines if line.startswith("| dense | 3 | 95.00 ± 0.00 |  |")]
    records.append(record("dense", 0, 96.0, 0.2, rate=4.0))
    lines = suite.report.tables(records).splitlines()
    assert [line for line in lines if line.startswith("| dense, rate × 4 | 1 | 96.00 |  |")]


def test_a_rate_at_which_dense_diverged_is_not_its_best(suite: SimpleNamespace) -> None:
    """Methods are judged beside the rate at which dense learnt, whichever record comes first."""
    bits = {"task": "gpt"}
    wild = [record("dense", seed, NAN, NAN, rate=3.0, **bits) for seed in range(2)]
    records = [record("dense", 0, 2.2, 1.4, **bits), record("qsgd", 0, 2.21, 1.4, **bits)]
    for together in (wild + records, records + wild):
        lines = suite.report.tables(together).splitlines()
        assert [line for line in lines if line.startswith("| qsgd | 1 | 2.210 | +0.010 | yes |")]
        assert [x for x in lines if x.startswith("| dense, rate × 3 | 1 | nan | +nan | **no** |")]


def test_a_method_that_diverged_is_named_in_the_frontier(suite: SimpleNamespace) -> None:
    frontier, facts = suite.frontier, {"task": "gpt", "steps": 2000}
    found = frontier.points(
        [
            record("dense", 0, NAN, NAN, rate=3.0, **facts),
            record("dense", 0, 2.0, 1.0, rate=2.0, **facts),
            record("qsgd", 0, NAN, NAN, rate=1.5, **facts),
            record("qsgd", 0, 2.1, 1.0, rate=2.0, **facts),
            record("onebit", 0, NAN, NAN, rate=2.0, **facts),
        ],
        "gpt",
    )
    assert found["qsgd"].ratio == pytest.approx(1.05)
    assert found["onebit"].ratio == math.inf >= frontier.MOST


def test_only_records_of_one_kind_are_read(suite: SimpleNamespace, tmp_path: Path) -> None:
    """The folder of runs also has what time_to_accuracy.py writes."""
    own = tmp_path / "own"
    own.mkdir()
    with pytest.raises(SystemExit, match=r"no run is recorded in .*own"):
        suite.report.read([own])
    first = record("dense", 0, NAN, 0.2, data="one")
    (own / "a.json").write_text(json.dumps(first))
    (own / "time_to_accuracy.json").write_text(json.dumps({"rates": {}, "runs": []}))
    (found,) = suite.report.read([own, own / "a.json"])
    assert found["method"] == "dense"
    other = tmp_path / "other.json"
    for second, said in (
        (first | {"metric": 95.0}, "different records of one run"),
        (record("dgc", 0, 95.0, 0.2, data="two"), "the same data and device"),
        (record("dgc", 0, 95.0, 0.2, data="one", device="cuda"), "the same data and device"),
        ("text", "no file of records"),
    ):
        other.write_text(json.dumps([second]))
        with pytest.raises(SystemExit, match=said):
            suite.report.read([own, other])
    with pytest.raises(SystemExit, match="is no file of records"):
        suite.report.read([tmp_path / "missing.json"])


def test_curves_are_drawn(suite: SimpleNamespace, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    suite.report.plot(
        [record("dense", 0, 95.0, 0.2), record("dgc", 0, 10.0, NAN)], tmp_path / "curves.png"
    )
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")

"""Numbers by name, and the functions that receive them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from runs import step

from gradwire.errors import UsageError
from gradwire.metrics import OpenMetrics, TensorBoard, named
from gradwire.run_folder import StepRow

ROW = StepRow(**step(7, residual_norm=2.5))


def test_names_say_their_units() -> None:
    found = named(ROW)
    assert found["step_seconds"] == 0.03
    assert found["exposed_seconds"] == 0.01
    assert found["overlap"] == pytest.approx(2 / 3)
    assert (found["bytes_sent"], found["residual_norm"]) == (10, 2.5)
    assert "residual_norm" not in named(StepRow(**step(7)))


def test_what_a_collector_reads(tmp_path: Path) -> None:
    """The file is read by Prometheus' own parser."""
    path = tmp_path / "gradwire.prom"
    to = OpenMetrics(path, {"rank": "3", "job": 'a "b"\\\n'})
    to({"gradwire/step_seconds": 0.5}, 1)
    to({"gradwire/step_seconds": 0.25, "gradwire/norm": float("inf")}, 2)
    families = {f.name: f for f in text_string_to_metric_families(path.read_text())}
    assert sorted(families) == ["gradwire_norm", "gradwire_step", "gradwire_step_seconds"]
    (sample,) = families["gradwire_step_seconds"].samples
    assert (sample.value, sample.labels) == (0.25, {"rank": "3", "job": 'a "b"\\\n'})
    assert families["gradwire_norm"].samples[0].value == float("inf")
    assert families["gradwire_step"].samples[0].value == 2
    assert list(tmp_path.iterdir()) == [path], "nothing is left beside it"


def test_metrics_refuse(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is not a folder"):
        OpenMetrics(tmp_path / "nowhere" / "a.prom")
    with pytest.raises(UsageError, match="a label's name must be of letters"):
        OpenMetrics(tmp_path / "a.prom", {"a b": "c"})
    with pytest.raises(UsageError, match="must have the method add_scalar"):
        TensorBoard(object())


def test_tensorboard() -> None:
    told: list[Any] = []

    class Writer:
        def add_scalar(self, *what: Any) -> None:
            told.append(what)

    TensorBoard(Writer())({"gradwire/a": 1.0, "gradwire/b": 2.0}, 5)
    assert told == [("gradwire/a", 1.0, 5), ("gradwire/b", 2.0, 5)]

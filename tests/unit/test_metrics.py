"""Numbers by name, and the functions that receive them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from runs import step

from gradwire.errors import UsageError
from gradwire.metrics import OpenMetrics, TensorBoard, WeightsAndBiases, named
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
    with pytest.raises(UsageError, match=r"must have the methods define_metric and log; got str"):
        WeightsAndBiases("a run")


def test_tensorboard() -> None:
    told: list[Any] = []

    class Writer:
        def add_scalar(self, *what: Any) -> None:
            told.append(what)

    TensorBoard(Writer())({"gradwire/a": 1.0, "gradwire/b": 2.0}, 5)
    assert told == [("gradwire/a", 1.0, 5), ("gradwire/b", 2.0, 5)]


class Rows:
    """The rows of a run of Weights & Biases: a step that is not above the last one's is left out,
    and what is not committed waits for the next row."""

    def __init__(self) -> None:
        self.rows: list[dict[str, float]] = []
        self.axes: dict[str, str | None] = {}
        self._waits: dict[str, float] = {}

    def define_metric(self, name: str, step_metric: str | None = None) -> None:
        self.axes[name] = step_metric

    def log(
        self, numbers: dict[str, float], step: int | None = None, commit: bool | None = None
    ) -> None:
        if step is not None and step < len(self.rows):
            return
        self._waits |= numbers
        if commit if commit is not None else step is None:
            self.rows.append(self._waits)
            self._waits = {}


@pytest.mark.parametrize("every", [1, 5])
def test_weights_and_biases_keep_all_that_the_job_logs(every: int) -> None:
    """Whether a job logs several rows to a step or one to several."""
    run = Rows()
    to = WeightsAndBiases(run)
    for number in range(10):
        to({"gradwire/a": float(number)}, number)
        if number % every == every - 1:
            run.log({"loss": 1.0})
            run.log({"accuracy": 2.0})
    assert run.axes == {"gradwire/step": None, "gradwire/*": "gradwire/step"}
    ends = range(every - 1, 10, every)
    pairs = (({"gradwire/a": n, "gradwire/step": n, "loss": 1.0}, {"accuracy": 2.0}) for n in ends)
    assert run.rows == [row for pair in pairs for row in pair]


def test_weights_and_biases_of_a_job_that_logs_nothing() -> None:
    run = Rows()
    to = WeightsAndBiases(run, commit=True)
    for number in (0, 2):
        to({"gradwire/a": 1.0}, number)
    assert run.rows == [{"gradwire/a": 1.0, "gradwire/step": number} for number in (0, 2)]

"""Makes a table, a document and a plot of what the rows did."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from gradwire.demo.rows import ALONE, DDP
from gradwire.demo.runner import Ran, target_loss
from gradwire.demo.task import Measured, Point
from gradwire.lab import Cluster, available
from gradwire.lab.rates import format_rate
from gradwire.report import loss_plot
from gradwire.report.table import Table
from gradwire.run_folder import number


@dataclass(frozen=True)
class Result:
    """One row of the table.

    Attributes:
        step_seconds: the slowest rank's, median over turns. A turn is the steps between two
            evaluations, and its step time is their mean: ranks that share cores and do not wait
            for each other run in bursts, so single steps tell little.
        step_seconds_range: lowest and highest of these turns.
        bytes_per_step_and_host: bytes that left a host's interface, also headers and ACKs.
        loss: held out, nats per word, after the step count that all rows have in common.
        seconds_to_target: seconds of training until the loss that DDP fp32 ended with; None if
            the row did not reach it in its `steps` and `seconds`.
    """

    label: str
    strategy: str
    step_seconds: float
    step_seconds_range: tuple[float, float]
    bytes_per_step_and_host: float
    loss: float
    seconds_to_target: float | None
    steps: int
    seconds: float
    curve: list[Point]


@dataclass(frozen=True)
class Summary:
    """All rows, and what they have in common: seconds, bytes, losses in nats."""

    parameters: int
    steps: int
    target_loss: float
    results: list[Result]

    def step_seconds(self, label: str) -> float:
        """Returns a row's step time, by its label. KeyError if there is no such row."""
        return {result.label: result.step_seconds for result in self.results}[label]


def summarize(ran: Sequence[Ran]) -> Summary:
    """Compares the rows. DDP fp32 must be one of them."""
    target = target_loss(ran)
    assert target is not None
    evaluated = [{point.step for point in each.measured.curve} for each in ran]
    steps = max(set.intersection(*evaluated))  # DDP's last, unless another row has ended earlier
    results = [_result(each, steps, target) for each in ran]
    return Summary(ran[0].measured.parameters, steps, target, results)


def table(summary: Summary) -> Table:
    """Returns the table that is printed."""
    baseline = summary.step_seconds(DDP.label)
    headers = (
        "", "ms/step", "speed", "MB/step/host",
        f"loss after {summary.steps}", f"time to loss {summary.target_loss:.2f}",
    )  # fmt: skip
    return Table(headers, [_cells(result, baseline) for result in summary.results])


def _cells(result: Result, baseline: float) -> tuple[str, ...]:
    return (
        result.label,
        f"{1e3 * result.step_seconds:.0f}",
        f"{baseline / result.step_seconds:.2f}×",
        _megabytes(result.bytes_per_step_and_host),
        f"{result.loss:.2f}",
        _time_to_target(result),
    )


def _megabytes(count: float) -> str:
    return f"{count / 1e6:.1f}" if count >= 10e6 else f"{count / 1e6:.2f}"


def _time_to_target(result: Result) -> str:
    if result.seconds_to_target is not None:
        return f"{result.seconds_to_target:.1f} s"
    return f"not in {result.steps} steps, {result.seconds:.0f} s"


def _result(ran: Ran, steps: int, target: float) -> Result:
    measured, last = ran.measured, ran.measured.curve[-1]
    turns = turn_seconds(measured)
    return Result(
        label=ran.row.label,
        strategy=ran.row.strategy,
        step_seconds=statistics.median(turns),
        step_seconds_range=(min(turns), max(turns)),
        bytes_per_step_and_host=bytes_per_step(measured),
        loss=next(point.loss for point in measured.curve if point.step == steps),
        seconds_to_target=seconds_to(target, measured.curve),
        steps=last.step,
        seconds=last.seconds,
        curve=measured.curve,
    )


def turn_seconds(measured: Measured) -> list[float]:
    """Returns the seconds per step of each turn's slowest rank, without the first turn if there
    are others: its first steps allocate, and DDP arranges its buckets."""
    turns, start = [], 0
    for steps, _ in measured.bytes_sent:
        end = start + steps
        turns.append(max(sum(rank[start:end]) for rank in measured.step_seconds) / steps)
        start = end
    return turns[1:] or turns


def bytes_per_step(measured: Measured) -> float:
    """Returns bytes per step and host; the first interval is left out if there are others."""
    intervals = measured.bytes_sent[1:] or measured.bytes_sent
    return sum(sent for _, sent in intervals) / sum(steps for steps, _ in intervals)


def seconds_to(loss: float, curve: Sequence[Point]) -> float | None:
    """Returns the second at which a curve first reached a loss, linear between its points; None if
    it never did."""
    for before, after in itertools.pairwise(curve):
        if after.loss <= loss:
            part = (before.loss - loss) / (before.loss - after.loss)
            return before.seconds + max(0.0, part) * (after.seconds - before.seconds)
    return None


def document(summary: Summary, cluster: Cluster, seconds: float) -> dict[str, object]:
    """Returns plain values for `json.dumps`; `seconds` is how long the whole demo took. Losses
    that are not finite are text, as "nan", which JSON lacks."""
    import torch

    from gradwire import kernels

    return {
        "hosts": cluster.hosts,
        "bits_per_second": None if cluster.loopback else cluster.bits_per_second,
        "mode": "loopback" if cluster.loopback else available().mode,
        "torch": torch.__version__,
        "kernels": kernels.instruction_set(),
        "seconds": round(seconds, 1),
        **asdict(summary),
        "results": [
            {
                **asdict(own),
                "loss": number(own.loss),
                "curve": [(step, at, number(loss)) for step, at, loss in own.curve],
            }
            for own in summary.results
        ],
    }


def save_plot(
    ran: Sequence[Ran], summary: Summary, cluster: Cluster, folder: Path, name: str = "loss"
) -> Path:
    """Draws every row's held-out loss over its seconds of training; returns the file's path."""
    lines = [
        loss_plot.Line(
            each.row.label,
            [(point.seconds, point.loss) for point in each.measured.curve],
            reference=each.row == ALONE,
        )
        for each in ran
    ]
    millions = summary.parameters / 1e6
    title = f"LSTM language model, {millions:.1f} M parameters, {network(cluster)}"
    return loss_plot.save(lines, title, summary.target_loss, folder, name)


def network(cluster: Cluster) -> str:
    """Describes the cluster in a few words."""
    if cluster.loopback:
        return f"{cluster.hosts} ranks on loopback"
    return f"{cluster.hosts} hosts, {format_rate(cluster.bits_per_second)}/s"

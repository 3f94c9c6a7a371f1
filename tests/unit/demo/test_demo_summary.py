"""The printed numbers, worked out from measured runs."""

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from gradwire.demo import summary
from gradwire.demo.rows import ALONE, DDP, gradwire_row
from gradwire.demo.runner import Ran, target_loss
from gradwire.demo.task import Measured, Point
from gradwire.lab import Cluster


def measured(step_seconds: float, losses: list[float], sent: float = 0.0) -> Measured:
    """A run of two ranks, evaluated every five steps; rank 1 is a tenth slower."""
    steps = 5 * (len(losses) - 1)
    ranks = [[step_seconds] * steps, [1.1 * step_seconds] * steps]
    curve = [Point(5 * i, 5.5 * i * step_seconds, loss) for i, loss in enumerate(losses)]
    return Measured(ranks, [(5, 5 * sent)] * (len(losses) - 1), curve, 1000)


RAN = [
    Ran(ALONE, measured(0.1, [9.0, 8.0, 7.5])),
    Ran(DDP, measured(1.0, [9.0, 8.0, 6.991], sent=120e6)),
    Ran(gradwire_row("dgc(0.001) | allgather"), measured(0.2, [9.0, 8.5, 8.0, 7.0, 6.98], 0.6e6)),
]


@pytest.fixture
def made() -> summary.Summary:
    return summary.summarize(RAN)


def test_the_target_is_ddps_loss_rounded_up(made: summary.Summary) -> None:
    assert made.target_loss == pytest.approx(7.0)
    assert target_loss(RAN[:1]) is None


def test_steps_are_those_of_the_slowest_rank(made: summary.Summary) -> None:
    assert made.step_seconds("DDP fp32") == pytest.approx(1.1)
    assert made.results[1].step_seconds_range == pytest.approx((1.1, 1.1))
    with pytest.raises(KeyError):
        made.step_seconds("nobody")


def turns_of(ranks: list[list[float]], steps: list[int]) -> list[float]:
    return summary.turn_seconds(Measured(ranks, [(count, 0.0) for count in steps], [], 1))


def test_a_turn_is_as_slow_as_its_slowest_rank() -> None:
    ranks = [[9.0, 9.0, 1.0, 3.0, 2.0, 2.0], [9.0, 9.0, 2.0, 1.0, 4.0, 1.0]]
    assert turns_of(ranks, [2, 2, 2]) == [2.0, 2.5]


def test_ranks_that_run_in_bursts_are_timed_over_the_whole_turn() -> None:
    """Each rank has one slow step; together they took four seconds for two steps."""
    assert turns_of([[1.0, 3.0], [3.0, 1.0]], [2]) == [2.0]


def test_the_first_turn_warms_up_if_there_are_others() -> None:
    assert turns_of([[9.0, 1.0]], [1, 1]) == [1.0]
    assert turns_of([[9.0]], [1]) == [9.0]


def test_losses_are_compared_at_the_same_step(made: summary.Summary) -> None:
    assert made.steps == 10
    assert [result.loss for result in made.results] == [7.5, 6.991, 8.0]


def test_a_row_may_end_at_an_earlier_step_than_ddp() -> None:
    """Where steps are short, DDP goes on until it has trained for some seconds, and rows whose
    steps take longer have fewer of them by then."""
    early = [Ran(RAN[0].row, measured(3.0, [9.0, 8.0])), *RAN[1:]]
    found = summary.summarize(early)
    assert found.steps == 5
    assert [result.loss for result in found.results] == [8.0, 8.0, 8.5]


def test_bytes_are_per_step(made: summary.Summary) -> None:
    assert made.results[1].bytes_per_step_and_host == pytest.approx(120e6)


def test_the_first_interval_does_not_count() -> None:
    first_is_odd = Measured([[1.0] * 15], [(5, 999.0), (5, 50.0), (5, 70.0)], [], 0)
    assert summary.bytes_per_step(first_is_odd) == pytest.approx(12.0)
    assert summary.bytes_per_step(Measured([[1.0]], [(5, 50.0)], [], 0)) == pytest.approx(10.0)


def test_time_to_a_loss_is_linear_between_points() -> None:
    curve = [Point(0, 0.0, 9.0), Point(5, 10.0, 8.0), Point(10, 20.0, 7.0)]
    assert summary.seconds_to(7.25, curve) == pytest.approx(17.5)
    assert summary.seconds_to(8.0, curve) == pytest.approx(10.0)
    assert summary.seconds_to(6.9, curve) is None
    assert summary.seconds_to(9.5, curve) == pytest.approx(0.0)


def test_time_to_a_loss_is_the_first_time() -> None:
    curve = [Point(0, 0.0, 9.0), Point(5, 10.0, 7.0), Point(10, 20.0, 8.0), Point(15, 30.0, 6.0)]
    assert summary.seconds_to(7.5, curve) == pytest.approx(7.5)


def test_the_table_says_all(made: summary.Summary) -> None:
    text = summary.table(made).as_text()
    assert "loss after 10" in text
    assert "time to loss 7.00" in text
    assert "not in 10 steps" in text.splitlines()[2]
    assert "5.00×" in text.splitlines()[4]
    assert "0.60" in text.splitlines()[4]


def test_the_summary_is_json(made: summary.Summary) -> None:
    read = json.loads(json.dumps(asdict(made)))
    assert read["results"][2]["strategy"] == "dgc(0.001) | allgather"
    assert read["results"][0]["seconds_to_target"] is None


def test_measured_values_survive_a_file(tmp_path: Path) -> None:
    before = RAN[2].measured
    before.save(tmp_path / "result.json")
    assert Measured.load(tmp_path / "result.json") == before


@pytest.mark.parametrize("plots", [True, False])
def test_a_row_that_diverged_costs_only_its_own_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plots: bool
) -> None:
    if not plots:
        monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    worst = measured(0.2, [9.0, float("inf"), float("nan")])
    ran = [*RAN[:2], Ran(RAN[2].row, worst)]
    found, cluster = summary.summarize(ran), Cluster(2, loopback=True)
    path = summary.save_plot(ran, found, cluster, tmp_path)
    assert path.stat().st_size > 1000
    assert plots or "nan" not in path.read_text("utf-8")
    document = json.loads(json.dumps(summary.document(found, cluster, 1.0), allow_nan=False))
    assert document["results"][2]["loss"] == "nan"
    assert [loss for *_, loss in document["results"][2]["curve"]] == [9.0, "inf", "nan"]

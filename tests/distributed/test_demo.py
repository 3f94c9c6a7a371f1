"""The demo's ranks at work on loopback, with a tiny model."""

import dataclasses
import sys
from pathlib import Path

import pytest

from gradwire.demo import corpus
from gradwire.demo.rows import ALONE, DDP, DDP_FP16, Row, gradwire_row
from gradwire.demo.task import Measured, Task
from gradwire.lab import Cluster

pytestmark = pytest.mark.full
DGC = gradwire_row("dgc(0.001) | allgather")
NONE = gradwire_row("none | allreduce")


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> Task:
    folder = tmp_path_factory.mktemp("demo")
    texts = [f"the {i % 7} quick brown foxes jump over {i % 5} lazy dogs" for i in range(300)]
    corpus.build(4 * 21, texts).save(folder / "text.pt")
    return Task(
        method="alone", strategy="",
        tokens=str(folder / "text.pt"), result=str(folder / "result.json"),
        steps=6, steps_per_evaluation=4, hidden=16, streams_per_rank=2, words_per_stream=5,
        held_out_streams=4, held_out_length=21,
    )  # fmt: skip


def train(task: Task, row: Row, ranks: int = 2) -> Measured:
    task = task.of(row)
    path = Path(task.result).with_name("task.json")
    task.save(path)
    command = [sys.executable, "-m", "gradwire.demo.worker", str(path)]
    with Cluster(ranks, "1gbit", loopback=True) as cluster:
        assert cluster.run(command, timeout_seconds=120) == 0
    return Measured.load(Path(task.result))


def test_all_that_send_everything_learn_the_same(task: Task) -> None:
    ddp, none = train(task, DDP), train(task, NONE)
    assert [point.step for point in ddp.curve] == [0, 4, 6]
    assert ddp.curve[-1].loss < ddp.curve[0].loss
    for mine, theirs in zip(none.curve, ddp.curve, strict=True):
        assert mine.loss == pytest.approx(theirs.loss, abs=1e-4)


def test_sixteen_bits_are_nearly_the_same(task: Task) -> None:
    fp16, ddp = train(task, DDP_FP16), train(task, DDP)
    assert fp16.curve[-1].loss == pytest.approx(ddp.curve[-1].loss, abs=0.02)


def test_every_rank_and_step_is_measured(task: Task) -> None:
    measured = train(task, DGC, ranks=3)
    assert [len(rank) for rank in measured.step_seconds] == [6, 6, 6]
    assert [steps for steps, _ in measured.bytes_sent] == [4, 2]
    assert measured.curve[0].seconds == 0.0
    assert all(seconds > 0 for rank in measured.step_seconds for seconds in rank)


def test_a_row_goes_on_to_its_target_or_its_time(task: Task) -> None:
    easy = train(dataclasses.replace(task, target_loss=99.0, most_seconds=60.0), ALONE)
    never = train(dataclasses.replace(task, target_loss=0.0, most_seconds=0.5), ALONE)
    assert easy.curve[-1].step == 6
    assert never.curve[-1].step > 6
    assert never.curve[-1].seconds >= 0.5


@pytest.mark.lab
def test_only_what_is_sent_is_counted(task: Task) -> None:
    """Alone, a host sends next to nothing; DDP sends 2(n-1)/n of the gradient, and headers."""

    def sent(row: Row) -> float:
        path = Path(task.result).with_name("task.json")
        task.of(row).save(path)
        with Cluster(2, "1gbit") as cluster:
            cluster.run([sys.executable, "-m", "gradwire.demo.worker", str(path)])
        measured = Measured.load(Path(task.result))
        steps, count = measured.bytes_sent[-1]
        assert measured.parameters * 4 > 20_000
        return count / steps / (4 * measured.parameters)

    assert sent(ALONE) < 0.1
    assert 1.0 < sent(DDP) < 1.1

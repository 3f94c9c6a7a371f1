"""Running the demo's rows, on a simulated cluster."""

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from gradwire.demo import corpus, runner
from gradwire.demo.rows import DDP_FP16, contestants
from gradwire.demo.task import Measured, Point, Task
from gradwire.errors import LabError, StrategyError


class PretendedCluster:
    """Writes what a row's ranks would write; `code` is the exit code of every row."""

    def __init__(self, code: int = 0, loopback: bool = False) -> None:
        self.tasks: list[Task] = []
        self.environments: list[Mapping[str, str] | None] = []
        self.loopback, self.bits_per_second = loopback, 10**9
        self._code = code

    def run(
        self, command: Sequence[str], *, env: Mapping[str, str] | None = None, on_line: Any = None
    ) -> int:
        assert command[-2] == "gradwire.demo.worker"
        task = Task.load(Path(command[-1]))
        self.tasks.append(task)
        self.environments.append(env)
        points = [Point(0, 0.0, 9.0), Point(task.steps, 30.0, 6.912)]
        on_line(0, "stdout", json.dumps(points[-1]._asdict()))
        on_line(1, "stderr", "something is odd")
        on_line(0, "stderr", "a warning")
        Measured([[1.0]], [(1, 1.0)], points, 7).save(Path(task.result))
        return self._code


@pytest.fixture(autouse=True)
def small_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corpus, "python_documents", lambda: ["a b c"] * 1000)


class Seen:
    """Records the progress and the notes that it receives."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.told: list[tuple[str, float, float, str]] = []

    def __call__(self, stage: str, done: float = 0.0, of: float = 0.0, now: str = "") -> None:
        self.told.append((stage, done, of, now))


def run(cluster: PretendedCluster, **setting: Any) -> Seen:
    seen, given = Seen(), cluster
    runner.run(runner.Setting(**setting), given, seen, seen.notes.append)  # type: ignore[arg-type]
    return seen


def test_every_row_runs_once_with_the_same_data_and_seed() -> None:
    cluster = PretendedCluster()
    seen = run(cluster)
    labels = list(dict.fromkeys(now.partition(":")[0] for _, _, _, now in seen.told if now))
    first = ("no synchronization", "DDP fp32", DDP_FP16.label)
    assert labels[:3] == [f"row {n} of 6, {label}" for n, label in enumerate(first, 1)]
    assert len(cluster.tasks) == 6
    same = {(t.tokens, t.seed, t.steps, t.learning_rate, t.hidden) for t in cluster.tasks}
    assert len(same) == 1
    assert cluster.tasks[-1].strategy == "dgc(0.001) | allgather"


def test_rows_count_by_what_is_guessed_of_them() -> None:
    guessed = [runner.Setting().seconds(row, 1e9) for row in contestants()]
    assert 120 < sum(guessed) < 300  # on two cores it was 194 s
    told = [(done, of, now) for stage, done, of, now in run(PretendedCluster()).told[1:]]
    assert [of for _, of, _ in told] == pytest.approx([sum(guessed)] * 12)
    for number in range(6):
        begun, ended = told[2 * number : 2 * number + 2]
        assert begun[0] == pytest.approx(sum(guessed[:number]))
        assert ended[0] == pytest.approx(sum(guessed[: number + 1]))
        assert "loss 6.912" in ended[2]
    quick = [runner.QUICK.seconds(row, 1e9) for row in contestants(quick=True)]
    assert 30 < sum(quick) < 75


def test_rows_after_ddp_go_on_to_its_loss() -> None:
    cluster = PretendedCluster()
    run(cluster)
    assert [task.target_loss for task in cluster.tasks[:2]] == [None, None]
    assert {task.target_loss for task in cluster.tasks[2:]} == {6.92}
    assert {task.most_seconds for task in cluster.tasks[2:]} == {37.5}


def test_the_network_decides_the_number_of_steps() -> None:
    full = runner.Setting()
    assert full.steps(1e9) == 30
    assert full.steps(None) == 30
    assert full.steps(100e6) == 4
    assert runner.Setting(dense_seconds=200.0).steps(100e6) == 20
    assert runner.Setting(quick=True, dense_seconds=8.0).hidden == 325


def test_what_rank_0_warns_of_is_passed_on_and_others_do_not_repeat_it() -> None:
    assert run(PretendedCluster(), quick=True).notes == ["a warning"]


def test_lanes_and_strategies_reach_the_ranks() -> None:
    cluster = PretendedCluster(loopback=True)
    run(cluster, strategies=("bf16|allreduce",), lanes=3, quick=True)
    assert [task.method for task in cluster.tasks] == ["alone", "ddp", "gradwire"]
    assert cluster.tasks[-1].lanes == 3


def test_a_failed_row_says_which_and_why() -> None:
    with pytest.raises(
        LabError, match=r"'no synchronization' ended with 7[\s\S]*something is odd"
    ):
        run(PretendedCluster(code=7))


def test_a_wrong_strategy_is_refused_before_anything_runs() -> None:
    cluster = PretendedCluster()
    with pytest.raises(StrategyError):
        run(cluster, strategies=("nonsense | allreduce",))
    assert cluster.tasks == []


def test_nothing_is_left_behind() -> None:
    cluster = PretendedCluster()
    run(cluster, quick=True)
    assert not Path(cluster.tasks[0].tokens).parent.exists()


def test_a_task_survives_a_file(tmp_path: Path) -> None:
    task = Task(
        "ddp", "", "t", "r", steps=3, steps_per_evaluation=2, target_loss=6.5, most_seconds=12.0
    )
    task.save(tmp_path / "task.json")
    assert Task.load(tmp_path / "task.json") == task


def test_files_of_the_user_s_folder_are_not_taken_for_modules(tmp_path: Path) -> None:
    (tmp_path / "random.py").write_text("raise SystemExit('this is not random')")

    class Cluster(PretendedCluster):
        def run(self, command: Sequence[str], **given: Any) -> int:
            asked[(*command[:-1], "no task.json")] = given["env"]
            return super().run(command, **given)

    asked = dict[tuple[str, ...], Mapping[str, str]]()
    run(Cluster(), strategies=("none | allreduce",), quick=True)
    ((called, env),) = asked.items()  # all rows are asked alike
    done = subprocess.run(
        called, cwd=tmp_path, env=os.environ | env, stderr=subprocess.PIPE, text=True, check=False
    )
    assert "this is not random" not in done.stderr
    assert "'no task.json'" in done.stderr

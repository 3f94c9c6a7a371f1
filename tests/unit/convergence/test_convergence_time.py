"""Time to accuracy: which steps a run has, how long they take, and which run is as good."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import gradwire

STEPS = 200


@pytest.fixture
def dense(suite: SimpleNamespace) -> Any:
    return suite.train.Run("words", "dense", 0, 4, STEPS, 0.01)


def of_step(suite: SimpleNamespace, run: Any) -> dict[str, float]:
    """The seconds of each stage: a step of density d takes d seconds."""
    stages = {name: float(name.split()[-1]) for name in suite.contestants.stages(run)}
    return {suite.time_to_accuracy.FP32: 2.0, suite.time_to_accuracy.FP16: 1.0, **stages}


def test_warm_up_is_part_of_a_run(suite: SimpleNamespace, dense: Any) -> None:
    found = suite.time_to_accuracy.densities(replace(dense, method="dgc"))
    warm_up = STEPS // suite.tasks.TASKS["words"].settings.warm_up
    assert found[0.01] == STEPS - warm_up
    assert found.total() == STEPS
    assert {0.25, 0.0625, 0.015625, 0.004} < set(found)
    assert all(abs(n - warm_up / 4) <= 1 for density, n in found.items() if density != 0.01)


def test_its_seconds_are_those_of_its_steps(suite: SimpleNamespace, dense: Any) -> None:
    module, run = suite.time_to_accuracy, replace(dense, method="dgc")
    seconds = of_step(suite, run)
    assert module.run_seconds(dense, seconds) == 2.0 * STEPS
    wanted = sum(density * n for density, n in module.densities(run).items())
    assert module.run_seconds(run, seconds) == pytest.approx(wanted)
    assert module.run_seconds(run, seconds, STEPS - 2) == pytest.approx(2 * 0.01)
    plain = replace(dense, method="ef-topk")
    assert module.densities(plain) == {0.01: STEPS}


@pytest.mark.parametrize(
    ("method", "travels"),
    [
        ("qsgd-alltoall", ["qsgd | alltoall"]),
        ("powersgd", ["none | powersgd(4)"]),
        ("ef-topk", ["topk(0.01)+ef | allgather"]),
        (
            "adam-1-warm-alltoall-2",
            [
                "lloyd(2)+adam(beta2=0.99) | allgather",
                'lloyd(1)+adam(beta2=0.99) | alltoall(means="lloyd(2)")',
            ],
        ),
    ],
)
def test_what_is_timed_is_what_the_run_sends(
    suite: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, method: str, travels: list[str]
) -> None:
    """A density, or a text, stands for a stage of the warm-up only."""
    run, plans = suite.train.Run("gpt", method, 0, 64, STEPS, 0.01), []
    monkeypatch.setattr(gradwire, "attach", lambda _, plan, **more: plans.append(plan))
    for density in suite.contestants.stages(run).values():
        suite.processes.Rank(run, density)
    assert [str(plan.main_strategy) for plan in plans] == travels


def record(suite: SimpleNamespace, folder: Path, run: Any, metric: float) -> None:
    found = asdict(run) | {"metric": metric, "data": suite.tasks.TASKS[run.task].data()}
    (folder / f"{run.name}.json").write_text(json.dumps(found))


def results(suite: SimpleNamespace, folder: Path, dense: Any, metrics: list[float]) -> None:
    """Writes records: dense's metric is 2 and 4, by seed; dgc's longer runs have `metrics`."""
    for seed, base in enumerate((2.0, 4.0)):
        record(suite, folder, replace(dense, seed=seed), base)
        for factor, metric in zip(suite.time_to_accuracy.LONGER, metrics):
            steps = round(factor * STEPS)
            run = replace(dense, method="dgc", steps=steps, seed=seed)
            record(suite, folder, run, metric + (-1) ** seed)


def test_the_shortest_run_that_is_as_good(
    suite: SimpleNamespace, dense: Any, tmp_path: Path
) -> None:
    results(suite, tmp_path, dense, [3.2, 3.1, 3.0, 2.9])
    run, tried = suite.time_to_accuracy.reached(dense, "dgc", 2, tmp_path)
    assert run.steps == 220
    assert tried == pytest.approx({200: 3.2, 210: 3.1, 220: 3.0})
    longer, tried = suite.time_to_accuracy.reached(dense, "dgc", 2, tmp_path, [1.0, 1.15])
    assert longer.steps == 230
    assert tried == pytest.approx({200: 3.2, 230: 2.9})


def test_more_accuracy_is_better(suite: SimpleNamespace, dense: Any, tmp_path: Path) -> None:
    digits = replace(dense, task="digits-mlp")
    results(suite, tmp_path, digits, [2.8, 2.9, 3.0, 3.1])
    assert suite.time_to_accuracy.reached(digits, "dgc", 2, tmp_path)[0].steps == 220


def test_none_is(suite: SimpleNamespace, dense: Any, tmp_path: Path) -> None:
    tried = len(suite.time_to_accuracy.LONGER)
    results(suite, tmp_path, dense, [3.5, *[3.2] * (tried - 2), 3.1])
    with pytest.raises(SystemExit, match=r"3\.0000: 3\.5000 in 200 .*3\.1000 in 300 steps"):
        suite.time_to_accuracy.reached(dense, "dgc", 2, tmp_path)


def test_seconds_of_other_steps_are_not_taken(
    suite: SimpleNamespace, dense: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file keeps what was measured; another task's, method's or density's is none of it."""
    module, file = suite.time_to_accuracy, tmp_path / "time_to_accuracy.json"
    recorded = Path(module.__file__).parent / "results" / "time_to_accuracy.json"
    for more in ([], ["ef-topk"]):
        file.write_text(recorded.read_text())
        if more:  # a file of today
            found = json.loads(file.read_text())
            module._keep(found, dense, ["ef-topk"], file)
            del found["runs"]
            file.write_text(json.dumps(found))
        for words in (["--task", "digits-mlp"], ["--method", "dgc"], ["--density", "0.001"]):
            monkeypatch.setattr(sys, "argv", ["x", "--json", str(file), *words])
            with pytest.raises(SystemExit, match=r"measured of \{'task': 'words'.*another --json"):
                module.main()


def test_the_table_says_how_many_times_faster(suite: SimpleNamespace, dense: Any) -> None:
    module, run = suite.time_to_accuracy, replace(dense, method="ef-topk")
    seconds = {name: [s, s, 9 * s] for name, s in of_step(suite, run).items()}
    seconds[module.ALONE] = [0.005]
    checked = {"method": "dense", "steps": 60, "seconds": 121.0, "expected": 120.0, "apart": 0.0}
    found = {
        "rates": {"1gbit": {"seconds": seconds, "checks": [checked]}},
        "runs": [asdict(dense), asdict(replace(run, steps=250))],
    }
    text = module.tables(found)
    assert "| 1gbit | DDP fp32 | 200 | 2000 | 6.7 | 1.0× | 0.5× |" in text
    assert "| 1gbit | ef-topk | 250 | 10 | 0.0 | 160.0× | 80.0× |" in text
    assert "| 1gbit | dense | 60 | 121.0 | 120.0 | +1 % | 0.0e+00 |" in text


def test_what_the_readme_says_of_it_is_in_the_file(suite: SimpleNamespace) -> None:
    folder = Path(suite.time_to_accuracy.__file__).parent
    found = json.loads((folder / "results" / "time_to_accuracy.json").read_text())
    text = (folder / "README.md").read_text().partition("## Time to dense")[2]
    words = text.partition("\n## ")[0]
    metrics = found["metrics"]["ef-topk"]
    assert f"reads {metrics['dense']:.3f} bits" in words
    assert f"{metrics['found']:.3f} after {found['runs'][1]['steps']:,}" in words
    assert "two seeds" not in words or "seeds" in found

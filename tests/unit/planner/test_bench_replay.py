"""The planner's benchmarks: shapes of known networks, replayed training, turns."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from statistics import mean, median
from types import ModuleType

import pytest
import torch

from scripts import script

MODULES = ("models", "shapes", "replay", "turns")


@pytest.fixture(scope="module")
def bench() -> Iterator[dict[str, ModuleType]]:
    """The benchmark's modules, imported as the scripts beside them import them."""
    with script("planner", *MODULES):
        yield {name: __import__(name) for name in MODULES}


@pytest.mark.parametrize(
    ("name", "tensors", "elements"),
    [
        ("resnet50", 161, 25_557_032),
        ("resnet101", 314, 44_549_160),
        ("vgg16", 32, 138_357_544),
        ("bert_base", 199, 108_893_186),
        ("gpt2_small", 148, 124_439_808),
        ("lstm", 10, 85_974_278),
    ],
)
def test_networks_have_their_published_sizes(
    bench: dict[str, ModuleType], name: str, tensors: int, elements: int
) -> None:
    weights = list(bench["replay"].NETWORKS[name].weights())
    assert len(weights) == tensors
    assert sum(w.elements for w in weights) == elements
    assert len({w.name for w in weights}) == tensors


def test_work_of_images_is_the_published_multiply_adds(bench: dict[str, ModuleType]) -> None:
    work = {
        name: sum(w.work for w in bench["replay"].NETWORKS[name].weights())
        for name in ("resnet50", "resnet101", "vgg16")
    }
    assert work["resnet50"] == pytest.approx(4.1e9, rel=0.03)
    assert work["resnet101"] == pytest.approx(7.8e9, rel=0.03)
    assert work["vgg16"] == pytest.approx(15.5e9, rel=0.03)


@pytest.mark.parametrize("scale", [1, 16, 1000])
def test_scaled_networks_keep_order_and_time(bench: dict[str, ModuleType], scale: int) -> None:
    weights = list(bench["shapes"].gpt2_small())
    rows = bench["replay"].timings(weights, 2.0, scale)
    assert [r.name for r in rows] == [w.name for w in reversed(weights)]
    due = [r.due for r in rows]
    assert due == sorted(due)
    assert due[-1] == pytest.approx(2.0)
    for row, w in zip(rows, reversed(weights)):
        assert len(row.shape) == min(2, len(w.shape))
        if w.elements >= 100 * scale:
            assert math.prod(row.shape) == pytest.approx(w.elements / scale, rel=0.05)


def test_a_replayed_backward_gives_every_gradient_once(bench: dict[str, ModuleType]) -> None:
    replay = bench["replay"]
    rows = [replay.Timing(f"w{i}", (3 + i, 4), 1e-4 * i) for i in range(5)]
    model = replay.Replay(rows, 0.0)
    order = list[int]()
    for i, p in enumerate(model.parameters()):
        p.register_post_accumulate_grad_hook(lambda _, i=i: order.append(i))
    model().backward()
    first = [p.grad.clone() for p in model.parameters()]
    assert order == [0, 1, 2, 3, 4], "in the order of their times"
    assert all(g.shape == r.shape and g.abs().sum() > 0 for g, r in zip(first, rows))
    for p in model.parameters():
        p.grad = None
    model().backward()
    assert not any(torch.equal(p.grad, g) for p, g in zip(model.parameters(), first))


def test_a_replayed_backward_is_never_early(bench: dict[str, ModuleType]) -> None:
    replay = bench["replay"]
    model = replay.Replay([replay.Timing("w", (2,), 0.01)], 0.0)
    loss = model()
    loss.backward()
    assert replay.perf_counter() >= model.began + 0.01


@pytest.mark.parametrize(
    ("name", "parameters", "elements"),
    [("few_large", 6, 6_291_456), ("many_small", 120, 1_545_600), ("transformer", 51, 921_344),
     ("embedding", 7, 3_195_648)],
)  # fmt: skip
def test_models_train(
    bench: dict[str, ModuleType], name: str, parameters: int, elements: int
) -> None:
    training = bench["models"].MODELS[name]()
    own = list(training.model.parameters())
    assert len(own) == parameters
    assert sum(p.numel() for p in own) == elements
    training.loss().backward()
    assert all(p.grad is not None and bool(torch.isfinite(p.grad).all()) for p in own)


def test_the_table_is_four_fifths(bench: dict[str, ModuleType]) -> None:
    own = [p.numel() for p in bench["models"].embedding().model.parameters()]
    assert max(own) / sum(own) == pytest.approx(0.8, abs=0.01)


def test_a_transformer_does_not_look_ahead(bench: dict[str, ModuleType]) -> None:
    torch.manual_seed(0)
    model = bench["models"].Transformer(words=50, width=32, blocks=2)
    words = torch.randint(50, (1, 8))
    changed = words.clone()
    changed[0, 5:] = (changed[0, 5:] + 1) % 50
    assert torch.allclose(model(words)[:, :5], model(changed)[:, :5], atol=1e-5)


def test_a_rank_correlation(bench: dict[str, ModuleType]) -> None:
    kendall = bench["turns"].kendall
    assert kendall([1, 2, 3], [10, 20, 30]) == 1.0
    assert kendall([1, 2, 3], [3, 2, 1]) == -1.0
    assert kendall([1, 2, 3], [1, 3, 2]) == pytest.approx(1 / 3)
    assert kendall([1], [1]) == 1.0


def test_disturbed_turns_do_not_count_where_there_are_others(bench: dict[str, ModuleType]) -> None:
    undisturbed = bench["turns"].undisturbed
    calm = [(1.0, 0.0)] * 8
    assert undisturbed([*calm, (9.0, 0.5)]) == [1.0] * 8
    assert undisturbed([(float(i), i / 10) for i in range(20)]) == [float(i) for i in range(10)]


def test_an_interval_holds_the_ratio(bench: dict[str, ModuleType]) -> None:
    ratio, low, high = bench["turns"].against(
        [2.0, 2.1, 1.9, 2.0] * 4, [[1.0, 1.05, 0.95, 1.0] * 4]
    )
    assert ratio == pytest.approx(2.0)
    assert 1.7 < low <= 2.0 <= high < 2.3


def test_the_luckiest_of_many_is_not_the_best(bench: dict[str, ModuleType]) -> None:
    """Of twenty equal plans none is found better, although one has the smallest median."""
    dice, ratios, naive = random.Random(1), list[float](), list[float]()
    for _ in range(30):
        of_turns = [[dice.uniform(0.8, 1.2) for _ in range(6)] for _ in range(20)]
        own, *others = [[t for t in turns for _ in range(4)] for turns in of_turns]
        ratios.append(bench["turns"].against(own, others)[0])
        naive.append(median(own) / min(map(median, others)))
    assert mean(ratios) == pytest.approx(1.0, abs=0.04)
    assert mean(naive) > 1.1


def test_only_pairs_that_count_are_ranked(bench: dict[str, ModuleType]) -> None:
    kendall = bench["turns"].kendall
    assert kendall([1, 2, 3], [2, 1, 9], lambda i, j: max(i, j) == 2) == 1.0
    assert kendall([1, 2], [2, 1], lambda i, j: False) == 1.0

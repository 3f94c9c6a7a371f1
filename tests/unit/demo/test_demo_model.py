"""The model and the order of its data."""

import itertools
import math

import pytest
import torch

from gradwire.demo import model
from gradwire.demo.runner import _PARAMETERS


@pytest.mark.parametrize("hidden", [650, 325])
def test_the_model_has_the_size_that_is_told(hidden: int) -> None:
    with torch.device("meta"):
        built = model.LanguageModel(hidden=hidden)
    assert sum(p.numel() for p in built.parameters()) == _PARAMETERS[hidden]


def test_an_untrained_model_knows_nothing() -> None:
    torch.manual_seed(0)
    built = model.LanguageModel(vocabulary=50, hidden=8)
    words = torch.randint(50, (6, 4))
    loss, _ = built(words[:-1], words[1:])
    assert loss.item() == pytest.approx(math.log(50), abs=0.1)


def test_the_state_goes_on() -> None:
    torch.manual_seed(0)
    built = model.LanguageModel(vocabulary=50, hidden=8)
    words = torch.randint(50, (9, 2))
    whole, _ = built(words[:-1], words[1:])
    first, hidden = built(words[:4], words[1:5])
    second, _ = built(words[4:8], words[5:9], hidden)
    assert (first + second).item() / 2 == pytest.approx(whole.item(), abs=1e-6)


def test_streams_are_contiguous_pieces_of_the_text() -> None:
    columns = model.streams(torch.arange(11), 2)
    assert columns.t().tolist() == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]]


def test_batches_follow_each_other_and_start_again() -> None:
    columns = model.streams(torch.arange(14), 2)
    got = list(itertools.islice(model.batches(columns, 3), 3))
    words = [batch[0][:, 0].tolist() for batch in got]
    following = [batch[1][:, 0].tolist() for batch in got]
    assert words == [[0, 1, 2], [3, 4, 5], [0, 1, 2]]
    assert following == [[1, 2, 3], [4, 5, 6], [1, 2, 3]]
    assert [batch[2] for batch in got] == [True, False, True]


@pytest.mark.parametrize("world", [1, 2, 3, 4, 7, 20])
def test_shares_are_the_whole_and_equal_as_can_be(world: int) -> None:
    columns = model.streams(torch.arange(160), 16)
    shares = [model.share(columns, rank, world) for rank in range(world)]
    together = sorted(word for part in shares for word in part.flatten().tolist())
    assert together == list(range(160))
    widths = [part.shape[1] for part in shares]
    assert max(widths) - min(widths) <= 1


@pytest.mark.parametrize("world", [1, 3, 5])
def test_the_loss_of_all_shares_is_the_loss_of_the_whole(world: int) -> None:
    torch.manual_seed(0)
    built = model.LanguageModel(vocabulary=50, hidden=8)
    columns = torch.randint(50, (10, 4))
    total, count = model.loss_sum(built, columns)
    parts = [model.loss_sum(built, model.share(columns, rank, world)) for rank in range(world)]
    assert count == 36
    assert sum(part for _, part in parts) == 36
    assert sum(part for part, _ in parts) == pytest.approx(total, rel=1e-6)

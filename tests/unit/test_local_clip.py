"""LocalClip: the limit of a rank's gradient norm, by what the plan in force does with the norm."""

from __future__ import annotations

import math

import pytest
import torch

from gradwire.strategy import Strategy
from gradwire.training.clipping import LocalClip

NORM, WORLD = 0.5, 4


@pytest.mark.parametrize(
    ("texts", "limit"),
    [
        (["none | allreduce"], 1.0),
        (["dgc(0.1) | allgather", "none+server_momentum | allreduce"], 1.0),
        (["onebit+shared_momentum | alltoall"], 1.0),
        (["lloyd(2)+adam | allgather", "none+server_adam | allreduce"], 0.5),
        (["none+muon | allreduce", "lloyd(2)+adam | allgather"], 1.0),
    ],
)
def test_the_limit_is_sqrt_n_c_where_lengths_count_and_c_where_a_rank_divides_by_its_own(
    texts: list[str], limit: float
) -> None:
    clip = LocalClip(NORM, WORLD)
    clip.follow(map(Strategy.parse, texts))
    for norm in (0.9 * limit, limit, 2 * limit, 100 * limit):
        assert clip.scale_for(norm) == pytest.approx(min(1.0, limit / norm))
    for unknown in (None, 0.0, math.inf, math.nan):
        assert clip.scale_for(unknown) == 1.0


def test_the_plan_in_force_says_it() -> None:
    clip = LocalClip(NORM, WORLD)
    assert clip.scale_for(2.0) == 0.5
    clip.follow([Strategy.parse("lloyd(1)+adam | allgather")])
    assert clip.scale_for(2.0) == 0.25
    clip.follow([Strategy.parse("topk(0.1)+ef | allgather")])
    assert clip.scale_for(2.0) == 0.5


def test_the_norm_is_of_all_that_was_looked_at() -> None:
    clip = LocalClip(NORM, WORLD)
    clip.look([torch.tensor([3.0]), torch.tensor([[0.0, 4.0]])])
    clip.look([torch.tensor([12.0])])
    assert clip.learn() == clip.seen == 13.0
    clip.look([torch.tensor([math.inf])])
    assert clip.learn() == math.inf
    assert clip.seen == 13.0

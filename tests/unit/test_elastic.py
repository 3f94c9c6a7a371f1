"""Residuals when the number of ranks changes: nothing is lost, nothing is doubled."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from gradwire.errors import PlanError
from gradwire.training.elastic import regroup, sources, weight

N = 10
RANKS = st.integers(1, 9)


def entries(world: int, keys: tuple[str, ...], *, equal: bool = False) -> dict[int, Any]:
    def drawn(rank: int, size: int) -> Tensor:
        return torch.randn(size, generator=torch.Generator().manual_seed(0 if equal else rank))

    return {
        rank: {"part": [0, 1], "state": {"w": {key: drawn(rank, N) for key in keys}}}
        for rank in range(world)
    }


def resized(old: dict[int, Any], plan: dict[str, list[str]], world: int) -> list[Any]:
    before = len(old)
    return [
        regroup({k: old[k] for k in sources(r, world, before)}, plan, {"w": N}, before, world)
        for r in range(world)
    ]


def mean(of: Any, key: str) -> Tensor:
    """The mean over entries, which the average delivers."""
    values = [entry["state"]["w"][key].double() for entry in of]
    return torch.stack(values).sum(0) / len(values)


@given(RANKS, RANKS)
def test_every_rank_goes_somewhere_with_its_weight(before: int, world: int) -> None:
    goes = [k for r in range(world) for k in sources(r, world, before)]
    assert set(goes) == set(range(before))
    for k in range(before):
        assert goes.count(k) * weight(k, before, world) == pytest.approx(world / before)


@given(RANKS, RANKS)
def test_what_came_at_other_rates_is_brought_to_one(before: int, world: int) -> None:
    """A rank that has left a Join has residuals of an earlier learning rate."""
    old = entries(before, ("residual", "velocity"))
    for rank, own in old.items():
        own["rates"] = {repr(0.5**rank): ["w"]}
        own["leftovers"] = {"w": own["state"]["w"]["residual"].clone()}
    new = resized(old, {"dgc(0.1) | allgather": ["w"]}, world)

    def arrives(of: list[Any], get: Any) -> Tensor:
        """The mean of rate times value, which the average delivers."""
        rates = [float(rate) for own in of for rate in own["rates"]]
        values = [rate * get(own).double() for rate, own in zip(rates, of, strict=True)]
        return torch.stack(values).sum(0) / len(of)

    for get in (lambda own: own["state"]["w"]["residual"], lambda own: own["leftovers"]["w"]):
        torch.testing.assert_close(
            arrives(new, get), arrives(list(old.values()), get), rtol=1e-6, atol=1e-6
        )
    torch.testing.assert_close(
        mean(new, "velocity"), mean(old.values(), "velocity"), rtol=1e-6, atol=1e-6
    )


@given(RANKS, RANKS)
def test_what_the_average_will_deliver_is_kept(before: int, world: int) -> None:
    old = entries(before, ("residual", "velocity"))
    new = resized(old, {"dgc(0.1) | allgather": ["w"]}, world)
    for key in ("residual", "velocity"):
        torch.testing.assert_close(mean(new, key), mean(old.values(), key), rtol=1e-6, atol=1e-6)


def test_four_two_four() -> None:
    """From four ranks to two and back: Σ v/n stays the same, exactly but for rounding."""
    plan = {"topk(0.1)+ef | allgather": ["w"]}
    old = entries(4, ("residual",))
    two = resized(old, plan, 2)
    assert torch.equal(
        two[0]["state"]["w"]["residual"],
        old[0]["state"]["w"]["residual"] * 0.5 + old[2]["state"]["w"]["residual"] * 0.5,
    )
    four = resized(dict(enumerate(two)), plan, 4)
    torch.testing.assert_close(
        mean(four, "residual"), mean(old.values(), "residual"), rtol=1e-6, atol=1e-6
    )


@pytest.mark.parametrize("world", [1, 2, 3, 5])
@pytest.mark.parametrize(
    ("strategy", "key"),
    [
        ("none+server_momentum(0.9) | allreduce", "velocity"),
        ("topk(0.1)+ef21 | allgather", "mean"),
        ("powersgd(4)", "right_factor"),
    ],
)
def test_what_is_equal_on_all_ranks_stays(world: int, strategy: str, key: str) -> None:
    old = entries(3, (key,), equal=True)
    for entry in resized(old, {strategy: ["w"]}, world):
        assert torch.equal(entry["state"]["w"][key], old[0]["state"]["w"][key])


@pytest.mark.parametrize("world", [1, 2, 6])
def test_what_owners_keep_of_the_mean_is_delivered(world: int) -> None:
    """Each owner has a piece of the mean's residual; the ranks' leftovers average to the whole."""
    from gradwire.layout.pieces import Pieces

    pieces = Pieces.of("w", N, 3)
    whole = torch.randn(N)
    old = {
        r: {"part": [0, 1], "state": {"w": {"owners_residual": whole[slice(*pieces.of_owner(r))]}}}
        for r in range(3)
    }
    new = resized(old, {"qsgd(4)+ef | alltoall": ["w"]}, world)
    total = sum(e["leftovers"]["w"] if e["leftovers"] else torch.zeros(N) for e in new) / world
    torch.testing.assert_close(total, whole)


@pytest.mark.parametrize("world", [1, 2, 6])
def test_what_owners_keep_joins_the_residual_beside_it(world: int) -> None:
    """The residual may be of a momentum: as a gradient's leftovers a tenth of it would count."""
    from gradwire.layout.pieces import Pieces

    pieces, means, residuals = Pieces.of("w", N, 3), torch.randn(N), torch.randn(3, N)
    old = {}
    for r in range(3):
        own = {"owners_residual": means[slice(*pieces.of_owner(r))], "residual": residuals[r]}
        old[r] = {"part": [0, 1], "state": {"w": own}}
    new = resized(old, {"onebit+shared_momentum | alltoall": ["w"]}, world)
    wanted = (means + residuals.mean(0)).double()
    torch.testing.assert_close(mean(new, "residual"), wanted, rtol=1e-6, atol=1e-6)
    assert not any(entry["leftovers"] for entry in new)


@given(st.integers(2, 9), st.integers(1, 9))
def test_fewer_ranks_keep_the_mean_of_their_momentum(before: int, world: int) -> None:
    """Those that are left keep what waits by its part of the former average, and their momentum as
    it is. Beside newcomers, which have none, it grows, so that its mean stays."""
    old = entries(before, ("residual", "velocity"))
    left = range(min(before - 1, world)) if world < before else range(before)
    plan, sizes = {"dgc(0.1) | allgather": ["w"]}, {"w": N}
    new = [regroup({k: old[k]}, plan, sizes, before, world, world / before) for k in left]
    stays = sum(entry["state"]["w"]["residual"].double() for entry in new) / world
    expected = sum(old[k]["state"]["w"]["residual"].double() for k in left) / before
    torch.testing.assert_close(stays, expected, atol=1e-6, rtol=1e-5)
    momentum = sum(entry["state"]["w"]["velocity"].double() for entry in new) / world
    of_old = sum(old[k]["state"]["w"]["velocity"].double() for k in left) / len(left)
    torch.testing.assert_close(momentum, of_old, atol=1e-6, rtol=1e-5)


def test_leftovers_are_regrouped_too() -> None:
    old = {r: {"part": [0, 1], "state": {}, "leftovers": {"w": torch.full((N,), 1.0 + r)}}
           for r in range(4)}  # fmt: skip
    new = resized(old, {}, 2)
    assert [float(e["leftovers"]["w"][0]) for e in new] == [(1 + 3) / 2, (2 + 4) / 2]


@pytest.mark.parametrize(("key", "part"), [("residual/1", [0, 1]), ("owners_residual", [0, 2])])
def test_what_belongs_to_a_grouping_is_refused(key: str, part: list[int]) -> None:
    old = {r: {"part": part, "state": {"w": {key: torch.zeros(3)}}} for r in range(2)}
    with pytest.raises(PlanError, match=r"as saved it, 2;.*flush"):
        resized(old, {"int8+ef | alltoall": ["w"]}, 1)


def test_a_threshold_is_found_again() -> None:
    old = entries(2, ("residual",))
    for entry in old.values():
        entry["state"]["w"]["threshold"] = torch.ones(1)
    for entry in resized(old, {"topk(0.1)+ef | oktopk": ["w"]}, 1):
        assert set(entry["state"]["w"]) == {"residual"}


@pytest.mark.parametrize("world", [1, 3, 5])
@pytest.mark.parametrize("noise", [0.0, 1.0])
def test_moments_of_the_average_stay_known_as_such(world: int, noise: float) -> None:
    """A noise of zeros says that they are the average's; any other is measured anew."""
    old = entries(2, ("exp_avg", "exp_avg_sq", "residual"))
    for entry in old.values():
        entry["state"]["w"]["noise"] = torch.full((3,), noise)
    for entry in resized(old, {"lloyd(2)+adam | allgather": ["w"]}, world):
        kept = [x.tolist() for key, x in entry["state"]["w"].items() if key == "noise"]
        assert kept == ([] if noise else [[0.0] * 3])


@pytest.mark.parametrize("world", [1, 2, 12])
def test_a_count_of_steps_stays_a_whole_number(world: int) -> None:
    """A ninth of 3, taken nine times, is less than 3 in fp32, and bias correction takes 2."""
    old = entries(9, ("exp_avg",))
    for entry in old.values():
        entry["state"]["w"]["steps"] = torch.tensor([3.0])
    for entry in resized(old, {"lloyd(2)+adam | allgather": ["w"]}, world):
        assert entry["state"]["w"]["steps"].tolist() == [3.0]

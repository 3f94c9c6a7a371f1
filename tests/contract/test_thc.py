"""thc: one grid for all ranks, codes that add up, and residuals."""

from __future__ import annotations

import pytest
import torch
from several import Several, all_nan, drawn, mean
from torch import Tensor

from gradwire import Strategy, lockstep
from gradwire.collectives import THC
from gradwire.collectives.thc import BLOCK, _rotated, width_of
from gradwire.errors import StrategyError

SHAPES = {"a": (30, 70), "b": (1500,), "c": (3,), "d": (0, 4)}
LOST = {2: 0.190, 3: 0.0469, 4: 0.0129, 5: 0.00369, 6: 0.00107, 7: 3.1e-4, 8: 8.8e-5}
"""The relative squared error of normal numbers at evenly spaced levels: Max 1960, table II. For 8
levels, one more than 3 bits have here, that is 0.0374."""


def residuals(run: Several, name: str) -> Tensor:
    return torch.stack([memory[name]["residual"].double() for memory in run.memories]).sum(0)


def test_the_rotation_is_orthogonal_and_undoes_itself() -> None:
    eye = torch.eye(BLOCK)
    h = _rotated(eye)
    assert torch.allclose(h, h.t())
    assert torch.allclose(h @ h, eye, atol=1e-5)
    assert torch.allclose(h.abs(), torch.full_like(h, BLOCK**-0.5))


@pytest.mark.parametrize("bits", range(2, 9))
def test_what_is_normal_loses_what_levels_lose(bits: int) -> None:
    x = torch.randn(64 * BLOCK, generator=torch.Generator().manual_seed(bits))
    (result,), _ = lockstep(f"thc({bits})", [x])
    assert float((result - x).square().sum() / x.square().sum()) == pytest.approx(
        LOST[bits], rel=0.1
    )


def test_a_spike_is_within_half_a_step() -> None:
    """Rotation spreads a spike evenly over elements, within the reach of the outermost level."""
    x = torch.zeros(BLOCK)
    x[17] = 5.0
    (result,), _ = lockstep("thc(3)", [x])
    lost = float((result - x).square().sum() / x.square().sum())
    assert 0 < lost <= (1.95 / 3 / 2) ** 2


@pytest.mark.parametrize("world", [1, 2, 3, 5])
@pytest.mark.parametrize("bits", [2, 4, 8])
def test_nothing_is_lost_over_steps(world: int, bits: int) -> None:
    run, total = Several(f"thc({bits})", SHAPES, world), dict.fromkeys(SHAPES, 0.0)
    given: dict[str, Tensor | float] = dict.fromkeys(SHAPES, 0.0)
    for step in range(6):
        gradients = drawn(SHAPES, world, step)
        results = run.step(gradients)
        for name in SHAPES:
            given[name] = given[name] + mean(gradients, name)
            total[name] = total[name] + results[0][name].double()
            assert all(torch.equal(mine[name], results[0][name]) for mine in results)
    for name in ("a", "b", "c"):
        waits = residuals(run, name) / world
        off = (total[name] + waits - given[name]).norm() / given[name].norm()  # type: ignore[union-attr]
        assert float(off) < 1e-5, name


def test_what_waits_stays_small_where_ranks_differ() -> None:
    """A rank's residual is that of its own codes, not of the mean."""
    x = torch.randn(2 * BLOCK, generator=torch.Generator().manual_seed(1))
    state = [dict[str, Tensor]() for _ in range(2)]
    for step in range(30):
        lockstep("thc(4)", [x, -x], step=step, state=state)
    for memory in state:
        assert float(memory["residual"].norm()) < 0.3 * float(x.norm())


def test_ranks_of_any_size_share_a_grid() -> None:
    """The grid is that of the largest rank, which is cut no more than it would be alone."""
    x = torch.randn(BLOCK, generator=torch.Generator().manual_seed(2))
    results, _ = lockstep("thc(6)", [x, 1e-3 * x, torch.zeros(BLOCK), x])
    wanted = 2.001 / 4 * x
    assert float((results[0] - wanted).norm() / wanted.norm()) < 0.06


@pytest.mark.parametrize("world", [1, 2, 9, 18, 64, 500])
@pytest.mark.parametrize("bits", range(2, 9))
def test_sums_have_room(bits: int, world: int) -> None:
    most = world * (2 ** (bits - 1) - 1)
    assert most < 2 ** (width_of(bits, world) - 1) <= 2 * most + 1


def test_sums_at_the_ends_of_their_room_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """All codes are as large as can be, of one sign, on all ranks."""
    for world in (2, 3, 9, 18):
        x = _rotated(torch.ones(2 * BLOCK).view(-1, BLOCK)).view(-1)
        with monkeypatch.context() as patched:
            patched.setattr("gradwire.collectives.thc._signs", lambda *_: torch.ones(BLOCK))
            for sign in (1.0, -1.0):
                results, _ = lockstep("thc(2)", [sign * x] * world)
                wanted = sign * 1.22 * x  # one level: the reach
                assert torch.allclose(results[0], wanted, atol=1e-4), (world, sign)


def test_a_spoiled_step_leaves_all_as_it_was() -> None:
    run = Several("thc(4)", SHAPES, 3)
    run.step(drawn(SHAPES, 3, 0))
    before, gradients = run.kept(), drawn(SHAPES, 3, 1)
    gradients[2]["b"][7] = torch.inf
    results = run.step(gradients)
    assert all_nan(results)
    for memory, known in zip(run.kept(), before):
        for name in ("a", "b", "c"):
            assert torch.equal(memory[name]["residual"], known[name]["residual"])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_what_16_bits_cannot_say_waits(dtype: torch.dtype) -> None:
    run = Several("thc(8)", {"a": (40, 40)}, 2, dtype=dtype)
    gradients = drawn({"a": (40, 40)}, 2, 0)
    total = torch.zeros(40, 40, dtype=torch.float64)
    for _ in range(5):
        total += run.step(gradients)[0]["a"].double()
    given = sum(g["a"].to(dtype).double() for g in gradients) / 2 * 5
    assert float((total + residuals(run, "a") / 2 - given).norm() / given.norm()) < 1e-5


def test_large_gradients_are_finite() -> None:
    x = torch.full((BLOCK,), 1e30)
    (result, _), _ = lockstep("thc(8)", [x, x])
    assert torch.allclose(result, x, rtol=0.2)


def test_too_large_for_what_is_sent_is_not_finite_on_all_ranks() -> None:
    """What one rank sends may overflow where the mean, and all norms, do not."""
    dice = torch.Generator().manual_seed(0)
    x = 3e38 * torch.randn(BLOCK, generator=dice).sign()
    state: list[dict[str, Tensor]] = [{}, {}]
    results, _ = lockstep("thc(8)", [x, torch.zeros(BLOCK)], state=state)
    assert all(bool(result.isnan().all()) for result in results)
    assert all(bool(x.isfinite().all()) for own in state for x in own.values())


def test_grouping_changes_nothing() -> None:
    one = Several("thc(4)", SHAPES, 2)
    two = Several("thc(4)", SHAPES, 2, buckets=[["c", "b"], ["d", "a"]])
    for step in range(3):
        gradients = drawn(SHAPES, 2, step)
        mine, theirs = one.step(gradients), two.step(gradients)
        assert all(torch.equal(mine[0][n], theirs[0][n]) for n in SHAPES)


@pytest.mark.parametrize("bits", [1, 9, 4.0, True, "4"])
def test_what_it_does_not_take(bits: object) -> None:
    with pytest.raises(StrategyError, match="a whole number from 2 to 8"):
        THC(bits)  # type: ignore[arg-type]


def test_more_bits_are_finer() -> None:
    assert THC(5).is_as_fine_as(THC(4))
    assert not THC(3).is_as_fine_as(THC(4))
    assert str(Strategy.parse("thc")) == "thc"


def test_a_skipped_step_gives_back_what_was_sent() -> None:
    """Each rank puts what it sent back into its own residual."""
    run = Several("thc(4)", SHAPES, 3)
    run.step(drawn(SHAPES, 3, 0))
    before, gradients = run.kept(), drawn(SHAPES, 3, 1)
    assert all_nan(run.step(gradients, skipped=True))
    for memory, known, mine in zip(run.kept(), before, gradients):
        for name in ("a", "b", "c"):
            wanted = known[name]["residual"] + mine[name]
            assert torch.allclose(memory[name]["residual"], wanted, atol=1e-5)

"""recode: hop by hop, what each loses, and damage on the way."""

from __future__ import annotations

import pytest
import torch
from several import Several, all_nan, drawn, mean
from torch import Tensor

from gradwire import lockstep
from gradwire.collectives import Recode
from gradwire.errors import PayloadError, StrategyError

SHAPES = {"a": (30, 70), "b": (1500,), "c": (3,), "d": (0, 4)}
WORLDS = [1, 2, 3, 4, 5, 7, 8]
INT8 = "recode('int8')"


def residuals(run: Several, name: str) -> Tensor:
    return torch.stack([memory[name]["residual"].double() for memory in run.memories]).sum(0)


@pytest.mark.once
@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize(
    "by", ["int8", "mx('e2m1')", "qsgd(2)", "topk(0.05)", "lloyd(2, turns=3)"]
)
def test_nothing_is_lost_over_steps(world: int, by: str) -> None:
    run = Several(f'recode("{by}")', SHAPES, world)
    total = {n: torch.zeros(shape, dtype=torch.float64) for n, shape in SHAPES.items()}
    given = {n: x.clone() for n, x in total.items()}
    for step in range(6):
        gradients = drawn(SHAPES, world, step)
        results = run.step(gradients)
        for name in SHAPES:
            given[name] += mean(gradients, name)
            total[name] += results[0][name]
            assert all(torch.equal(mine[name], results[0][name]) for mine in results)
    for name in ("a", "b", "c"):
        off = (total[name] + residuals(run, name) / world - given[name]).norm()
        assert float(off / given[name].norm()) < 1e-5, name


@pytest.mark.parametrize("world", WORLDS)
def test_what_is_lossless_gives_the_mean(world: int) -> None:
    """Whole numbers have the exact mean, whatever the order."""
    gradients = [{n: (9 * x).round() for n, x in g.items()} for g in drawn(SHAPES, world, 0)]
    run = Several("recode('none')", SHAPES, world)
    for mine in run.step(gradients):
        for name in ("a", "b", "c"):
            assert torch.allclose(mine[name], mean(gradients, name).float())
    for memory in run.memories:
        assert not any(memory[name]["residual"].any() for name in ("a", "b", "c"))


def test_each_rank_loses_of_each_element_once() -> None:
    """A rank rounds half of all elements in the first hop, as gradients; a quarter in the second,
    as sums of two, whose steps are twice as long where ranks are alike; and, as their owner, an
    eighth of the whole sum."""
    x = torch.randn(8 * 64, generator=torch.Generator().manual_seed(3))
    state = [dict[str, Tensor]() for _ in range(8)]
    lockstep("recode('qsgd(8)')", [x] * 8, state=state)
    waits = state[0]["residual"].view(8, 64).square().mean(1).sqrt()  # rank 0 owns the first
    first, second, third, last = waits[4:].mean(), waits[2:4].mean(), waits[1], waits[0]
    for shorter, longer in ((first, second), (second, third), (third, last)):
        assert 1.3 < float(longer / shorter) < 3


def test_hops_cost_what_they_are_said_to() -> None:
    """Independent gradients lose (log2(n) + 2) / 4 of what alltoall's two compressions lose."""
    n, world = 1 << 16, 8
    xs = [torch.randn(n, generator=torch.Generator().manual_seed(r)) for r in range(world)]
    wanted = torch.stack(xs).mean(0)
    mine, theirs = (
        (lockstep(text, xs)[0][0] - wanted).square().sum()
        for text in ("recode('qsgd(4)')", "qsgd(4) | alltoall")
    )
    assert float(mine / theirs) == pytest.approx(1.25, abs=0.12)


@pytest.mark.parametrize("world", [2, 3, 4, 6])
def test_a_spoiled_step_leaves_all_as_it_was(world: int) -> None:
    for spoiled in range(world):
        run = Several(INT8, SHAPES, world)
        run.step(drawn(SHAPES, world, 0))
        before, gradients = run.kept(), drawn(SHAPES, world, 1)
        gradients[spoiled]["b"][7] = torch.nan
        assert all_nan(run.step(gradients)), spoiled
        for memory, known in zip(run.kept(), before):
            for name in ("a", "b", "c"):
                assert torch.equal(memory[name]["residual"], known[name]["residual"])


def test_sums_beyond_16_bits_are_told_to_all() -> None:
    run = Several("recode('fp16')", {"a": (700,)}, 4)
    assert all_nan(run.step([{"a": torch.full((700,), 4e4)}] * 4))


@pytest.mark.parametrize("move", [0, 1, 2, 3, 4])
@pytest.mark.parametrize(
    ("at", "by"), [(0, 255), (3, 4), (16, 255)],
    ids=["what it says of itself", "what nobody says", "a scale"],
)  # fmt: skip
def test_damage_is_told_and_nobody_waits(move: int, at: int, by: int) -> None:
    """Among five ranks, one hands over first; every rank that learns of damage reports it."""

    def damaged(arrived: dict[int, Tensor]) -> dict[int, Tensor]:
        for message in arrived.values():
            message[at : at + 4] = by
        return arrived

    run = Several(INT8, SHAPES, 5)
    run.step(drawn(SHAPES, 5, 0))
    with pytest.raises(PayloadError, match="cannot be read"):
        run.step(drawn(SHAPES, 5, 1), damage=(move, 0, damaged))


@pytest.mark.parametrize("world", [2, 5])
def test_grouping_changes_nothing(world: int) -> None:
    one = Several("recode('qsgd(4)')", SHAPES, world)
    two = Several("recode('qsgd(4)')", SHAPES, world, buckets=[["c", "b"], ["d", "a"]])
    for step in range(3):
        gradients = drawn(SHAPES, world, step)
        mine, theirs = one.step(gradients), two.step(gradients)
        assert all(torch.equal(mine[0][n], theirs[0][n]) for n in SHAPES)


@pytest.mark.parametrize(
    ("by", "why"),
    [
        (3, "a compressor, as text; got 3"), ("zen", "compressor"), ("threshold(0.5)", "fixed"),
        ("sign", "without a size"), ("int8+ef", "compressor"),
    ],
)  # fmt: skip
def test_what_it_does_not_take(by: object, why: str) -> None:
    with pytest.raises(StrategyError, match=why):
        Recode(by)  # type: ignore[arg-type]


def test_finer_codes_are_finer() -> None:
    assert Recode("qsgd(8)").is_as_fine_as(Recode("qsgd(4)"))
    assert not Recode("qsgd(4)").is_as_fine_as(Recode("qsgd(8)"))
    assert not Recode("int8").is_as_fine_as(Recode("qsgd(4)"))
    assert Recode("qsgd(bits=4)") == Recode("qsgd")


def test_a_skipped_step_gives_back_what_was_sent() -> None:
    """Each rank puts what it sent back into its own residual."""
    run = Several(INT8, SHAPES, 3)
    run.step(drawn(SHAPES, 3, 0))
    before, gradients = run.kept(), drawn(SHAPES, 3, 1)
    assert all_nan(run.step(gradients, skipped=True))
    for memory, known, mine in zip(run.kept(), before, gradients):
        for name in ("a", "b", "c"):
            wanted = known[name]["residual"] + mine[name]
            assert torch.allclose(memory[name]["residual"], wanted, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_what_16_bits_cannot_say_waits(dtype: torch.dtype) -> None:
    shapes = {"a": (40, 40)}
    run, gradients = Several("recode('int8')", shapes, 3, dtype=dtype), drawn(shapes, 3, 0)
    total = torch.zeros(40, 40, dtype=torch.float64)
    for _ in range(5):
        total += run.step(gradients)[0]["a"].double()
    given = sum(g["a"].to(dtype).double() for g in gradients) / 3 * 5
    assert float((total + residuals(run, "a") / 3 - given).norm() / given.norm()) < 1e-5


def test_each_parameter_has_dice_of_its_own() -> None:
    shapes = {"a": (500,), "b": (500,)}
    x = torch.randn(500, generator=torch.Generator().manual_seed(5))
    (mine, _) = Several("recode('qsgd(2)')", shapes, 2).step([{"a": x, "b": x}] * 2)
    assert not torch.equal(mine["a"], mine["b"])

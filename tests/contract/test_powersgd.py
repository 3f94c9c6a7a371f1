"""powersgd over buckets of several parameters: what is exact, what is kept, what it costs."""

from __future__ import annotations

import pytest
import torch
from several import Named, Several, all_nan, drawn, equal, mean
from torch import Tensor

from gradwire import Strategy, lockstep
from gradwire.collectives import PowerSGD
from gradwire.errors import StrategyError
from gradwire.local import RIGHT_FACTOR

MIXED = {
    "conv": (6, 3, 3, 3), "bias": (6,), "one": (20, 30), "two": (20, 30), "three": (20, 30),
    "scalar": (), "small": (3, 3), "nothing": (0, 4), "tall": (40, 5),
}  # fmt: skip
DENSE = ("bias", "scalar", "small", "nothing")
WORLDS = pytest.mark.parametrize("world", [1, 2, 3])


def low_rank(shape: tuple[int, ...], rank: int, seed: int) -> Tensor:
    dice = torch.Generator().manual_seed(seed)
    rows = shape[0]
    columns = int(torch.Size(shape).numel()) // rows
    left, right = (torch.randn(side, rank, generator=dice) for side in (rows, columns))
    return (left @ right.t()).view(shape)


def steady(run: Several, gradients: list[Named], steps: int) -> list[Named]:
    results: list[Named] = []
    for _ in range(steps):
        results = run.step(gradients)
    return results


# -- what comes back exact -----------------------------------------------------------------------


@WORLDS
@pytest.mark.parametrize("rank", [1, 2, 4])
def test_matrices_of_that_rank_come_back_exact(world: int, rank: int) -> None:
    """Several matrices of one shape share a bucket, each with content of its own.

    The sum over the ranks has to be of rank r: all ranks share the right side's space.
    """
    shapes = {"a": (24, 36), "b": (24, 36), "c": (24, 36), "d": (36, 24), "conv": (24, 4, 3, 3)}
    shared = {n: low_rank(s, rank, p) for p, (n, s) in enumerate(shapes.items())}
    gradients = [{n: x * (1 + r) for n, x in shared.items()} for r in range(world)]
    run = Several(f"powersgd({rank})", shapes, world)
    first = run.step(gradients)
    second = run.step([{n: x * 0.5 for n, x in g.items()} for g in gradients])
    for results, scale in ((first, 1.0), (second, 0.5)):
        for name in shapes:
            wanted = scale * mean(gradients, name)
            for mine in results:
                off = (mine[name].double() - wanted).norm() / wanted.norm()
                assert float(off) <= 1e-4, f"{name}: off by {float(off)}"
    for memory in run.memories:
        for name in shapes:  # what a rank keeps is its difference to the mean, no more
            assert memory[name]["residual"].isfinite().all()


@WORLDS
def test_ranks_with_different_matrices_of_low_rank_in_sum(world: int) -> None:
    """Each rank brings rank 1, the sum has rank `world`, so it is exact from the warm start on."""
    shapes = {"a": (30, 20), "b": (30, 20)}
    gradients = [
        {n: low_rank(s, 1, 10 * r + p) for p, (n, s) in enumerate(shapes.items())}
        for r in range(world)
    ]
    run = Several(f"powersgd({world})", shapes, world)
    arrived = {n: torch.zeros(s, dtype=torch.float64) for n, s in shapes.items()}
    for step in range(4):
        (mine, *_) = run.step(gradients)
        for name in shapes:
            arrived[name] += mine[name].double()
            wanted = (step + 1) * mean(gradients, name)
            off = (arrived[name] - wanted).norm() / wanted.norm()
            assert float(off) <= 1e-4, f"step {step}, {name}: off by {float(off)}"


@WORLDS
def test_what_is_no_matrix_or_too_small_travels_dense(world: int) -> None:
    run = Several("powersgd(2)", MIXED, world)
    for step in range(3):
        gradients = [
            {n: (8 * x).round() for n, x in mine.items()} for mine in drawn(MIXED, world, step)
        ]
        results = run.step(gradients)
        for name in DENSE:
            total = torch.stack([g[name] for g in gradients]).sum(0)  # whole numbers: exact
            for mine in results:
                assert torch.equal(mine[name], total / world), name
    for memory in run.memories:
        for name in DENSE:
            assert not memory[name], f"'{name}' keeps something"
        for name in set(MIXED) - set(DENSE):
            assert set(memory[name]) == {"residual", RIGHT_FACTOR}


def test_only_dense_parameters_take_one_move() -> None:
    run = Several("powersgd(2)", {n: MIXED[n] for n in DENSE}, 2)
    run.step(drawn({n: MIXED[n] for n in DENSE}, 2))
    assert [span.label for span in run.trace.spans] == ["all_reduce"] * 2


# -- nothing is lost -----------------------------------------------------------------------------


@WORLDS
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_nothing_is_lost(world: int, dtype: torch.dtype) -> None:
    """Σ residuals + N · Σ results = Σ gradients, the rounding of bf16 results included."""
    run = Several("powersgd(2)", MIXED, world, dtype=dtype)
    given = {n: torch.zeros(s, dtype=torch.float64) for n, s in MIXED.items()}
    arrived = {n: torch.zeros(s, dtype=torch.float64) for n, s in MIXED.items()}
    for step in range(8):
        gradients = [
            {n: x.to(dtype).float() for n, x in mine.items()} for mine in drawn(MIXED, world, step)
        ]
        (mine, *_) = run.step(gradients)
        for name in set(MIXED) - set(DENSE):
            given[name] += world * mean(gradients, name)
            arrived[name] += world * mine[name].double()
            kept = torch.stack([m[name]["residual"].double() for m in run.memories]).sum(0)
            lost = kept.view(MIXED[name]) + arrived[name] - given[name]
            assert float(lost.abs().max()) <= 2e-5 * (step + 1), f"step {step}, {name}"


@WORLDS
def test_a_skipped_step_gives_back(world: int) -> None:
    run, shapes = Several("powersgd(2)", MIXED, world), set(MIXED) - set(DENSE)
    for step in range(3):
        gradients = drawn(MIXED, world, step)
        before = run.kept()
        run.step(gradients, skipped=True)
        for rank, memory in enumerate(run.memories):
            for name in shapes:
                waited = before[rank][name].get("residual", torch.zeros(()))
                wanted = waited + gradients[rank][name].view(-1)
                assert torch.allclose(memory[name]["residual"], wanted, rtol=1e-5, atol=1e-5)
        run.step(drawn(MIXED, world, 10 + step))


# -- against torch's own -------------------------------------------------------------------------


def hook_s_arithmetic(
    gradients: list[Tensor], errors: list[Tensor], q: Tensor
) -> tuple[Tensor, list[Tensor], Tensor]:
    """Steps 1 to 6 of torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook, for one matrix.

    It has the hook's defaults after the start: error feedback, warm start, the mean at the Qs.
    """
    given = [g + e for g, e in zip(gradients, errors)]
    p = torch.stack([m @ q for m in given]).sum(0)
    p = torch.linalg.qr(p).Q
    q = torch.stack([m.t() @ p for m in given]).sum(0) / len(given)
    result = p @ q.t()
    return result, [m - result for m in given], q


@WORLDS
@pytest.mark.parametrize("rank", [1, 3])
def test_it_is_the_arithmetic_of_torch_s_hook(world: int, rank: int) -> None:
    shapes = {"a": (17, 23), "b": (17, 23)}
    run = Several(f"powersgd({rank})", shapes, world)
    run.step(drawn(shapes, world, 0))
    known = {n: run.memories[0][n][RIGHT_FACTOR].clone() for n in shapes}
    errors = {
        n: [m[n]["residual"].clone().view(s) for m in run.memories] for n, s in shapes.items()
    }
    for step in range(1, 6):
        gradients = drawn(shapes, world, step)
        results = run.step(gradients)
        for name, shape in shapes.items():
            wanted, errors[name], known[name] = hook_s_arithmetic(
                [g[name] for g in gradients], errors[name], known[name]
            )
            for mine, memory, error in zip(results, run.memories, errors[name]):
                assert torch.allclose(mine[name], wanted, rtol=1e-3, atol=1e-3)
                kept = memory[name]["residual"].view(shape)
                assert torch.allclose(kept, error, rtol=1e-3, atol=1e-3)


# -- nasty gradients -----------------------------------------------------------------------------


@WORLDS
def test_zeros_give_no_nan(world: int) -> None:
    zeros = [{n: torch.zeros(s) for n, s in MIXED.items()} for _ in range(world)]
    run = Several("powersgd(2)", MIXED, world)
    for gradients in (zeros, zeros, drawn(MIXED, world), zeros, zeros):
        for mine in run.step(gradients):
            assert all(bool(x.isfinite().all()) for x in mine.values())
    for memory in run.memories:
        for state in memory.values():
            assert all(bool(v.isfinite().all()) for v in state.values())


def test_after_zeros_it_still_learns() -> None:
    """A factor that became zero would stay zero: then nothing would ever be sent again."""
    shapes = {"a": (20, 30)}
    run = Several("powersgd(2)", shapes, 2)
    steady(run, [{"a": torch.zeros(20, 30)}] * 2, 3)
    wanted = low_rank((20, 30), 2, 5)
    arrived = torch.zeros(20, 30)
    for _ in range(6):
        arrived += run.step([{"a": wanted}] * 2)[0]["a"]
    assert float((arrived / 6 - wanted).norm() / wanted.norm()) <= 1e-3


@pytest.mark.parametrize("value", [float("inf"), float("nan"), -float("inf")])
@pytest.mark.parametrize("where", ["one", "bias", "conv", "scalar"])
def test_one_bad_number_spoils_all_and_leaves_states(where: str, value: float) -> None:
    run = Several("powersgd(2)", MIXED, 3)
    for fresh in (True, False):
        if not fresh:
            run.step(drawn(MIXED, 3, 1))
        before, bad = run.kept(), drawn(MIXED, 3, 2)
        bad[1][where].view(-1)[-1] = value
        results = run.step(bad)
        assert all_nan(results)
        for memory, was in zip(run.memories, before):
            for name, state in memory.items():
                assert equal(dict(state), was[name]), name
    for mine in run.step(drawn(MIXED, 3, 3)):
        assert all(bool(x.isfinite().all()) for x in mine.values())


def test_a_product_that_overflows_spoils_all() -> None:
    run = Several("powersgd(2)", {"a": (20, 30)}, 2)
    run.step(drawn(run.shapes, 2))
    before = run.kept()
    assert all_nan(run.step([{"a": torch.full((20, 30), 3e38)}] * 2))
    for memory, was in zip(run.memories, before):
        assert equal(dict(memory["a"]), was["a"])


# -- ranks, bytes, text --------------------------------------------------------------------------


@WORLDS
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_all_ranks_end_equal_bit_for_bit(world: int, dtype: torch.dtype) -> None:
    run = Several("powersgd(3)", MIXED, world, dtype=dtype)
    for step in range(4):
        first, *others = run.step(drawn(MIXED, world, step))
        assert all(equal(mine, first) for mine in others)
        for name, state in run.memories[0].items():
            if RIGHT_FACTOR in state:
                for memory in run.memories:
                    assert torch.equal(memory[name][RIGHT_FACTOR], state[RIGHT_FACTOR])


@WORLDS
@pytest.mark.parametrize("rank", [1, 2, 4])
def test_bytes_are_r_times_a_plus_b(world: int, rank: int) -> None:
    run = Several(f"powersgd({rank})", MIXED, world)
    run.step(drawn(MIXED, world))
    numbers = 0
    for shape in MIXED.values():
        n = int(torch.Size(shape).numel())
        a = shape[0] if shape else 1
        b = n // a if a else 0
        thin = len(shape) > 1 and n > 0 and rank * (a + b) < n
        numbers += rank * (a + b) if thin else n
    assert run.trace.bytes_sent == pytest.approx([2 * (world - 1) / world * 4 * numbers] * world)


def test_the_grouping_never_changes_the_result() -> None:
    names = list(MIXED)
    whole, apart = Several("powersgd(2)", MIXED, 3), Several(
        "powersgd(2)", MIXED, 3, buckets=[names[5:], names[1:5], names[:1]]
    )  # fmt: skip
    for step in range(4):
        gradients = drawn(MIXED, 3, step)
        for one, other in zip(whole.step(gradients), apart.step(gradients)):
            assert equal(one, other)


def test_clipping_multiplies_the_gradient_first() -> None:
    one, other = (Several("powersgd(2)", MIXED, 2) for _ in "ab")
    for step in range(3):
        gradients = drawn(MIXED, 2, step)
        halves = [{n: x * 0.5 for n, x in g.items()} for g in gradients]
        for mine, wanted in zip(one.step(gradients, clip_scale=0.5), other.step(halves)):
            assert equal(mine, wanted)


@pytest.mark.parametrize("feedback", ["ef", "dgc", "ef21", "momentum", "server_momentum"])
def test_feedback_beside_it_is_refused(feedback: str) -> None:
    with pytest.raises(StrategyError, match=f"has its own error feedback.*{feedback}"):
        Strategy.parse(f"none+{feedback} | powersgd(4)")


@pytest.mark.parametrize("compressor", ["fp16", "topk(0.1)", "int8", "sign"])
def test_a_compressor_that_loses_beside_it_is_refused(compressor: str) -> None:
    with pytest.raises(StrategyError, match="needs a compressor that promises 'lossless'"):
        Strategy.parse(f"{compressor} | powersgd(4)")


@pytest.mark.parametrize("rank", ["0", "-1", "2.0", "'2'", "True", "None"])
def test_a_rank_that_is_no_whole_number_from_1_is_refused(rank: str) -> None:
    with pytest.raises(StrategyError, match="powersgd's rank must be a whole number, at least 1"):
        Strategy.parse(f"powersgd({rank})")


def test_the_alias_parses_prints_and_round_trips() -> None:
    short, long = Strategy.parse("powersgd(4)"), Strategy.parse("none | powersgd(4)")
    assert str(short) == "powersgd(4)"
    assert str(long) == str(short.expand()) == "none | powersgd(4)"
    assert short == long == short.expand()
    assert Strategy.parse(str(short)) == Strategy.parse(str(long)) == short
    assert short.collective == PowerSGD(4)
    assert short.feedback is None
    assert Strategy.parse("powersgd(rank=4)") == short
    assert short != Strategy.parse("powersgd(2)")


def test_the_alias_and_the_long_form_compute_the_same() -> None:
    xs = [torch.randn(12, 15, generator=torch.Generator().manual_seed(r)) for r in range(2)]
    one, other = lockstep("powersgd(2)", xs)[0], lockstep("none | powersgd(2)", xs)[0]
    assert torch.equal(one[0], other[0])

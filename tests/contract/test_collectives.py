"""The laws of a collective, with every compatible compressor and feedback, at 1 to 8 ranks."""

from __future__ import annotations

import instances
import laws
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from inputs import FLOATS, NASTY, integers, normal, ranks
from instances import BYTES_SENT, WORLDS, strategies

from gradwire import Strategy, lockstep
from gradwire.collectives import THC, GTopK, Hierarchical, Recode
from gradwire.compressors import Identity, TopK
from gradwire.feedback import ErrorFeedback, MomentumCorrection
from gradwire.local import OF_OTHER_SHAPE

N = 61
ALL = strategies()
MEMORYLESS = strategies((None,))
WITH_RESIDUAL = strategies(
    (
        ErrorFeedback(),
        MomentumCorrection(0.9),
        MomentumCorrection(0.9, mask=False),
        MomentumCorrection(0.9, nesterov=True),
        MomentumCorrection(0.0),
    )
)
LOSES_BY_DESIGN = GTopK(variant="tree")  # what a merge cuts on its way up, as published
KEEPS_PARTS = Hierarchical()  # with their owners: test_hierarchical.py
ROUNDS = THC, Recode
"""Collectives that round what they are given: tested in test_thc.py and test_recode.py."""
WHOLE = [
    s for s in MEMORYLESS
    if isinstance(s.compressor, Identity) and not isinstance(s.collective, ROUNDS)
]  # fmt: skip


def fixed(strategy: Strategy) -> bool:
    """Whether the sizes of its messages are known in advance."""
    by_data = isinstance(strategy.collective, instances.ON_STREAMS)
    return strategy.compressor.claims(N).fixed and not by_data


every = pytest.mark.parametrize("strategy", ALL, ids=instances.ids)
every_pair = pytest.mark.parametrize("strategy", MEMORYLESS, ids=instances.ids)
every_world = pytest.mark.parametrize("world", WORLDS)


@pytest.mark.once
@every
def test_ranks_end_equal(strategy: Strategy) -> None:
    for world in WORLDS:
        laws.law_ranks_end_equal(strategy, ranks(world, N))


@pytest.mark.once
@every_pair
@every_world
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_ranks_end_equal_in_every_format(
    strategy: Strategy, world: int, dtype: torch.dtype
) -> None:
    laws.law_ranks_end_equal(strategy, ranks(world, N, dtype=dtype))


@pytest.mark.parametrize("strategy", WHOLE, ids=instances.ids)
@every_world
def test_none_is_the_dense_mean(strategy: Strategy, world: int) -> None:
    for step in range(4):
        laws.law_is_the_mean(strategy, integers(world, N, step))


@pytest.mark.parametrize("text", ["fp16 | allreduce", "bf16 | allgather", "topk(1) | allgather"])
@every_world
def test_what_sends_whole_numbers_whole_is_the_dense_mean(text: str, world: int) -> None:
    laws.law_is_the_mean(Strategy.parse(text), integers(world, N))


@pytest.mark.parametrize("strategy", [s for s in MEMORYLESS if fixed(s)], ids=instances.ids)
@every_world
@pytest.mark.parametrize("n", [0, 1, N, 1000])
def test_bytes_follow_the_formula(strategy: Strategy, world: int, n: int) -> None:
    for dtype in (torch.float32, torch.float16):
        by_hand = BYTES_SENT[strategy.collective.name](
            strategy.compressor, world, n, dtype.itemsize
        )
        laws.law_bytes_follow_the_formula(strategy, ranks(world, n, dtype=dtype), by_hand)


@pytest.mark.once
@pytest.mark.parametrize("strategy", [s for s in ALL if fixed(s)], ids=instances.ids)
def test_moves_do_not_depend_on_the_data(strategy: Strategy) -> None:
    for world in (1, 3):
        zeros = [torch.zeros(N)] * world
        spoiled = [*ranks(world - 1, N), torch.full((N,), float("nan"))]
        laws.law_moves_do_not_depend_on_the_data(strategy, ranks(world, N), zeros)
        laws.law_moves_do_not_depend_on_the_data(strategy, ranks(world, N), spoiled)


@pytest.mark.once
@every
def test_inputs_stay(strategy: Strategy) -> None:
    laws.law_inputs_stay(strategy, ranks(3, N))


@pytest.mark.once
@every_pair
@pytest.mark.parametrize("name", NASTY)
def test_nasty_inputs(strategy: Strategy, name: str) -> None:
    x = NASTY[name]
    laws.law_ranks_end_equal(strategy, [x, x.flip(0), -x])


@pytest.mark.once
@pytest.mark.parametrize(
    "strategy",
    [s for s in WITH_RESIDUAL if s.collective not in (LOSES_BY_DESIGN, KEEPS_PARTS)],
    ids=instances.ids,
)
def test_nothing_is_lost(strategy: Strategy) -> None:
    """Nothing is lost, not even rounding errors of fp16 and bf16: they stay in the residual.

    AllReduce rounds once more, in the network, where no rank can keep the error.
    """
    rounds_in_flight = "sums" in strategy.collective.needs or "fixed" in strategy.collective.needs
    rounds_in_flight &= not isinstance(strategy.compressor, Identity)
    tolerance = 2.0**-7 if rounds_in_flight else 1e-5
    for world in (1, 3):
        laws.law_nothing_is_lost(strategy, [ranks(world, N, step) for step in range(6)], tolerance)


@given(
    steps=st.lists(
        st.lists(st.lists(st.integers(-5, 5), min_size=6, max_size=6), min_size=2, max_size=2),
        min_size=1,
        max_size=5,
    ),
    density=st.sampled_from([0.1, 0.4, 1.0]),
    values=st.sampled_from(["fp32", "bf16", "fp16"]),
)
def test_nothing_is_lost_of_drawn_whole_numbers(
    steps: list[list[list[int]]], density: float, values: str
) -> None:
    """Plain error feedback keeps whole numbers whole: not even a last bit is lost."""
    strategy = Strategy.parse(f"topk({density}, values={values!r})+ef | allgather")
    tensors = [[torch.tensor(x).float() for x in xs] for xs in steps]
    laws.law_nothing_is_lost(strategy, tensors, tolerance=0.0)


@every
@pytest.mark.parametrize("shape", [(), (5,), (3, 4), (2, 3, 2), (0,), (2, 0)], ids=str)
def test_results_have_the_input_s_shape(strategy: Strategy, shape: tuple[int, ...]) -> None:
    state: list[dict[str, torch.Tensor]] = [{}, {}]
    for step in range(2):
        xs = [normal(int(torch.Size(shape).numel()), s).view(shape) for s in range(2)]
        results, _ = lockstep(strategy, xs, step=step, state=state)
        assert all(r.shape == shape for r in results)
        if strategy.collective.per_node is None:  # otherwise states are of parts
            assert all(
                v.shape == shape for m in state for k, v in m.items() if k not in OF_OTHER_SHAPE
            )


@pytest.mark.once
@every_pair
def test_a_tensor_that_is_not_contiguous(strategy: Strategy) -> None:
    base = [x.view(8, 6) for x in ranks(3, 48)]
    turned, whole = [x.t() for x in base], [x.t().contiguous() for x in base]
    spread = [torch.stack([x, x], dim=-1)[..., 0] for x in whole]
    assert not any(x.is_contiguous() for x in (*turned, *spread))
    wanted = lockstep(strategy, whole)[0]
    for xs in (turned, spread):
        for result, want in zip(lockstep(strategy, xs)[0], wanted):
            laws.same(result, want, "not contiguous")


@every_pair
def test_a_gradient_that_autograd_knows(strategy: Strategy) -> None:
    xs = [x.requires_grad_() for x in ranks(2, N)]
    for result in lockstep(strategy, xs)[0]:
        assert not result.requires_grad


@pytest.mark.parametrize("text", ["topk(0.1)+ef | allgather", "dgc(0.1) | allgather"])
def test_one_rank_takes_the_same_path(text: str) -> None:
    """A job of one rank compresses as any other: the same moves, of no bytes."""
    x = normal(N)
    state: list[dict[str, torch.Tensor]] = [{}]
    (result,), trace = lockstep(text, [x], state=state)
    assert [(span.label, span.bytes) for span in trace.spans] == [("all_gather", 0.0)]
    assert int((result != 0).sum()) == TopK(0.1).k(N)
    assert torch.equal(result + state[0]["residual"], x)
    twice = lockstep(text, [x, x])[0]
    assert torch.equal(twice[0], result), "the mean of equal ranks"


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_allgather_sums_in_fp32_allreduce_in_the_wire_s_format(dtype: torch.dtype) -> None:
    xs = ranks(5, N, dtype=dtype)
    exact = torch.stack([x.float() for x in xs])
    total = exact[0]
    for x in exact[1:]:
        total = total + x
    gathered = lockstep("none | allgather", xs)[0][0]
    assert torch.equal(gathered, (total / 5).to(dtype))
    in_format = xs[0].clone()
    for x in xs[1:]:
        in_format += x
    reduced = lockstep("none | allreduce", xs)[0][0]
    assert torch.equal(reduced, (in_format.float() / 5).to(dtype))


@pytest.mark.parametrize("text", ["none | allgather", "topk(0.5) | allgather", "fp16 | allgather"])
def test_clip_scale_multiplies_the_gradient_first(text: str) -> None:
    xs = integers(3, N)
    clipped = lockstep(text, xs, clip_scale=0.25)[0][0]
    assert torch.equal(clipped, lockstep(text, [x * 0.25 for x in xs])[0][0])
    assert not torch.equal(clipped, lockstep(text, xs)[0][0])

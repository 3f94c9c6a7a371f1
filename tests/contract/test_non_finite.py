"""Inf or NaN on one rank: every rank notices it, and no residual takes it up."""

from __future__ import annotations

import contextlib

import instances
import laws
import pytest
import torch
from inputs import FLOATS, ranks
from instances import strategies
from several import Several, drawn
from torch import Tensor

from gradwire import Strategy, lockstep
from gradwire.buckets import Bucket, Parameter
from gradwire.feedback import ServerMomentum
from gradwire.moves import AllGather, AllReduce
from gradwire.runtime.context import BucketContext
from gradwire.runtime.contexts import make_context
from gradwire.runtime.lockstep import drive
from gradwire.strategy import StepInfo
from gradwire.trace import Trace

N, WORLD = 53, 3
BAD = (float("inf"), -float("inf"), float("nan"))


def spoiled(xs: list[Tensor], rank: int, value: float, place: int) -> list[Tensor]:
    changed = [x.clone() for x in xs]
    changed[rank][place] = value
    return changed


@pytest.mark.once
@pytest.mark.parametrize("strategy", strategies(), ids=instances.ids)
def test_a_bad_step_is_as_if_it_had_never_been(strategy: Strategy) -> None:
    steps = [ranks(WORLD, N, step) for step in range(3)]
    bad = [spoiled(ranks(WORLD, N, 7), rank, v, 11 * rank) for rank, v in enumerate(BAD)]
    laws.law_non_finite_spoils_the_step_and_nothing_else(strategy, steps, bad)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("text", ["topk(0.1)+ef | allgather", "fp16+ef | allreduce"])
def test_in_every_format(text: str, dtype: torch.dtype) -> None:
    steps = [ranks(WORLD, N, step, dtype) for step in range(2)]
    bad = [spoiled(ranks(WORLD, N, 7, dtype), 2, float("inf"), N - 1)]
    laws.law_non_finite_spoils_the_step_and_nothing_else(Strategy.parse(text), steps, bad)


@pytest.mark.parametrize("text", ["none | allreduce", "fp16 | allreduce", "fp16+ef | allreduce"])
def test_a_bad_step_leaves_nothing_between_the_values_of_two_parameters(text: str) -> None:
    """The padding must be clean after a bad step, since the network adds it up, too."""
    run = Several(text, {"a": (3,), "b": (0,), "c": (5,)}, WORLD)
    gradients = drawn(run.shapes, WORLD)
    gradients[1]["c"][2] = float("nan")
    assert all(x.isnan().all() for result in run.step(gradients) for x in result.values())
    for step in (1, 2):
        gradients = drawn(run.shapes, WORLD, step)
        for result in run.step(gradients):
            for name, x in result.items():
                mean = torch.stack([own[name] for own in gradients]).mean(0)
                assert torch.allclose(x, mean, atol=1e-2), "of good numbers"


@pytest.mark.parametrize("strategy", strategies(), ids=instances.ids)
def test_the_whole_result_is_nan_on_every_rank(strategy: Strategy) -> None:
    """All of it is NaN, as an optimizer could step by a result that is half good."""
    for result in lockstep(strategy, spoiled(ranks(WORLD, N), 1, float("inf"), 5))[0]:
        assert bool(result.isnan().all())


@pytest.mark.parametrize("text", ["topk(0.1)+ef | allgather", "dgc(0.1) | allgather"])
def test_a_residual_that_would_overflow_is_not_kept(text: str) -> None:
    """Each gradient is finite; their sum in the residual is not."""
    big = torch.full((20,), 3e38)
    state: list[dict[str, Tensor]] = [{}, {}]
    lockstep(text, [big, torch.ones(20)], state=state)
    before = [{k: v.clone() for k, v in memory.items()} for memory in state]
    for result in lockstep(text, [big, torch.ones(20)], state=state)[0]:
        assert not bool(result.isfinite().any())
    for memory, was in zip(state, before):
        assert all(torch.equal(memory[key], was[key]) for key in was)


def test_fp16_that_overflows_keeps_its_residual() -> None:
    """70,000 is finite, but not in fp16."""
    state: list[dict[str, Tensor]] = [{}, {}]
    x = torch.full((8,), 1.0 + 2.0**-12)
    lockstep("fp16+ef | allgather", [x, x], state=state)
    kept = state[0]["residual"].clone()
    assert bool(kept.any())
    results, _ = lockstep("fp16+ef | allgather", [x, x * 70_000], state=state)
    assert bool(results[0].isnan().all())
    assert torch.equal(state[0]["residual"], kept)


ENTRIES = ("topk(0.25)+ef", "dgc(0.25)")
COMPRESSED = (*ENTRIES, "int8+ef", "onebit+ef")
SENT = [(left, right) for right in ("allgather", "alltoall", "offload") for left in COMPRESSED] + [
    (left, right) for right in ("gtopk", 'gtopk(variant="tree")', "zen") for left in ENTRIES
]


@pytest.mark.parametrize(("left", "right"), SENT, ids=map(" | ".join, SENT))
def test_an_average_out_of_float16_leaves_states_as_they_were(left: str, right: str) -> None:
    """With residuals what is sent may leave the gradient's range, though all of it is finite;
    results lie where gradients do."""
    strategy, sizes = Strategy.parse(f"{left} | {right}"), {"a": 64, "b": 7}
    bucket = Bucket(tuple(Parameter(name, (n,), "float16") for name, n in sizes.items()))
    memories = [dict[str, dict[str, Tensor]]() for _ in range(2)]
    made = [make_context(strategy, bucket, r, 2, m) for r, m in enumerate(memories)]

    def step(number: int, value: float) -> list[bool]:
        for rank, context in enumerate(made):  # one has more in each half, so that merges cut
            x = [torch.linspace(1 - rank / 9, 0.9 + rank / 9, n) * value for n in sizes.values()]
            given = [own.half() for own in x]
            context.begin(given, given, StepInfo(number))
        drive([context.rounds() for context in made], Trace(2))
        results = [x for context in made for x in context.results]
        fine = [context.finite for context in made]
        for context in made:
            context.end(skipped=not all(fine))
        assert all(bool((x.isfinite() if all(fine) else x.isnan()).all()) for x in results)
        return fine

    assert step(0, 1.0) == [True, True]
    for memory in memories:
        for state in memory.values():
            state["residual"].fill_(120_000.0)
    before = [{n: {k: x.clone() for k, x in s.items()} for n, s in m.items()} for m in memories]
    assert step(1, 50_000.0) == [False, False]
    for memory, was in zip(memories, before):
        for name, state in memory.items():
            assert state.keys() == was[name].keys()
            for key, x in state.items():
                torch.testing.assert_close(x, was[name][key], rtol=1e-5, atol=0.05)


# -- a step of two buckets, as training takes it -----------------------------------------------


class Model:
    """One rank's two buckets of one step, driven by hand as the conductor does."""

    def __init__(self, strategies: list[str], rank: int, world: int) -> None:
        self.memory: dict[str, dict[str, Tensor]] = {}
        self.contexts = [
            BucketContext(
                Strategy.parse(text), Bucket((Parameter(f"p{i}", (N,)),)), rank, world, self.memory
            )
            for i, text in enumerate(strategies)
        ]

    def snapshot(self) -> dict[str, dict[str, Tensor]]:
        return {n: {k: v.clone() for k, v in s.items()} for n, s in self.memory.items()}


def step(models: list[Model], gradients: list[list[Tensor]], number: int) -> list[list[Tensor]]:
    """Takes one step of every rank; gradients and results are by rank, then by bucket."""
    results = [[torch.empty(N) for _ in model.contexts] for model in models]
    for b in range(len(models[0].contexts)):
        generators, moves = [], []
        for model, mine, out in zip(models, gradients, results):
            context = model.contexts[b]
            context.begin([mine[b]], [out[b]], StepInfo(number))
            generators.append(context.strategy.collective.rounds(context))
            moves.append(next(generators[-1]))
        data = torch.stack([move.data for move in moves])
        assert isinstance(moves[0], AllGather | AllReduce)
        if isinstance(moves[0], AllReduce):  # as a performer may
            for move in moves:
                move.data.copy_(data.sum(0))
        for generator in generators:
            arrived = data.clone() if isinstance(moves[0], AllGather) else data.sum(0)
            with contextlib.suppress(StopIteration):
                generator.send(arrived)
    for model in models:
        skipped = not all(context.finite for context in model.contexts)
        for context in model.contexts:
            context.end(skipped)
    return results


WITH_MEMORY = [
    "topk(0.1)+ef | allgather",
    "fp16+ef | allreduce",
    "bf16+ef | allgather",
    "topk(0.1)+dgc | allgather",
    "topk(0.1)+dgc(mask=False) | allgather",
    "topk(0.1)+dgc(nesterov=True) | allgather",
    "none+server_momentum | allreduce",
    "none+server_momentum(nesterov=True) | allgather",
]


@pytest.mark.parametrize("other", ["none | allreduce", "none | allgather", *WITH_MEMORY])
@pytest.mark.parametrize("text", WITH_MEMORY)
def test_what_the_other_buckets_sent_is_given_back(text: str, other: str) -> None:
    """The optimizer skips the step for all parameters, so bucket 0 must lose nothing to it."""
    world = 2
    models = [Model([text, other], rank, world) for rank in range(world)]
    step(models, [[xs, xs] for xs in ranks(world, N)], 0)
    before = [model.snapshot() for model in models]
    gradients = ranks(world, N, step=1)
    bad = gradients[1].clone()
    bad[3] = float("nan")
    step(models, [[gradients[0], gradients[0]], [gradients[1], bad]], 1)
    for model, was, g in zip(models, before, gradients):
        feedback = model.contexts[0].strategy.feedback
        if isinstance(feedback, ServerMomentum):
            now = model.memory["p0"]["velocity"]
            assert torch.equal(now, was["p0"]["velocity"]), "the momentum of a step not taken"
            continue
        more = laws.to_be_sent(feedback, g, was["p0"])
        wanted = was["p0"]["residual"].double() + more
        assert torch.allclose(model.memory["p0"]["residual"].double(), wanted, atol=1e-5)
        for key, value in model.memory["p1"].items():
            assert torch.allclose(value, was["p1"][key], atol=1e-5), f"p1 {key}"


def test_a_good_step_gives_nothing_back() -> None:
    models = [Model(["topk(0.1)+ef | allgather", "none | allreduce"], rank, 2) for rank in (0, 1)]
    gradients = ranks(2, N)
    results = step(models, [[g, g] for g in gradients], 0)
    waiting = sum(model.memory["p0"]["residual"] for model in models)
    assert torch.allclose(waiting + 2 * results[0][0], gradients[0] + gradients[1], atol=1e-5)
    assert all(len(model.memory["p0"]["residual"].nonzero()) == N - 6 for model in models)


@pytest.mark.parametrize("place", [0, 1])
@pytest.mark.parametrize("text", WITH_MEMORY)
def test_one_bad_parameter_spoils_its_bucket_alike_on_every_rank(text: str, place: int) -> None:
    """Parameters of one bucket share a message: all of them are NaN, and undone."""
    bucket = Bucket((Parameter("a", (N,)), Parameter("b", (7,))))
    memories: list[dict[str, dict[str, Tensor]]] = [{}, {}]
    contexts = [
        BucketContext(Strategy.parse(text), bucket, rank, 2, memory)
        for rank, memory in enumerate(memories)
    ]
    for number in range(2):  # the second one is bad
        results = [[torch.empty(N), torch.empty(7)] for _ in contexts]
        data = []
        before = [
            {n: {k: v.clone() for k, v in s.items()} for n, s in m.items()} for m in memories
        ]
        generators = [c.strategy.collective.rounds(c) for c in contexts]
        for rank, (context, generator) in enumerate(zip(contexts, generators)):
            gradients = [ranks(2, N, number)[rank], ranks(2, 7, number)[rank]]
            if number == 1:
                gradients[place][0] = float("inf")
            context.begin(gradients, results[rank], StepInfo(number))
            move = next(generator)
            data.append(move.data)
        stacked = torch.stack(data)
        for context, generator in zip(contexts, generators):
            with contextlib.suppress(StopIteration):
                generator.send(stacked if isinstance(move, AllGather) else stacked.sum(0))
            context.end(not context.finite)
    for mine in results:
        assert all(bool(result.isnan().all()) for result in mine)
    for memory, was in zip(memories, before):
        for name, state in was.items():
            for key, value in state.items():
                assert torch.allclose(memory[name][key], value, atol=1e-5), f"{name} {key}"


# -- a scaler searching: gradients far above what the residual holds ----------------------------


@pytest.mark.parametrize(
    "text",
    [
        "topk(0.01)+ef | allgather",
        "topk(0.01)+dgc | allgather",
        "topk(0.01)+dgc(mask=False) | allgather",
        "topk(0.01)+dgc(nesterov=True) | allgather",
    ],
)
def test_ten_skipped_steps_of_huge_gradients_leave_the_state_as_it_was(text: str) -> None:
    """Ordinary steps copy nothing, and yet skipped ones lose nothing."""
    n, world = 5000, 2
    memories: list[dict[str, dict[str, Tensor]]] = [{} for _ in range(world)]
    contexts = [
        BucketContext(Strategy.parse(text), Bucket((Parameter("p", (n,)),)), r, world, memory)
        for r, memory in enumerate(memories)
    ]

    def run(number: int, scale: float, spoilt: bool) -> None:
        generators, data = [], []
        for rank, context in enumerate(contexts):
            x = torch.randn(n, generator=torch.Generator().manual_seed(99 * number + rank))
            x *= scale
            if spoilt and rank == 1:
                x[17] = float("inf")
            context.begin([x], [torch.empty(n)], StepInfo(number))
            generators.append(context.strategy.collective.rounds(context))
            data.append(next(generators[-1]).data)
        for context, generator in zip(contexts, generators):
            with contextlib.suppress(StopIteration):
                generator.send(torch.stack(data))
            assert context.finite is not spoilt
            context.end(skipped=spoilt)
            assert context.codec._encoders[0].journal.elements == 0  # type: ignore[attr-defined]

    run(0, 1e4, True)  # before there is any state
    assert all(memory == {"p": {}} for memory in memories)
    for number in range(1, 6):
        run(number, 1e-3, False)
    before = [{k: v.clone() for k, v in memory["p"].items()} for memory in memories]
    for number in range(6, 16):
        run(number, 1e4, True)
    for memory, was in zip(memories, before):
        for key, value in was.items():
            assert float((memory["p"][key] - value).abs().max()) <= 1e-6 * float(value.abs().max())
    run(16, 1e3, False)
    for memory in memories:  # as after a resume: what was known of the old state is of no use
        memory["p"].update({key: torch.full((n,), 1e-3) for key in memory["p"]})
    run(17, 1e3, True)
    for memory in memories:
        assert all(torch.equal(v, torch.full((n,), 1e-3)) for v in memory["p"].values())

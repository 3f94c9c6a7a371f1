"""One rank's local work on a bucket of several parameters, called step by step."""

from __future__ import annotations

import contextlib
import math

import pytest
import torch
from torch import Tensor

from gradwire import Strategy, lockstep
from gradwire.buckets import Bucket, Parameter
from gradwire.collectives import AllGatherSum, AllReduceSum
from gradwire.compressors import BFloat16, Int8
from gradwire.feedback import ErrorFeedback
from gradwire.moves import AllGather
from gradwire.runtime.codec import Memory
from gradwire.runtime.context import BucketContext
from gradwire.runtime.encoder import ComposedEncoder
from gradwire.strategy import Encoder, Feedback, Key, Recurrence, Sections, StepInfo

PARAMETERS = (Parameter("a", (4, 3)), Parameter("b", (0,)), Parameter("c", (7,)))
TEXTS = [
    "none | allreduce",
    "fp16+ef | allreduce",
    "bf16+ef | allgather",
    "topk(0.3) | allgather",
    "topk(0.3)+ef | allgather",
    "dgc(0.3) | allgather",
    "none+server_momentum | allreduce",
]


def gradient(rank: int, step: int, parameter: Parameter) -> Tensor:
    seed = 1000 * step + 10 * rank + ord(parameter.name[0])
    return torch.randn(parameter.elements, generator=torch.Generator().manual_seed(seed))


class Rank:
    """One rank's memory, and a context for each bucket."""

    def __init__(self, text: str, buckets: list[tuple[Parameter, ...]], rank: int, world: int):
        self.rank = rank
        self.memory: Memory = {}
        self.contexts = [
            BucketContext(Strategy.parse(text), Bucket(bucket), rank, world, self.memory)
            for bucket in buckets
        ]


def run(text: str, buckets: list[tuple[Parameter, ...]], world: int = 2, steps: int = 3,
        skip: int | None = None) -> tuple[list[Rank], dict[str, Tensor]]:  # fmt: skip
    """Runs some steps over all buckets; returns the ranks, and rank 0's last results by name.

    skip: the step that is skipped, because of another bucket.
    """
    ranks = [Rank(text, buckets, rank, world) for rank in range(world)]
    results: dict[str, Tensor] = {}
    for step in range(steps):
        for b, bucket in enumerate(buckets):
            generators, data, move = [], [], None
            for r in ranks:
                out = [torch.empty(p.elements) for p in bucket]
                if r.rank == 0:
                    results.update(zip((p.name for p in bucket), out))
                gradients = [gradient(r.rank, step, p) for p in bucket]
                r.contexts[b].begin(gradients, out, StepInfo(step))
                generators.append(r.contexts[b].strategy.collective.rounds(r.contexts[b]))
                move = next(generators[-1])
                data.append(move.data)
            stacked = torch.stack(data)
            for generator in generators:
                with contextlib.suppress(StopIteration):
                    generator.send(stacked if isinstance(move, AllGather) else stacked.sum(0))
        for r in ranks:
            for context in r.contexts:
                context.end(skipped=step == skip)
    return ranks, results


@pytest.mark.parametrize("text", TEXTS)
def test_the_grouping_never_changes_the_result(text: str) -> None:
    a, b, c = PARAMETERS
    _, alone = run(text, [(a,), (b,), (c,)])
    for buckets in ([(a, b, c)], [(c, a), (b,)], [(b, a), (c,)]):
        ranks, together = run(text, buckets)
        for name, result in alone.items():
            assert torch.equal(together[name], result), name
        assert all(set(r.memory) == {"a", "b", "c"} for r in ranks), "state by parameter name"


@pytest.mark.parametrize("text", TEXTS)
def test_step_after_step_it_is_what_lockstep_says(text: str) -> None:
    """Results equal lockstep's, although arriving data lie at other addresses in each step."""
    _, results = run(text, [PARAMETERS], steps=3)
    for p in PARAMETERS:
        state: list[dict[str, Tensor]] = [{}, {}]
        for step in range(3):
            xs = [gradient(rank, step, p) for rank in range(2)]
            wanted, _ = lockstep(text, xs, step=step, state=state)
        assert torch.equal(results[p.name], wanted[0]), p.name


@pytest.mark.parametrize("text", TEXTS)
def test_buffers_are_made_once(text: str) -> None:
    """A step allocates no message: each lies at the address of the one before."""
    context = BucketContext(Strategy.parse(text), Bucket(PARAMETERS), 0, 1, {})
    places = set()
    for step in range(3):
        gradients = [gradient(0, step, p) for p in PARAMETERS]
        context.begin(gradients, gradients, StepInfo(step))
        rounds = context.strategy.collective.rounds(context)
        places.add(next(rounds).data.data_ptr())
        context.end(skipped=False)
    assert len(places) == 1


@pytest.mark.parametrize("text", TEXTS)
def test_gradients_may_be_the_results(text: str) -> None:
    """In training the average overwrites the gradient."""
    _, wanted = run(text, [PARAMETERS], world=1, steps=1)
    context = BucketContext(Strategy.parse(text), Bucket(PARAMETERS), 0, 1, {})
    gradients = [gradient(0, 0, p) for p in PARAMETERS]
    context.begin(gradients, gradients, StepInfo(0))
    rounds = context.strategy.collective.rounds(context)
    move = next(rounds)
    with contextlib.suppress(StopIteration):
        rounds.send(move.data[None] if isinstance(move, AllGather) else move.data)
    for parameter, result in zip(PARAMETERS, gradients):
        assert torch.equal(result, wanted[parameter.name])


def test_messages_follow_the_gradient_s_order_of_parameters() -> None:
    ranks, _ = run("none | allgather", [PARAMETERS], steps=1)
    layout = ranks[0].contexts[0].codec.layout
    assert [(begin, end) for ((_, begin, end),) in layout.sections] == [
        (32, 80),
        (80, 80),
        (80, 108),
    ]
    assert layout.bytes == 112


def test_the_digest_tells_buckets_apart() -> None:
    a, b, c = PARAMETERS
    texts = ["none | allgather", "fp16 | allgather", "topk(0.1) | allgather", "dgc(0.1)|allgather"]
    digests = {
        BucketContext(Strategy.parse(text), Bucket(bucket), 0, world, {}).codec.digest
        for text in texts
        for bucket in ((a,), (c,), (a, b), (b, a))
        for world in (1, 2)
    }
    assert len(digests) == len(texts) * 4 * 2
    one, other = (
        BucketContext(Strategy.parse(text), Bucket((a,)), rank, 2, {}).codec.digest
        for rank, text in enumerate(["dgc(0.1) | allgather", "topk(0.1)+dgc | allgather"])
    )
    assert one == other, "rank and spelling do not matter"


@pytest.mark.parametrize("text", ["topk(0.3)+ef | allgather", "dgc(0.3) | allgather"])
def test_residual_norm_is_over_all_parameters(text: str) -> None:
    (rank,), _ = run(text, [PARAMETERS], world=1)
    squares = sum(float(s["residual"].double().square().sum()) for s in rank.memory.values())
    assert rank.contexts[0].residual_norm() == pytest.approx(math.sqrt(squares), rel=1e-5)
    assert squares > 0


def test_without_memory_the_norm_is_zero() -> None:
    (rank,), _ = run("none | allreduce", [PARAMETERS], world=1)
    assert rank.contexts[0].residual_norm() == 0.0


@pytest.mark.parametrize("text", ["topk(0.3)+ef | allgather", "bf16+ef | allgather"])
def test_a_skipped_step_waits_for_the_next(text: str) -> None:
    """The residual has all of a gradient that the optimizer did not use."""
    (rank,), _ = run(text, [PARAMETERS], world=1, steps=2, skip=1)
    (before,), _ = run(text, [PARAMETERS], world=1, steps=1)
    for p in PARAMETERS:
        wanted = before.memory[p.name]["residual"] + gradient(0, 1, p)
        assert torch.allclose(rank.memory[p.name]["residual"], wanted, atol=1e-6)


@pytest.mark.parametrize("first", [1.0, math.inf])
def test_a_lossless_parameter_alone_is_summed_where_it_lies(first: float) -> None:
    """There is no copy and no buffer, neither in a good step nor in a spoiled one."""
    context = BucketContext(
        Strategy.parse("none | allreduce"), Bucket((Parameter("a", (3,)),)), 0, 2, {}
    )
    gradients = [torch.tensor([first, 2.0, -3.0])]
    context.begin(gradients, gradients, StepInfo())
    sent = context.numbers()
    assert sent.data_ptr() == gradients[0].data_ptr()
    context.divide(sent.add_(torch.tensor([3.0, 4.0, 5.0])))  # the network adds rank 1's
    wanted = [2.0, 3.0, 1.0] if math.isfinite(first) else [math.nan] * 3
    torch.testing.assert_close(gradients[0], torch.tensor(wanted), equal_nan=True)
    assert context.finite == math.isfinite(first)
    context.end(skipped=False)
    assert "_buffer" not in vars(context)


class Halves(BFloat16):
    """Overrides the encoding of its base class."""

    def encode(self, x: Tensor, sections: Sections, key: Key, status: Tensor) -> None:
        super().encode(x * 0.5, sections, key, status)


class Fuses(Halves):
    """Has its own encoder, while `encode` is the base class's."""

    encode = BFloat16.encode

    def fuse(self, recurrence: Recurrence | None) -> Encoder | None:
        return ComposedEncoder(Halves(), None)


@pytest.mark.parametrize(("kind", "sent"), [(BFloat16, 2.0), (Halves, 1.0), (Fuses, 1.0)])
@pytest.mark.parametrize("clip_scale", [1.0, 0.5])
@pytest.mark.parametrize("value", [1.0, math.nan, -math.inf])
def test_numbers_are_what_the_compressor_encodes(
    kind: type[BFloat16], sent: float, clip_scale: float, value: float
) -> None:
    """The numbers also report, for one or many parameters, that something is not finite."""
    bucket = Bucket((Parameter("a", (3,)), Parameter("b", (8,))))
    context = BucketContext(Strategy(kind(), AllReduceSum()), bucket, 0, 1, {})
    for step in range(2):
        own = [torch.tensor([2.0, 2.0 * value, 2.0]), torch.full((8,), 2.0)]
        context.begin(own, own, StepInfo(step, clip_scale))
        numbers = context.numbers()
        assert numbers.dtype == torch.bfloat16
        context.divide(numbers)
        context.end(skipped=False)
        assert context.finite is math.isfinite(value)
        if context.finite:
            assert [x.tolist() for x in own] == [[sent * clip_scale] * n for n in (3, 8)]


class HalvesInt8(Int8):
    """Overrides the encoding of its base class."""

    def encode(self, x: Tensor, sections: Sections, key: Key, status: Tensor) -> None:
        super().encode(x * 0.5, sections, key, status)


@pytest.mark.parametrize("feedback", [None, ErrorFeedback()])
def test_who_derives_from_a_quantizer_encodes_as_it_does(feedback: Feedback | None) -> None:
    bucket = Bucket((Parameter("a", (4,)), Parameter("b", (8,))))
    strategy = Strategy(HalvesInt8(), AllGatherSum(), feedback)
    context = BucketContext(strategy, bucket, 0, 1, {})
    own = [torch.full((4,), 2.0), torch.full((8,), 4.0)]
    context.begin(own, own, StepInfo())
    context.accumulate(context.message().view(1, -1))
    context.end(skipped=False)
    assert [x.tolist() for x in own] == [[1.0] * 4, [2.0] * 8]


@pytest.mark.parametrize("value", [1.0, float("inf")])
def test_a_message_after_numbers_has_its_header(value: float) -> None:
    """A collective may request both, in any order; views show what arrived last."""
    bucket = Bucket((Parameter("a", (4,)), Parameter("b", (8,))))
    context = BucketContext(Strategy.parse("bf16 | allreduce"), bucket, 0, 1, {})
    for step in range(2):
        own = [torch.full((4,), value), torch.ones(8)]
        context.begin(own, own, StepInfo(step))
        numbers = context.numbers().clone()
        message = context.message()
        assert len(numbers) < len(message)
        context.accumulate(message.view(1, -1))
        context.end(skipped=False)
        assert context.finite is math.isfinite(value)
        assert own[1].tolist() == (
            [1.0] * 8 if context.finite else pytest.approx([math.nan] * 8, nan_ok=True)
        )


def test_sums_and_messages_that_arrive_in_one_place_are_told_apart() -> None:
    bucket = Bucket((Parameter("a", (4,)), Parameter("b", (8,))))
    context = BucketContext(Strategy.parse("none | allreduce"), bucket, 0, 1, {})
    room = torch.zeros(256, dtype=torch.uint8)
    for step in range(4):
        own = [torch.full((4,), step + 1.0), torch.full((8,), step + 2.0)]
        context.begin(own, own, StepInfo(step))
        if step % 2:
            message = context.message()
            room[: len(message)] = message
            context.accumulate(room[: len(message)].view(1, -1))
        else:
            numbers = context.numbers()
            room[: numbers.nbytes].view(torch.float32).copy_(numbers)
            context.divide(room[: numbers.nbytes].view(torch.float32))
        context.end(skipped=False)
        assert own[0].tolist() == [step + 1.0] * 4
        assert own[1].tolist() == [step + 2.0] * 8

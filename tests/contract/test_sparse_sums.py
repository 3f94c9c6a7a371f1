"""Collectives on streams sum as a dense all-reduce does, for the cost that their pages state."""

from __future__ import annotations

import math

import pytest
import torch
from inputs import FLOATS
from instances import PLACES
from several import Named, Several
from torch import Tensor

from gradwire import Strategy, lockstep
from gradwire.buckets import Bucket, Parameter
from gradwire.errors import PayloadError
from gradwire.moves import AllGather, Exchange, Move
from gradwire.runtime.context import BucketContext
from gradwire.runtime.contexts import make_context
from gradwire.runtime.lockstep import _agreed, _next, _perform, drive
from gradwire.strategy import StepInfo
from gradwire.streams import Chunks
from gradwire.trace import Trace
from suites import first

OF_AN_EARLIER_SUM = "topk(1.0) | oktopk"
"""A strategy whose threshold is that of an earlier sum, but for the first step."""
TEXTS = (
    "topk(1.0) | gtopk(breadth=9)",
    "topk(1.0) | gtopk(variant='butterfly')",
    "topk(1.0) | gtopk(variant='tree')",
    *(f"nonzero | {name}" for name in ("sparcml", "sparcml_split", "dsar", "sparse_ps", "union")),
    "topk(1.0) | zen",
    "nonzero | zen",
    "nonzero | zen(variant='paper')",
    "nonzero | sparse_auto",
    OF_AN_EARLIER_SUM,
    "nonzero | omnireduce",
    "nonzero | columns",
    *(f"nonzero(index='int32') | {name}" for name in ("sparcml", "zen", "columns")),
    "topk(1.0, index='int32') | gtopk(breadth=9)",
)
WORLDS = first((1, 2, 3, 5, 8, 4, 6, 7, 9), 5)
SHAPES = ((), (1,), (5,), (37,), (300,), (4, 9), (2, 3, 5), (0,), (3, 0), (2, 700))
every = pytest.mark.parametrize("text", TEXTS)


def sparse(
    world: int, shape: tuple[int, ...], share: float = 0.3, seed: int = 0,
    dtype: torch.dtype = torch.float32,
) -> list[Tensor]:  # fmt: skip
    """Whole numbers up to 6, most of them zero, different on every rank."""
    dice = torch.Generator().manual_seed(seed)
    size = (world, *shape)
    kept = torch.rand(size, generator=dice) < share
    return list((torch.randint(-6, 7, size, generator=dice) * kept).to(dtype))


def dense_mean(xs: list[Tensor]) -> Tensor:
    """The dense mean: an exact sum, and one division."""
    total = torch.stack([x.double() for x in xs]).sum(0).float()
    return (total / torch.tensor(float(len(xs)))).to(xs[0].dtype)


def check(text: str, xs: list[Tensor], seed: int = 0) -> None:
    wanted = dense_mean(xs)
    for rank, result in enumerate(lockstep(text, xs, seed=seed)[0]):
        assert result.dtype == wanted.dtype
        assert torch.equal(result, wanted), f"rank {rank}: {result} is not {wanted}"


# -- sums ----------------------------------------------------------------------------------------


@pytest.mark.once
@every
@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_is_the_dense_mean(text: str, world: int, dtype: torch.dtype) -> None:
    for number, shape in enumerate(SHAPES):
        for share in (0.02, 0.3, 1.0) if dtype == torch.float32 else (0.3,):
            check(text, sparse(world, shape, share, number, dtype))


@pytest.mark.once
@every
@pytest.mark.parametrize("world", [2, 3, 8])
def test_large_enough_to_be_dealt_in_chunks(text: str, world: int) -> None:
    check(text, sparse(world, (1024 * world + 7,), 0.03))


@pytest.mark.once
@every
@pytest.mark.parametrize("world", [1, 2, 3, 5])
def test_first_and_last(text: str, world: int) -> None:
    for n in (2, 17, 257, 1024 * world + 1):
        for places in ([0], [n - 1], [0, n - 1]):
            xs = [torch.zeros(n) for _ in range(world)]
            for rank, x in enumerate(xs):
                x[places] = float(rank + 1)
            check(text, xs)
            check(text, [xs[0], *(torch.zeros(n) for _ in xs[1:])])


@pytest.mark.once
@every
@pytest.mark.parametrize("empty", [[0], [1], [2], [0, 1], [1, 2], [0, 1, 2]], ids=str)
def test_ranks_without_anything(text: str, empty: list[int]) -> None:
    xs = sparse(3, (4, 9))
    check(text, [torch.zeros(4, 9) if rank in empty else x for rank, x in enumerate(xs)])
    check(text, [-torch.zeros(4, 9) if rank in empty else x for rank, x in enumerate(xs)])


@every
def test_what_cancels_is_zero(text: str) -> None:
    x, y = sparse(2, (300,))
    check(text, [x, -x])
    check(text, [x, y, -x, -y])
    check(text, [x, -x, y])
    big, small = torch.full((3,), 2.0**30), torch.full((3,), 1.0)
    for result in lockstep(text, [big, small, -big, torch.zeros(3)])[0]:  # in some order or other
        assert set((4 * result).tolist()) <= {0.0, 1.0}


@every
@pytest.mark.parametrize("world", [1, 2, 3, 4])
def test_denormals(text: str, world: int) -> None:
    """Multiples of the smallest float have exact sums."""
    xs = [x * 2.0**-149 * world for x in sparse(world, (90,))]
    assert any(bool(x.any()) for x in xs)
    check(text, xs)


@pytest.mark.once
@pytest.mark.parametrize("text", [text for text in TEXTS if text != OF_AN_EARLIER_SUM])
@pytest.mark.parametrize("world", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_several_parameters(text: str, world: int, dtype: torch.dtype) -> None:
    """A bucket has a scalar, single elements, an empty parameter, and a large one between them."""
    shapes = {
        "scalar": (), "one": (1,), "none": (0,), "matrix": (5, 7), "large": (1024 * world,),
        "last": (1,),
    }  # fmt: skip
    job = Several(text, shapes, world, dtype=dtype)
    for step in range(2):
        given: list[Named] = [
            {n: sparse(world, shape, 0.4, 9 * step + p, dtype)[rank]
             for p, (n, shape) in enumerate(shapes.items())}
            for rank in range(world)
        ]  # fmt: skip
        for mine in job.step(given):
            for name in shapes:
                wanted = dense_mean([other[name] for other in given])
                assert torch.equal(mine[name], wanted), name


# -- seeds and plans -----------------------------------------------------------------------------


def test_who_owns_what_changes_no_result() -> None:
    """Real numbers would show another order of sums; the messages themselves do differ."""
    xs = [x * torch.rand(5000) for x in sparse(4, (5000,))]
    results, traces = zip(*(lockstep("nonzero | zen", xs, seed=seed) for seed in range(6)))
    assert all(torch.equal(found[0], results[0][0]) for found in results)
    assert len({tuple(trace.bytes_sent) for trace in traces}) > 1


@every
@pytest.mark.parametrize("what", ["seed", "plan"])
def test_ranks_that_differ_are_named_before_an_entry_travels(text: str, what: str) -> None:
    strategy, rounds = Strategy.parse(text), []
    for rank, x in enumerate(sparse(3, (40,))):
        name = "w" if rank != 1 or what == "seed" else "v"
        seed = 0 if rank != 1 or what == "plan" else 1
        bucket = Bucket((Parameter(name, (40,)),))
        context = BucketContext(strategy, bucket, rank, 3, {}, seed=seed)
        context.begin([x], [torch.empty(40)], StepInfo())
        rounds.append(strategy.collective.rounds(context))
    moves = [_next(mine, None) for mine in rounds]
    assert all(isinstance(move, AllGather) for move in moves)
    for rank, (mine, arrived) in enumerate(zip(rounds, _perform(_agreed(moves)))):
        with pytest.raises(PayloadError, match=f"rank {0 if rank == 1 else 1} sent a message of"):
            mine.send(arrived)


# -- bytes ---------------------------------------------------------------------------------------


def moves_of(text: str, xs: list[Tensor]) -> list[list[Move]]:
    """Every rank's moves, move by move."""
    bucket = Bucket((Parameter("x", tuple(xs[0].shape)),))
    rounds = []
    for rank, x in enumerate(xs):
        context = BucketContext(Strategy.parse(text), bucket, rank, len(xs), {})
        context.begin([x.reshape(-1)], [torch.empty(x.numel())], StepInfo())
        rounds.append(context.strategy.collective.rounds(context))
    made, arrived = list[list[Move]](), [None] * len(xs)
    while True:
        moves = [_next(mine, value) for mine, value in zip(rounds, arrived)]
        if all(move is None for move in moves):
            return made
        made.append(_agreed(moves))
        arrived = _perform(made[-1])


@pytest.mark.once
@every
@pytest.mark.parametrize("world", WORLDS)
def test_what_is_sent_arrives(text: str, world: int) -> None:
    for moves in moves_of(text, sparse(world, (2, 300), 0.2)):
        exchanges = [move for move in moves if isinstance(move, Exchange)]
        sent = sum(move.bytes_sent(world) for move in exchanges)
        assert sent == sum(sum(move.receives.values()) for move in exchanges)


@pytest.mark.once
@pytest.mark.parametrize("text", [text for text in TEXTS if "gtopk" not in text])
@pytest.mark.parametrize("world", range(2, 10))
@pytest.mark.parametrize("share", [0.01, 0.2, 0.9])
def test_no_fewer_bytes_than_physics_allows(text: str, world: int, share: float) -> None:
    """A coordinate that c ranks bring takes c + n - 2 transfers of a value, whoever sums it.

    All numbers are positive, since what cancels need not be sent.
    """
    xs = [x.abs() for x in sparse(world, (40, 25), share)]
    bringing = torch.stack([x != 0 for x in xs]).sum(0)
    least = 4 * int((bringing + world - 2)[bringing > 0].sum())
    assert sum(lockstep(text, xs)[1].bytes_sent) >= least > 0


HEAD, WORD = 32, 8
N = 48
EXAMPLE = [[0, 3, 17, 40], [3, 16, 47], [3]]
"""Places of three ranks in 48 elements, owned in ranges of 16."""


def example(places: list[list[int]], shape: tuple[int, ...] = (N,)) -> list[Tensor]:
    xs = [torch.zeros(math.prod(shape)) for _ in places]
    for x, own in zip(xs, places):
        x[own] = 1.0
    return [x.view(shape) for x in xs]


def announced(world: int, numbers: int) -> int:
    """The bytes that tell all others: a header, the numbers, and their check."""
    return (world - 1) * (HEAD + WORD * (numbers + 1))


def packed(n: int, places: Tensor, value_bytes: int = 4) -> int:
    """The bytes of a stream: a shape, values, and the smaller of one list of places or crowds of
    three and more."""
    k = places.numel()
    inside = torch.bincount(places // 16, minlength=1)
    crowded, full = int((inside >= 3).sum()), int((inside == 16).sum())
    crowds = (
        coded_places(-(-n // 16), crowded) + coded_places(crowded, full) + 2 * (crowded - full)
        + coded_places(n, int(inside[inside < 3].sum()))
    )  # fmt: skip
    return (16 + value_bytes * k + min(crowds, coded_places(n, k))) if k else 0


def coded_places(n: int, k: int) -> int:
    return min(size(n, k) for size in PLACES.values())


def test_bytes_of_sparse_ps_by_hand() -> None:
    """Counts by owner: 2 1 1, 1 1 1, 1 0 0; averages: places 0 3, 16 17, 40 47."""
    one, two = (packed(16, torch.arange(k)) for k in (1, 2))
    assert (one, two) == (16 + 4 + 1, 16 + 8 + 2)  # a byte for each place
    pushed = [2 * one, 2 * one, one]
    counts = announced(3, 3) + announced(3, 1)
    trace = lockstep("nonzero | sparse_ps", example(EXAMPLE))[1]
    assert trace.bytes_sent == [counts + push + 2 * two for push in pushed]
    assert trace.bytes_sent == [318, 318, 297]


@pytest.mark.parametrize("width", [1, 40])
def test_bytes_of_zen_by_hand(width: int) -> None:
    """The few chunks are dealt out as ranges. With more, what goes to others counts, by owner."""
    ranges, chunks = (f"nonzero | {name}" for name in ("sparse_ps", "zen"))
    few = example(EXAMPLE)
    assert lockstep(chunks, few)[1].bytes_sent == lockstep(ranges, few)[1].bytes_sent
    xs = [x.repeat_interleave(width)[: 4096 + 3] for x in sparse(2, (4096 + 3,), 0.1)]
    domains = Chunks(len(xs[0]), 2, seed=0)
    owned = [
        domains.flat(r, torch.arange(n, dtype=torch.int32)).long()
        for r, n in enumerate(domains.sizes)
    ]
    mean = dense_mean(xs)
    wanted = [
        announced(2, 2) + announced(2, 1)
        + packed(domains.sizes[1 - r], xs[r][owned[1 - r]].nonzero().flatten())
        + packed(domains.sizes[r], mean[owned[r]].nonzero().flatten())
        for r in range(2)
    ]  # fmt: skip
    assert lockstep(chunks, xs)[1].bytes_sent == wanted


def test_bytes_of_columns_by_hand() -> None:
    """6 rows of 5 columns; stripes of 1, 2 and 2. Rows 0 3, 3 4 and none: 3 has owners, and 0 and
    4 have none, as two ranks have a row of their own."""
    xs = example([[0, 15], [16, 18, 20], []], (6, 5))
    rows, shared, single, stripes = [2, 2, 0], [1, 1, 0], [1, 1, 0], [1, 2, 2]
    ids = [2 * sealed(coded_places(6, k)) for k in rows]
    assert ids == [2 * 16, 2 * 16, 2 * 8]
    pushed = [4 * k * (5 - own) for k, own in zip(shared, stripes)]
    pulled = [2 * 4 * (5 * k + own) for k, own in zip(single, stripes)]
    known = announced(3, 2)
    trace = lockstep("nonzero | columns", xs)[1]
    assert trace.bytes_sent == [known + sum(parts) for parts in zip(ids, pushed, pulled)]


@pytest.mark.parametrize("name", ["sparse_ps", "sparcml", "zen"])
def test_a_listed_place_takes_four_bytes(name: str) -> None:
    """Two ranks have 3 entries each, all one owner's: three go to it, and three averages back."""
    xs = example([[0, 1, 2], [0, 1, 2]], (4096,))
    trace = lockstep(f"nonzero(index='int32') | {name}", xs)[1]
    known = announced(2, 1) if name == "sparcml" else announced(2, 2) + announced(2, 1)
    assert trace.bytes_sent == [known + 3 * (4 + 4)] * 2


def test_two_ranks_swap_rows_whole() -> None:
    """Rows that both have are swapped, too: a stripe there and one back would be as much."""
    xs = example([[0, 15], [16, 18]], (6, 5))
    trace = lockstep("nonzero | columns", xs)[1]
    known = announced(2, 2)
    assert trace.bytes_sent == [known + sealed(1) + 4 * 5 * k for k in (2, 1)]


def test_lists_no_longer_than_usual_go_along_with_their_lengths() -> None:
    """A step then takes three moves, the first one or one of longer lists four; sums are right."""
    shape, world = (400, 5), 3
    bucket = Bucket((Parameter("x", shape),))
    strategy = Strategy.parse("nonzero | columns")
    ranks = [make_context(strategy, bucket, r, world, {"x": {}}) for r in range(world)]

    def moves_of(number: int, share: float, spoiled: bool = False) -> int:
        xs = sparse(world, shape, share, seed=number)
        xs[1].view(-1)[0] = float("nan") if spoiled else 1.0
        results, trace = [torch.empty(2000) for _ in xs], Trace(world)
        for ctx, x, result in zip(ranks, xs, results):
            ctx.begin([x.view(-1)], [result], StepInfo(number))
        drive([ctx.rounds() for ctx in ranks], trace)
        for ctx, result in zip(ranks, results):
            ctx.end(skipped=spoiled)
            assert spoiled or torch.equal(result.view(shape), dense_mean(xs))
        return len([span for span in trace.spans if span.rank == 0])

    assert [moves_of(0, 0.01), moves_of(1, 0.01), moves_of(2, 0.01)] == [4, 3, 3]
    assert [moves_of(3, 0.1), moves_of(4, 0.1)] == [4, 3]  # sixfold, and no more
    assert [moves_of(5, 0.1, spoiled=True), moves_of(6, 0.1), moves_of(7, 0.01)] == [1, 3, 3]
    assert moves_of(8, 0.1) == 4  # the last step's were short


WORD = 8


def sealed(size: int) -> int:
    return -(-size // WORD) * WORD + WORD


@pytest.mark.parametrize(
    ("text", "numbers"),
    [("sparse_ps", 3 + 1), ("zen", 3 + 1), ("omnireduce", 3 + 1)],
)
def test_zeros_cost_nothing(text: str, numbers: int) -> None:
    """Zeros cost nothing, nor do those behind the end of the last block."""
    trace = lockstep(f"nonzero | {text}", [torch.zeros(300)] * 3)[1]
    assert trace.bytes_sent == [announced(3, numbers) + announced(3, 0)] * 3


def test_no_rows_cost_nothing() -> None:
    trace = lockstep("nonzero | columns", [torch.zeros(300)] * 3)[1]
    assert trace.bytes_sent == [announced(3, 2) + 2 * sealed(0)] * 3


def test_a_full_list_costs_what_dense_costs() -> None:
    trace = lockstep("nonzero | sparcml", [torch.ones(100)] * 2)[1]
    assert trace.bytes_sent == [announced(2, 1) + 4 * 100] * 2


@pytest.mark.parametrize("name", ["sparse_ps", "zen", "sparcml_split", "dsar"])
def test_owners_add_in_rank_order(name: str) -> None:
    """The 1 would be lost beside 10⁸ in any other order."""
    xs = [torch.full((9,), value) for value in (1e8, -1e8, 1.0)]
    results, _ = lockstep(f"nonzero | {name}", xs)
    assert all(torch.equal(x, torch.full((9,), 1.0) / 3) for x in results)

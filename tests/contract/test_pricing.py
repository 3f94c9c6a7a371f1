"""Pricing: the bytes that are predicted are the bytes that lockstep counts."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
import torch
from parted import parted
from several import Several, drawn

from gradwire import Strategy, lockstep
from gradwire.buckets import Parameter
from gradwire.errors import PlanError, UsageError
from gradwire.moves import AllGather, Exchange, Move
from gradwire.planner.links import loaded
from gradwire.planner.pricing import can_price, price
from gradwire.strategy import Collective, Context
from gradwire.tasks import Path, paths
from gradwire.topology import Cluster
from suites import first

SHAPES = {"a": (30, 40), "b": (700,), "c": (3,), "d": (0,)}
PARAMETERS = [Parameter(name, shape) for name, shape in SHAPES.items()]
PLACES = [(4, 2), (6, 2)]
"""(ranks, ranks per machine): 2 machines of 2, and 3 of 2."""
every_place = pytest.mark.parametrize(("world", "per_node"), PLACES)
ALL = paths()
ALL_PARTED = parted(ALL, 31)


def text_of(left: str, path: Path, per_node: int) -> str:
    machines = f", per_node={per_node}" if path.knows_machines else ""
    return f'{left} | steps("{path}"{machines})'


def counted(text: str, world: int, parameters: Sequence[Parameter] = PARAMETERS) -> list[float]:
    shapes = {p.name: p.shape for p in parameters}
    run = Several(text, shapes, world)
    run.step(drawn(shapes, world))
    return run.trace.bytes_sent


def priced(text: str, world: int, parameters: Sequence[Parameter] = PARAMETERS) -> list[float]:
    return [price(text, parameters, world, rank=r).bytes_sent for r in range(world)]


# -- exactly -------------------------------------------------------------------------------------


@pytest.mark.once
@every_place
@pytest.mark.parametrize("left", ["none", "topk(0.1)"])
@pytest.mark.parametrize("part", first(range(32)))
def test_every_path_to_the_byte(world: int, per_node: int, left: str, part: int) -> None:
    """All 4,341 paths are right. Where a path compresses changes no byte, so lockstep counts one
    of those that differ in nothing else; of the others, the first and last rank are priced."""
    known: dict[str, list[float]] = {}
    for path in ALL_PARTED[part]:
        text = text_of(left, path, per_node)
        anywhere = text.replace("@cpu", "@gpu")
        if anywhere not in known:
            known[anywhere] = counted(anywhere, world)
        ranks = range(world) if text == anywhere else (0, world - 1)
        said = [price(text, PARAMETERS, world, rank=r).bytes_sent for r in ranks]
        assert said == pytest.approx([known[anywhere][r] for r in ranks], abs=1e-6), path


@pytest.mark.parametrize("path", ALL[::97], ids=str)
def test_devices_change_no_byte(path: Path) -> None:
    text = text_of("topk(0.1)", path, 2)
    assert counted(text, 4) == counted(text.replace("@cpu", "@gpu"), 4)


FIXED = [
    "none | allreduce", "bf16 | allreduce", "randk(0.1)+ef | allreduce",
    "topk(0.01)+ef | allgather", "dgc(0.1) | allgather", "int8 | allgather",
    "none | allgather", "onebit+ef | allgather", 'topk(0.1, index="int32") | allgather',
    "int8+ef | alltoall", "none | alltoall", "sign(scaled=True)+ef | alltoall", "fp8 | alltoall",
    'onebit+ef | alltoall(means="qsgd(4)")',
    'mx("e2m1")+ef | allgather', 'mx("e3m2") | alltoall', "thc(4)", "thc(2)", "thc(8)",
    "powersgd(2)", "powersgd(50)", 'none | hierarchical(outer="powersgd(2)", per_node=2)',
    "recode('int8')", "recode('qsgd(4)')", "recode('topk(0.1)')",
    'none | hierarchical(outer="thc(4)", per_node=2)',
    "qsgd(4)+ef | alltoall", "topk(0.1) | alltoall", "signsgd | vote", "signum(0.9) | vote",
    "topk(0.05)+ef | hierarchical(per_node=2)",
    'bf16 | hierarchical(outer="allreduce", per_node=2)',
    'int8+ef | hierarchical(outer="alltoall", per_node=2)',
    'signsgd | hierarchical(outer="vote", per_node=2)',
    'none | hierarchical(outer="allreduce", per_node=1)',
]  # fmt: skip


@pytest.mark.once
@pytest.mark.parametrize("world", [2, 4, 6])
@pytest.mark.parametrize("text", FIXED)
def test_members_to_the_byte(text: str, world: int) -> None:
    assert priced(text, world) == pytest.approx(counted(text, world), abs=1e-6)


@pytest.mark.parametrize("text", FIXED[:1] + FIXED[3:4] + FIXED[9:10])
def test_alone_nothing_is_sent(text: str) -> None:
    assert price(text, [100], 1).bytes_sent == 0


# -- about ---------------------------------------------------------------------------------------

LARGE = [Parameter("a", (300, 400)), Parameter("b", (70_000,))]
STREAMS = [
    ("topk(0.01)+ef | gtopk", 0.005), ("topk(0.01, values='bf16')+ef | gtopk(breadth=2)", 0.005),
    ('topk(0.01)+ef | gtopk(variant="butterfly")', 0.005),
    ('topk(0.01)+ef | gtopk(variant="tree")', 0.005),
    ("topk(0.01)+ef | zen", 0.03), ('topk(0.01)+ef | zen(variant="paper")', 0.03),
    ("topk(0.2) | zen", 0.03), ("topk(0.01)+ef | sparse_ps", 0.03),
    ("topk(0.01)+ef | sparcml", 0.03), ("topk(0.3) | sparcml", 0.03),
    ('topk(0.01)+ef | hierarchical(outer="gtopk", per_node=2)', 0.005),
    ('topk(0.02)+ef | hierarchical(outer="zen", per_node=2)', 0.03),
    ('topk(0.01, index="int32") | zen', 0.03), ("eb(0.01) | allgather", 0.03),
    ("eb(0.001)+ef | allgather", 0.03),
]  # fmt: skip
"""Strategies with a tolerance: chance deals out the places, and unevenly to owners of zen, so that
the mean over ranks is compared there."""


@pytest.mark.once
@pytest.mark.parametrize("world", [4, 6, 8])
@pytest.mark.parametrize(("text", "tolerance"), STREAMS)
def test_streams_to_chance(text: str, tolerance: float, world: int) -> None:
    real, said = (own(text, world, LARGE) for own in (counted, priced_of_first))
    assert said[0] == pytest.approx(mean(real) if "zen" in text else real[0], rel=tolerance)
    assert price(text, LARGE, world).estimated


def priced_of_first(text: str, world: int, parameters: Sequence[Parameter]) -> list[float]:
    return [price(text, parameters, world).bytes_sent]


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


@pytest.mark.parametrize("text", ["topk(0.5) | zen", "topk(0.5) | sparse_ps"])
@pytest.mark.parametrize(("elements", "world"), [(3, 8), (7, 16), (256, 1024)])
def test_owners_of_no_element_are_sent_no_entries(text: str, elements: int, world: int) -> None:
    (_, pushed, *_) = price(text, [elements], world).moves
    owners = sum(1 for _, size in pushed.to if size)
    assert 0 < owners <= min(elements, world - 1)


def test_a_given_densification_counts() -> None:
    alike = price("topk(0.01) | zen", LARGE, 8, together=lambda d, n: d).bytes_sent
    assert alike < 0.4 * price("topk(0.01) | zen", LARGE, 8).bytes_sent


def test_a_density_is_asked_for_where_it_counts() -> None:
    with pytest.raises(PlanError, match="pass density"):
        price("nonzero | zen", LARGE, 4)
    few, many = (price("nonzero | zen", LARGE, 4, density=d).bytes_sent for d in (0.01, 0.1))
    assert few < many
    assert price("nonzero | allgather", LARGE, 4, density=0.01).estimated
    with pytest.raises(PlanError, match="from 0 to 1"):
        price("nonzero | zen", LARGE, 4, density=1.5)


# -- members of others ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Ring(Collective):
    """Passes messages round, from each rank to the next; the sum is in rank order."""

    name: ClassVar[str] = "ring"

    def rounds(self, ctx: Context) -> Generator[Move, Any, None]:
        right, left = (ctx.rank + 1) % ctx.world, (ctx.rank - 1) % ctx.world
        held = [ctx.message()]
        for _ in range(ctx.world - 1):
            arrived = yield Exchange({right: held[-1]}, {left: held[-1].numel()})
            held.append(arrived[left].clone())
        ctx.accumulate(torch.stack(held).flip(0).roll(ctx.rank + 1, 0))


@dataclass(frozen=True)
class Star(Collective):
    """Lets rank 0 receive from all before it sends anything, and then answer."""

    name: ClassVar[str] = "star"

    def rounds(self, ctx: Context) -> Generator[Move, Any, None]:
        own = ctx.message()
        others = range(1, ctx.world) if ctx.rank == 0 else []
        sends = {} if ctx.rank == 0 else {0: own}
        arrived = yield Exchange(sends, dict.fromkeys(others, own.numel()))
        every = torch.cat([own, *arrived.values()])
        size = ctx.world * own.numel()
        told = yield Exchange(dict.fromkeys(others, every), {} if ctx.rank == 0 else {0: size})
        ctx.accumulate(told.get(0, every).view(ctx.world, -1))


@dataclass(frozen=True)
class Peeks(Collective):
    """Makes another move if the first brought something, which cannot be known beforehand."""

    name: ClassVar[str] = "peeks"

    def rounds(self, ctx: Context) -> Generator[Move, Any, None]:
        messages = yield AllGather(ctx.message())
        if messages[:, 32:].any():
            messages = yield AllGather(messages[ctx.rank])
        ctx.accumulate(messages)


@pytest.mark.parametrize("left", ["none", "topk(0.1)+ef", "int8"])
@pytest.mark.parametrize("collective", [Ring(), Star()], ids=str)
def test_a_collective_of_others_is_priced_by_its_own_rounds(
    collective: Collective, left: str
) -> None:
    made = Strategy.parse(f"{left} | allgather")
    strategy = Strategy(made.compressor, collective, made.feedback)
    gradients = [rank["a"] for rank in drawn({"a": (700,)}, 4)]
    results, trace = lockstep(strategy, gradients)
    wanted, _ = lockstep(made, gradients)
    assert all(torch.equal(one, other) for one, other in zip(results, wanted))
    assert can_price(strategy)
    said = [price(strategy, [700], 4, rank=r).bytes_sent for r in range(4)]
    assert said == pytest.approx(trace.bytes_sent)


def test_a_collective_of_others_that_looks_at_data_is_measured_only() -> None:
    strategy = Strategy(Strategy.parse("none | allgather").compressor, Peeks())
    assert not can_price(strategy)
    with pytest.raises(PlanError, match=r"what 'peeks' sends .* measured only"):
        price(strategy, [100], 4)


# -- what is written down ------------------------------------------------------------------------


def test_work_and_moves_in_order() -> None:
    found = price("int8+ef | alltoall", [1000], 4)
    assert [getattr(step, "kind", None) or step[0] for step in found.steps] == [
        "encode", "all_to_all", "accumulate", "encode", "all_gather", "decode",
    ]  # fmt: skip
    accumulate = found.work[1]
    assert (accumulate.elements, accumulate.contributions) == (256, 4) or accumulate.elements < 256
    assert [work.kind for work in found.encode] == ["encode"]
    assert [work.kind for work in found.decode] == ["accumulate", "encode", "decode"]


def test_work_of_a_product_grows_with_its_rank() -> None:
    thin, thick = (price(f"powersgd({rank})", [(512, 512)], 4) for rank in (2, 8))
    for one, other in zip(thin.work, thick.work, strict=True):
        assert other.touched - other.elements == 4 * (one.touched - one.elements)


def test_contributions_grow_with_ranks_and_devices_are_said() -> None:
    path = "compress@cpu, all_gather, decompress@gpu"
    found = price(f'topk(0.1) | steps("{path}")', [1000], 16)
    assert [(w.kind, w.device) for w in found.work] == [("encode", "cpu"), ("accumulate", "gpu")]
    assert (found.work[1].contributions, found.work[1].entries) == (16, 100)
    (move,) = found.moves
    assert (move.name, move.group, move.ranks, move.dtype) == ("all_gather", "world", 16, "uint8")


def test_moves_of_groups_say_so() -> None:
    found = price('int8 | hierarchical(outer="alltoall")', [(64, 64)], 32, per_node=8)
    assert [(m.name, m.group, m.ranks) for m in found.moves] == [
        ("all_to_all", "node", 8), ("all_gather", "cross", 4), ("all_to_all", "cross", 4),
        ("all_gather", "cross", 4), ("all_gather", "node", 8),
    ]  # fmt: skip


@pytest.mark.parametrize("text", ["nonzero | zen", "topk(0.1)+ef | sparse_ps"])
def test_what_all_ranks_get_travels_as_a_gather(text: str) -> None:
    *_, move = price(text, [(1000, 64)], 4, density=0.1).moves
    assert (move.name, move.to) == ("all_gather", ())
    assert move.sent == 3 * move.bytes == move.received > 0
    assert loaded(move, Cluster(hosts=2, ranks_per_host=2)) == 1.0, "once over a host's link"


@pytest.mark.parametrize("text", ["none | allreduce", "topk(0.01)+ef | gtopk", "int8 | alltoall"])
def test_as_many_ranks_as_there_are(text: str) -> None:
    assert price(text, [(1000, 1000)], 16_384).bytes_sent > 0


# -- errors --------------------------------------------------------------------------------------

NOT_PRICED = ["topk(0.01)+ef | oktopk", "none | columns", "nonzero | sparse_auto",
              "nonzero | omnireduce", 'topk(0.1) | hierarchical(outer="dsar")']  # fmt: skip


@pytest.mark.parametrize("text", NOT_PRICED)
def test_what_depends_on_data_is_measured_only(text: str) -> None:
    assert not can_price(text)
    with pytest.raises(PlanError, match="measured only"):
        price(text, [100], 4)


def test_ranks_and_machines_are_checked() -> None:
    with pytest.raises(PlanError, match="rank 4 of 4"):
        price("none | allreduce", [100], 4, rank=4)
    with pytest.raises(UsageError, match="equally many ranks"):
        price(Strategy.parse("none | allreduce"), [100], 4, per_node=3)


@pytest.mark.parametrize("world", [2, 4, 8])
def test_partners_get_as_much_as_they_give(world: int) -> None:
    moves = price("topk(0.01)+ef | sparcml", [(100, 200)], world).moves
    assert [move.sent for move in moves] == [move.received for move in moves]
    assert moves[-1].sent > 100

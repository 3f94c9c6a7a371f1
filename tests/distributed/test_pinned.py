"""Planes on loopback, each with an address: the sums are the same by the paths and turns of a
plan."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from broken import WIDE, everybody_is_heard_but
from ranks import Ranks
from small import attached, close, fingerprint, gradients, loss_of, raised, small
from test_attach_exit import Leaving
from torch import Tensor

from gradwire.errors import GradwireError, PeerError
from gradwire.groups import Machines
from gradwire.moves import (
    AllGather,
    AllReduce,
    AllToAll,
    Broadcast,
    Exchange,
    Gather,
    Move,
    Reduce,
    ReduceScatter,
)
from gradwire.network import Routes, leaf_spine, route
from gradwire.network.exports import pins_of
from gradwire.network.patterns import all_to_all, pairwise
from gradwire.runtime import planes
from gradwire.runtime.planes import PlanePerformer, agreed_pins, join_planes
from gradwire.runtime.process_groups import make_group, make_parts
from gradwire.runtime.torch_dist import Performer

PLANES = 3
CPU = torch.device("cpu")
PATTERNS = {"all_to_all": all_to_all, "pairwise": pairwise}


def planned(world: int, pattern: str = "pairwise", scheme: str = "coloured") -> Routes:
    """Routes where every host is below a leaf of its own, so that all messages have a path."""
    flows = PATTERNS[pattern](world, world * 1_000_000)
    return route(flows, leaf_spine(leaves=world, hosts=1, spines=PLANES), scheme)


@contextmanager
def placed(host: int | None = None, addresses: str | None = None) -> Iterator[None]:
    """Sets the environment variables by which a rank knows its host and addresses."""
    own = {
        planes.HOST: str(dist.get_rank() if host is None else host),
        planes.ADDRESSES: "127.0.0.2, 127.0.0.3,127.0.0.4" if addresses is None else addresses,
    }
    os.environ.update(own)
    try:
        yield
    finally:
        for name in own:
            os.environ.pop(name, None)


class Recorded:
    """A plane's group that records how much was sent to whom."""

    def __init__(self, group: Any) -> None:
        self._group, self.sent = group, list[tuple[int, int]]()
        self.log = list[int | str]()

    def send(self, data: list[Tensor], rank: int, tag: int) -> Any:
        self.sent.append((rank, data[0].numel()))
        self.log.append(rank)
        return self._group.send(data, rank, tag)

    def recv(self, *arguments: Any) -> Any:
        return self._group.recv(*arguments)


@contextmanager
def performer(
    routes: Routes, machines: Machines | None = None, hosts: Sequence[int] | None = None
) -> Iterator[PlanePerformer]:
    group = make_group(None, 30.0)
    with placed(None if hosts is None else hosts[dist.get_rank()]):
        joined = join_planes(*agreed_pins(pins_of(routes), group, CPU), group, 30.0)
    joined = replace(joined, groups=[Recorded(g) for g in joined.groups])
    made = PlanePerformer(group, joined, make_parts(group, machines, 30.0))
    yield made
    made.close()


def moves(rank: int, world: int, size: int, dtype: torch.dtype) -> dict[str, Move]:
    dice = torch.Generator().manual_seed(rank)
    data = torch.randint(0, 100, (size,), generator=dice).to(dtype)
    even = tuple(size // world + (r < size % world) for r in range(world))
    uneven = tuple((rank + r) % 3 * size // (3 * world) for r in range(world))
    arriving = tuple((rank + r) % 3 * size // (3 * world) for r in range(world))
    text = data.view(torch.uint8)
    return {
        "all_reduce": AllReduce(data.clone()),
        "all_gather": AllGather(data),
        "reduce_scatter": ReduceScatter(data, even, rank),
        "alike": AllToAll(data, even, (even[rank],) * world, rank, alike=True),
        "uneven": AllToAll(data[: sum(uneven)], uneven, arriving, rank),
        "exchange": Exchange(
            {r: text[: 100 * r] for r in range(world) if r != rank},
            {r: min(100 * rank, len(text)) for r in range(world) if r != rank},
        ),
        "to_all": Exchange.to_all(
            text[: 100 * rank], {r: min(100 * r, len(text)) for r in range(world) if r != rank}
        ),
        "reduce": Reduce(data.clone(), 1, rank),
        "gather": Gather(data, 1, rank),
        "broadcast": Broadcast(data.clone(), 1, rank),
    }


def same_as_stock(
    pattern: str, scheme: str, size: int, dtype: torch.dtype, least: int,
    hosts: Sequence[int] | None = None,
) -> None:  # fmt: skip
    """hosts: that of each rank, of twice as many as there are ranks; None: each rank has its
    own."""
    rank, world = dist.get_rank(), dist.get_world_size()
    planned_for = world if hosts is None else 2 * world
    stock, before = Performer(make_group(None, 30.0)), planes.TURN_BYTES
    planes.TURN_BYTES = least
    with performer(planned(planned_for, pattern, scheme), hosts=hosts) as pinned:
        for name in moves(rank, world, size, dtype):
            if name == "uneven" and size < 9:
                continue
            one, two = (moves(rank, world, size, dtype)[name] for _ in range(2))
            expected, got = stock.perform(one, name), pinned.perform(two, name)
            if isinstance(expected, dict):
                assert isinstance(got, dict)
                assert list(got) == list(expected)
                assert all(torch.equal(got[r], expected[r]) for r in expected), name
            elif name != "reduce" or rank == 1:
                assert isinstance(got, Tensor)
                assert got.dtype == expected.dtype
                assert torch.equal(got, expected), name
    planes.TURN_BYTES = before
    stock.close()


@pytest.mark.once
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.uint8])
@pytest.mark.parametrize("size", [4, 1000, 300_001])
@pytest.mark.parametrize("least", [0, 1 << 40])
def test_moves_arrive_as_by_one_network(
    three: Ranks, dtype: torch.dtype, size: int, least: int
) -> None:
    three.run(same_as_stock, "pairwise", "coloured", size, dtype, least)


@pytest.mark.once
@pytest.mark.parametrize("scheme", ["min_split", "ethereal", "wrap"])
@pytest.mark.parametrize("pattern", PATTERNS)
def test_cut_messages_arrive_whole(three: Ranks, pattern: str, scheme: str) -> None:
    three.run(same_as_stock, pattern, scheme, 300_001, torch.float32, 0)


def test_moves_of_two_and_of_four(two: Ranks, four: Ranks) -> None:
    for ranks in (two, four):
        ranks.run(same_as_stock, "pairwise", "coloured", 50_000, torch.float32, 0)


@pytest.mark.parametrize("hosts", [(0, 0, 0, 0), (0, 0, 2, 4), (5, 3, 5, 3)])
def test_large_messages_inside_a_host_arrive_too(four: Ranks, hosts: tuple[int, ...]) -> None:
    """Turns are of pairs of hosts, of which a plan may have more than a job uses."""
    four.run(same_as_stock, "pairwise", "coloured", 50_000, torch.float32, 0, hosts)


def by_the_plan(scheme: str) -> None:
    """Every byte of an all-to-all travels by the plane that the routes name."""
    rank, world = dist.get_rank(), dist.get_world_size()
    routes, each = planned(world, "all_to_all", scheme), 1_000_000
    expected = [dict[int, int]() for _ in range(PLANES)]
    rows = zip(routes.flow.tolist(), routes.path.tolist(), routes.amount.tolist())
    for flow, path, amount in rows:
        if routes.flows.src[flow] == rank:
            own, to = expected[path], int(routes.flows.dst[flow])
            own[to] = own.get(to, 0) + amount // routes.unit
    with performer(routes) as pinned:
        data = torch.zeros(world * each, dtype=torch.uint8)
        pinned.perform(AllToAll(data, (each,) * world, (each,) * world, rank), "a test")
        for plane, group in enumerate(pinned._planes.groups):
            sent = dict[int, int]()
            for to, size in group.sent:
                sent[to] = sent.get(to, 0) + size
            assert sent.keys() == expected[plane].keys()
            assert all(abs(sent[to] - expected[plane][to]) <= 1 for to in sent)


@pytest.mark.parametrize("scheme", ["coloured", "ethereal", "min_split"])
def test_every_byte_goes_by_its_plane(four: Ranks, scheme: str) -> None:
    four.run(by_the_plan, scheme)


def by_turns(least: int) -> None:
    """Large messages go in the plan's turns, with a barrier between turns; small ones all at
    once."""
    rank, world = dist.get_rank(), dist.get_world_size()
    routes, before, barrier = planned(world), planes.TURN_BYTES, dist.barrier
    turn_of = {
        int(to): int(turn)
        for source, to, turn in zip(routes.flows.src, routes.flows.dst, routes.flows.step)
        if source == rank
    }
    turns = sorted(set(turn_of.values()))
    assert len(turns) == world - 1

    with performer(routes) as pinned:
        log = list[int | str]()
        for group in pinned._planes.groups:
            group.log = log
        planes.TURN_BYTES = least
        dist.barrier = lambda group: (log.append("barrier"), barrier(group))
        try:
            for name in ("alike", "all_gather", "all_reduce"):
                log.clear()
                pinned.perform(moves(rank, world, 30_000, torch.float32)[name], name)
                assert log == times(turn_of, turns, least > 0) * (2 if name == "all_reduce" else 1)
        finally:
            planes.TURN_BYTES, dist.barrier = before, barrier


def times(turn_of: dict[int, int], turns: list[int], at_once: bool) -> list[int | str]:
    """The log expected of one exchange: nearest ranks first, or the plan's turns."""
    rank, world = dist.get_rank(), dist.get_world_size()
    near = sorted(turn_of, key=lambda to: (to - rank) % world)
    if at_once:
        return list(near)
    found = list[int | str]()
    for number, turn in enumerate(turns):
        found += ["barrier"] * (number > 0) + [to for to in near if turn_of[to] == turn]
    return found


@pytest.mark.parametrize("least", [0, 1 << 40])
def test_large_messages_go_in_turns(four: Ranks, least: int) -> None:
    four.run(by_turns, least)


def hierarchical_moves() -> None:
    rank, world = dist.get_rank(), dist.get_world_size()
    machines = Machines.even(world, 2)
    with performer(planned(world), machines) as pinned:
        for group in machines.groups():
            if rank not in group.ranks:
                continue
            data = torch.full((100_000,), float(rank))
            total = pinned.perform(AllReduce(data, group=group), "a test")
            assert isinstance(total, Tensor)
            assert (total == sum(group.ranks)).all()
        sent = {to for group in pinned._planes.groups for to, _ in group.sent}
        assert sent == set(range(world)) - {rank, rank ^ 3}  # inside and across, by world ranks


def test_parts_of_the_world_take_their_planes_too(four: Ranks) -> None:
    four.run(hierarchical_moves)


# -- attach -----------------------------------------------------------------------------------


def trains_alike(strategy: str, place: str) -> None:
    routes = planned(dist.get_world_size())
    given: Any = pins_of(routes)
    if place:
        text = given.to_json()
        given = Path(place) / f"pins-{dist.get_rank()}.json"
        given.write_text(text)
    plain, pinned = small(), small()
    with placed(), attached(plain, strategy) as _, attached(pinned, strategy, planes=given) as _:
        for step in range(3):
            for model in (plain, pinned):
                model.zero_grad()
                loss_of(model, step).backward()
            close(gradients(pinned), gradients(plain))
        same = [None] * dist.get_world_size()
        dist.all_gather_object(same, fingerprint(gradients(pinned).values()))
        assert len(set(same)) == 1, "every rank has the same sum, bit by bit"


@pytest.mark.parametrize(
    "strategy",
    ["none | allreduce", "none | alltoall", "topk(0.1)+ef | allgather", "topk(0.1)+ef | zen",
     "powersgd(2)"],
)  # fmt: skip
def test_a_model_trains_over_planes(three: Ranks, strategy: str, tmp_path: Path) -> None:
    three.run(trains_alike, strategy, "")
    three.run(trains_alike, strategy, str(tmp_path))


def refused(case: str) -> str:
    rank, world = dist.get_rank(), dist.get_world_size()
    given: Any = pins_of(planned(world))
    host, addresses = rank, None
    if case == "no host" and rank == 1:
        host = -1
    if case == "another host":
        host = rank + 1
    if case == "few addresses" and rank == 1:
        addresses = "127.0.0.2"
    if case == "others' addresses" and rank == 1:
        addresses = "127.0.0.2,192.0.2.1,127.0.0.3"
    if case == "no name" and rank == 1:
        addresses = "127.0.0.2,127.0.0.3\u3002.5,127.0.0.4"
    if case == "no pins":
        given = planned(world)
    if case == "no addresses" and rank == 0:
        addresses = ""
    if case == "other routes" and rank == 1:
        given = pins_of(planned(world, "all_to_all"))
    if case == "no file":
        given = "nowhere.json" if rank == 1 else given
    if case == "one without":
        given = None if rank == 1 else given
    options: dict[str, Any] = {"planes": given, "timeout_seconds": 5.0}
    with placed(host, addresses):
        return raised(
            lambda: attached(small(), "none | allreduce", **options).__enter__(), GradwireError
        )


@pytest.mark.parametrize(
    ("case", "words"),
    [
        (
            "no host",
            "every rank must set GRADWIRE_HOST.*rank 1 has '-1'. Set this .* on every machine",
        ),
        ("another host", "number of its host, 0 to 2; rank . has '3'.*plan for the topology"),
        (
            "few addresses",
            "addresses of its host, .* one on each of the 2 planes.*rank 1 has 1. Set",
        ),
        ("no addresses", "GRADWIRE_PLANES.*rank 0 has 0. Set this"),
        ("other routes", "every rank must pin by the same paths; rank . has others than rank"),
        ("no file", "must name a readable file|rank 1 cannot: a document of pins"),
        ("one without", "the same plan.*rank 1.* without planes|rank 1 has .* without planes"),
        (
            "others' addresses",
            "'192.0.2.1' is not one|rank 1 cannot: GRADWIRE_PLANES must list addr",
        ),
        ("no name", "is not one .encoding of hostname failed|rank 1 cannot: GRADWIRE_PLANES must"),
        (
            "no pins",
            "planes must be pins, or the path of a file of pins; got Routes. Make pins of routes",
        ),
    ],
)
def test_what_is_refused_is_refused_on_every_rank(three: Ranks, case: str, words: str) -> None:
    import re

    for said in three.run(refused, case):
        assert re.search(words, said), said


def fork() -> int:
    """The exit code of a fork that closes what only its parent has threads for."""
    group, own = make_group(None, 30.0), pins_of(planned(dist.get_world_size()))
    with placed():
        pinned = PlanePerformer(group, join_planes(*agreed_pins(own, group, CPU), group, 30.0))
    child = os.fork()
    if not child:
        signal.alarm(50)  # it shall not wait for them
        with Leaving():
            pinned.close()
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    total = pinned.perform(AllReduce(torch.ones(300_000)), "a test")
    assert isinstance(total, Tensor)
    assert (total == dist.get_world_size()).all()
    pinned.close()
    return code


def test_a_fork_leaves_the_planes_to_its_parent(two: Ranks) -> None:
    assert two.run(fork) == [0, 0]


def one_dies() -> str:
    planes.TURN_BYTES = 0
    group, own = make_group(None, WIDE), pins_of(planned(dist.get_world_size()))
    with placed():
        pinned = PlanePerformer(group, join_planes(*agreed_pins(own, group, CPU), group, WIDE))
    pinned.perform(AllReduce(torch.ones(300_000)), "a test")
    if dist.get_rank() == 1:
        os._exit(3)
    with everybody_is_heard_but(1):
        return raised(
            lambda: pinned.perform(AllReduce(torch.ones(300_000)), "bucket 7"), PeerError
        )


def test_a_dead_rank_is_named_and_nobody_hangs(tmp_path: Path) -> None:
    with Ranks(3, tmp_path) as ranks:
        outcomes = ranks.outcomes(one_dies)
    assert outcomes[1].died
    for rank in (0, 2):
        assert "rank 1 died or is stuck" in outcomes[rank].value, outcomes[rank].story
        assert "bucket 7" in outcomes[rank].value

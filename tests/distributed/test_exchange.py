"""Exchange over Gloo: all ranks with all at once, no messages at all, and a rank that dies."""

from __future__ import annotations

import os
import random
import re
import threading
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist
from broken import (
    WIDE,
    everybody_is_heard_but,
    lowered_limits,
    tell_that_it_is_over,
    wait_until_it_is_over,
)
from ranks import Ranks, side_by_side
from small import raised
from torch import Tensor

from gradwire.errors import PeerError
from gradwire.groups import Machines
from gradwire.moves import AllGather, AllReduce, Exchange
from gradwire.runtime.process_groups import make_group, make_parts
from gradwire.runtime.silent_ranks import _elsewhere, _missing
from gradwire.runtime.torch_dist import (
    DIRECT_BYTES,
    OWNED_BYTES,
    PACED_BYTES,
    Performer,
)

LARGE = 8 * 2**20


def data(sender: int, receiver: int, size: int, step: int = 0) -> Tensor:
    """Bytes that only this pair sends in this step."""
    seed = 1000 * step + 10 * sender + receiver
    dice = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (size,), generator=dice, dtype=torch.uint8)


def exchanged(performer: Performer, sizes: list[list[int | None]], step: int = 0) -> None:
    """sizes[a][b]: how many bytes a sends to b; None: no message is expected. All must arrive."""
    me, world = performer.rank, performer.world
    sends = {to: data(me, to, size, step) for to, size in enumerate(sizes[me]) if size is not None}
    receives = {by: size for by in range(world) if (size := sizes[by][me]) is not None}
    arrived = performer.perform(Exchange(sends, receives), "a test")
    assert isinstance(arrived, dict)
    assert list(arrived) == list(receives)
    for by, size in receives.items():
        assert arrived[by].dtype == torch.uint8
        assert torch.equal(arrived[by], data(by, me, size, step)), f"from {by} to {me}"
        assert arrived[by].data_ptr() % 8 == 0 or size == 0, "to be viewed as any number"


def shared(performer: Performer, sizes: list[int], step: int = 0) -> None:
    """sizes[a]: how many bytes a sends to all others. All must arrive."""
    me = performer.rank
    others = {r: size for r, size in enumerate(sizes) if r != me}
    move = Exchange.to_all(data(me, 0, sizes[me], step), others)
    arrived = performer.perform(move, "a test")
    assert isinstance(arrived, dict)
    assert list(arrived) == list(others)
    for by, size in others.items():
        assert torch.equal(arrived[by], data(by, 0, size, step)), f"from {by} to {me}"
        assert arrived[by].data_ptr() % 8 == 0 or size == 0, "to be viewed as any number"


def performer(timeout_seconds: float = 30.0) -> Performer:
    return Performer(make_group(None, timeout_seconds))


def patterns(world: int) -> None:
    """All patterns in the same group, one after the other: bytes left over by one break the
    next."""
    own = performer()
    cases: list[list[list[int | None]]] = [
        [[None if a == b else 100 * a + b for b in range(world)] for a in range(world)],
        [[None] * world for _ in range(world)],  # no rank has a message
        [[None if a == b or a > 0 else 7 for b in range(world)] for a in range(world)],
        [[None if a == b or b > 0 else 9 for b in range(world)] for a in range(world)],
        [[None if a == b else 0 for b in range(world)] for a in range(world)],  # of length 0
        [[None if a == b else (0 if a < b else 33) for b in range(world)] for a in range(world)],
        [[5 if b == (a + 1) % world else None for b in range(world)] for a in range(world)],
    ]
    for step in range(3):
        for number, sizes in enumerate(cases):
            exchanged(own, sizes, 100 * step + number)
            exchanged(own, cases[0], 50)
    arrived = own.perform(AllGather(torch.tensor([own.rank])), "a test")
    assert isinstance(arrived, Tensor)
    assert arrived.flatten().tolist() == list(range(world)), "other moves go on as ever"
    own.close()


def not_by_pairs(world: int, far_seconds: float = 0.0) -> dict[str, set[int]]:
    """The numbers of elements whose sums were Gloo's own, and whose gathers went around a ring, of
    some up to each limit and beyond. All are right."""
    own = Performer(make_group(None, 30.0), None, torch.device("cpu"), far_seconds)
    most = max(OWNED_BYTES, own._far_bytes)
    direct, owned = DIRECT_BYTES // 4 // (world - 1), most // 4 * world
    theirs: dict[str, set[int]] = {"all_reduce": set(), "around": set()}
    reduce, around = dist.all_reduce, own._around

    def reduced(data: Tensor, **more: Any) -> None:
        theirs["all_reduce"].add(data.numel())
        reduce(data, **more)

    def passed_on(message: Tensor, arrived: dict[int, Tensor]) -> None:
        theirs["around"].add(message.numel() // 4)
        around(message, arrived)

    with patch.object(dist, "all_reduce", reduced), patch.object(own, "_around", passed_on):
        for n in (1, world + 1, direct, direct + 1, owned - 1, owned, owned + 1):
            for dtype in (torch.float32, torch.int32):
                given = [torch.arange(n, dtype=dtype) % (7 + r) for r in range(world)]
                found = own.perform(AllReduce(given[own.rank].clone()), "a test")
                assert torch.equal(found, torch.stack(given).sum(0, dtype=dtype)), n
                found = own.perform(AllGather(given[own.rank]), "a test")
                assert torch.equal(found, torch.stack(given)), n
    own.close()
    return theirs


def test_small_sums_and_gathers_go_by_pairs(two: Ranks, four: Ranks) -> None:
    for theirs in two.run(not_by_pairs, 2):
        assert theirs == {"all_reduce": {65537}, "around": set()}
    for theirs in four.run(not_by_pairs, 4):
        assert theirs == {"all_reduce": {32769}, "around": {21846, 32767, 32768, 32769}}
    # far away: 495,000 bytes of a sum's part, or a gather's own
    for theirs in four.run(not_by_pairs, 4, 0.0099):
        assert theirs == {"all_reduce": {495_001}, "around": {494_999, 495_000, 495_001}}


def farness(far_seconds: float) -> list[int]:
    """What counts as near in the group of all ranks, and in those inside and across machines."""
    group = make_group(None, 30.0)
    parts = make_parts(group, Machines.even(4, 2), 30.0)
    own = Performer(group, parts, torch.device("cpu"), far_seconds)
    return [own._far_bytes, *(own._parts[name]._far_bytes for name in own._parts)]


def test_ranks_of_one_machine_are_near(four: Ranks) -> None:
    assert {tuple(found) for found in four.run(farness, 0.01)} == {(500_000, 0, 500_000)}
    assert {tuple(found) for found in four.run(farness, 0.0019)} == {(0, 0, 0)}


def test_patterns_of_two(two: Ranks) -> None:
    two.run(patterns, 2)


def test_patterns_of_three(three: Ranks) -> None:
    three.run(patterns, 3)


def large(world: int) -> None:
    """Messages larger than any socket's buffer, both ways: sending before receiving would never
    end."""
    own = performer()
    for step in range(2):
        exchanged(own, [[None if a == b else LARGE + a for b in range(world)]
                        for a in range(world)], step)  # fmt: skip
    own.close()


def test_large_parts_both_ways_at_once(two: Ranks, three: Ranks) -> None:
    two.run(large, 2)
    three.run(large, 3)


def irregular(world: int) -> None:
    """One or both ranks of some pairs send nothing; in some steps all messages are large, and
    paced."""
    own, dice = performer(), random.Random(world)
    choices = (None, 0, 1, 1000, PACED_BYTES, 5 * PACED_BYTES)
    for step in range(30):
        known = choices if step % 3 else choices[-1:]
        sizes = [
            [None if a == b else dice.choice(known) for b in range(world)] for a in range(world)
        ]
        if step % 6 == 0:  # one rank sends more than the others
            more = sizes[step % world]
            more[:] = [None if size is None else 9 * size for size in more]
        exchanged(own, sizes, step)
    own.close()


def test_any_sizes_between_any_pairs(tmp_path: Path) -> None:
    with Ranks(5, tmp_path) as ranks:
        ranks.run(irregular, 5)


def to_everybody(world: int) -> None:
    """One message to all others, of any length, some of none; by pairs, and around a ring."""
    own, dice = performer(), random.Random(world)
    for step in range(20):
        most = DIRECT_BYTES // (world - 1) if step % 3 else 3 * DIRECT_BYTES
        shared(own, [dice.choice((0, 1, most // 7, most)) for _ in range(world)], step)
    for dtype in (torch.bool, torch.bfloat16, torch.int64):
        for n in (0, 1, DIRECT_BYTES + 1):
            given = [(torch.arange(n) % (2 + r)).to(dtype) for r in range(world)]
            found = own.perform(AllGather(given[own.rank]), "a test")
            assert torch.equal(found, torch.stack(given))
    own.close()


@pytest.mark.parametrize("world", [2, 3, 5, 8])
def test_one_message_to_all_others(world: int, tmp_path: Path) -> None:
    with Ranks(world, tmp_path) as ranks:
        ranks.run(to_everybody, world)


def in_subsets(groups: list[list[int]]) -> None:
    """Ranks are numbered within the group; a rank outside all groups waits at the end."""
    made = [dist.new_group(members) for members in groups]
    for members, group in zip(groups, made):
        if dist.get_rank() not in members:
            continue
        own = Performer(group)  # type: ignore[arg-type]
        assert own.rank == members.index(dist.get_rank())
        for step in range(3):
            exchanged(own, [[None, 40], [50_000, None]], step)
        own.close()
    dist.barrier()


def test_a_group_is_not_the_world(tmp_path: Path) -> None:
    with Ranks(3, tmp_path) as ranks:  # torch keeps such groups: a pool of their own
        ranks.run(in_subsets, [[0, 1], [1, 2], [0, 2]])


# -- a rank that is gone -------------------------------------------------------------------------


def dies(lost: int, how: str) -> str:
    """The error of this rank when rank `lost` takes part once and then is gone."""
    own = performer(WIDE)
    world = own.world
    size = LARGE if how == "midway" else 100
    sizes: list[list[int | None]] = [
        [None if a == b else size for b in range(world)] for a in range(world)
    ]
    takes_part = partial(exchanged, own, sizes)
    if "sharing" in how:
        takes_part = partial(shared, own, [LARGE] * world)
    takes_part()
    with lowered_limits([own.group]), everybody_is_heard_but(lost):
        if own.rank == lost:
            return goes(own, size, how)
        try:
            for step in range(1, 3):
                takes_part(0 if step == 1 else step)
        except PeerError as error:
            tell_that_it_is_over()
            return str(error)
    raise AssertionError("nobody missed the rank")


def goes(own: Performer, size: int, how: str) -> str:
    if "stuck" in how:
        wait_until_it_is_over()
        return ""
    if how == "midway":  # the messages it announced are under way
        operations = [
            dist.P2POp(dist.isend, data(own.rank, to, size), to, own.group)
            for to in range(own.world)
            if to != own.rank
        ]
        dist.batch_isend_irecv(operations)
    os._exit(1)


def test_the_rank_that_is_gone_is_named(tmp_path: Path) -> None:
    """The other ranks fail as well, one by one, and are not taken for the lost one."""
    cases = [("stuck", 1), *((how, r) for how in ("before", "midway") for r in range(3))]
    cases += [("sharing", 0), ("sharing", 3), ("stuck, sharing", 2)]
    jobs = [(6 if "sharing" in how else 3, partial(dies, lost, how)) for how, lost in cases]
    for (how, lost), outcomes in zip(cases, side_by_side(tmp_path, jobs)):
        assert outcomes[lost].died or "stuck" in how
        for outcome in outcomes[:lost] + outcomes[lost + 1 :]:
            assert outcome.ok, outcome.story
            text = outcome.value
            named = re.search(r"; rank ([\d, ]+) died or is stuck", text)
            assert named is not None, text
            assert named[1] == str(lost), text
            assert "exchange" in text
            assert "a test" in text


def blamed(way: str) -> list[int]:
    """The ranks to blame where no message arrives."""
    own = performer()
    parts = {r: torch.zeros(8, dtype=torch.uint8) for r in range(own.world)}

    def cut(_: object) -> None:
        raise RuntimeError("cut")

    ways = {
        "around": partial(own._around, parts[own.rank], parts),
        "pairs": partial(own._between_all, list(parts.values()), list(parts.values()), 8),
    }
    is_cut = patch.multiple(own, _send=cut, _receive=cut)
    with is_cut, pytest.raises(RuntimeError, match="cut") as caught:
        ways[way]()
    own.close()
    return sorted(getattr(caught.value, "silent", [-1]))


def test_a_neighbour_that_waits_for_others_is_not_blamed(three: Ranks) -> None:
    assert three.run(blamed, "around") == [[], [], []]
    assert three.run(blamed, "pairs") == [[1, 2], [0, 2], [0, 1]]


def out_of_memory(where: str, error: Exception, expected: type[Exception]) -> str:
    """The error of a rank that has no memory for what arrives."""
    own = performer(0.5)

    def full(*_: object) -> Tensor:
        raise error

    with patch.object(own._scratch if where == "room" else own, where, full):
        return raised(lambda: own.perform(AllGather(torch.ones(10)), "a test"), expected)


def test_who_has_no_memory_blames_nobody_else(one: Ranks) -> None:
    (said,) = one.run(out_of_memory, "room", RuntimeError("can't allocate"), MemoryError)
    assert said.startswith("a rank needs memory for what arrives")
    assert "40 bytes on cpu could not be had (can't allocate)" in said
    kind = torch.OutOfMemoryError
    assert one.run(out_of_memory, "_all_gather", kind("2 GiB"), kind) == ["2 GiB"]


def test_ranks_that_failed_elsewhere_are_named_with_it() -> None:
    store = dist.HashStore()
    for rank, where in enumerate(("bucket 0 in step 4", "bucket 1 in step 3")):
        store.set(f"gradwire/failed/{rank}", where)
    elsewhere = _elsewhere(store, "gradwire/failed", [0, 1], "bucket 0 in step 4", [4, 6])
    assert elsewhere == "; rank 6 failed in bucket 1 in step 3"


def test_who_is_silent_is_waited_for() -> None:
    store = dist.HashStore()
    store.set("gradwire/failed/0", "")
    assert _missing(store, "gradwire/failed", [0, 1], 0.1) == [1]
    threading.Timer(0.1, store.set, ("gradwire/failed/1", "")).start()
    assert _missing(store, "gradwire/failed", [0, 1], WIDE) == []


def rooms() -> list[torch.device]:
    """The devices of buffers for arriving messages, with another backend than Gloo."""
    own, found = Performer(make_group(None, 20), None, torch.device("meta")), []

    def room(_: str, n: int, dtype: torch.dtype, device: torch.device) -> Tensor:
        found.append(device)
        return torch.empty(n, dtype=dtype)

    own._gloo, own._scratch.room = False, room  # type: ignore[method-assign]
    own.perform(Exchange({}, {}), "a test")
    own.close()
    return found


def test_what_arrives_is_on_the_model_s_device(one: Ranks) -> None:
    assert one.run(rooms) == [[torch.device("meta")]]

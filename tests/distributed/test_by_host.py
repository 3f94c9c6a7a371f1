"""Moves whose tensors are outside the memory that the network reads: copied down, sent, and copied
up. Here both places are the host's memory, which is what every copy between them must survive."""

from __future__ import annotations

import torch
from ranks import Ranks
from torch import Tensor

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
from gradwire.runtime.host_copies import HostCopies
from gradwire.runtime.process_groups import make_group
from gradwire.runtime.torch_dist import Performer


def moves(rank: int, world: int) -> list[Move]:
    """Moves of every kind, with this rank's numbers; some are too large to go by pairs."""
    own = torch.arange(12.0) + 100 * rank
    sizes, mine = (3,) * world, own[: 3 * world].clone()
    peers = [r for r in range(world) if r != rank]
    large = torch.full((200_000 + 8 * rank,), rank, dtype=torch.uint8)
    return [
        AllReduce(own.clone()), AllReduce(torch.full((300_000,), float(rank))),
        AllReduce(own.bfloat16()), AllGather(own.clone()), AllGather(own[:0].clone()),
        AllToAll(mine, sizes, sizes, rank), ReduceScatter(mine.clone(), sizes, rank),
        Exchange({r: large[: r + 1] for r in peers}, dict.fromkeys(peers, rank + 1)),
        Exchange({}, {}), Exchange.to_all(large[:9], dict.fromkeys(peers, 9)),
        Exchange.to_all(large, {r: 200_000 + 8 * r for r in peers}),
        Broadcast(own.clone(), 1, rank), Reduce(own.clone(), 1, rank),
        Gather(own.clone(), 1, rank),
    ]  # fmt: skip


def carried() -> None:
    plain, by_host = (Performer(make_group(None, 20.0)) for _ in range(2))
    by_host._host = HostCopies(torch.device("cpu"))
    for turn in range(2):
        pairs = zip(*(moves(plain.rank, plain.world) for _ in range(2)))
        for one, other in pairs:
            wanted, found = plain.perform(one, "a test"), by_host.perform(other, "a test")
            if isinstance(wanted, dict):
                assert isinstance(found, dict)
                assert list(found) == list(wanted)
                assert all(torch.equal(found[by], x) for by, x in wanted.items())
                continue
            assert isinstance(found, Tensor)
            assert torch.equal(found, wanted), f"{one} in turn {turn}"
            if isinstance(other, AllReduce):
                assert found.data_ptr() == other.data.data_ptr(), "in place, as over the network"


def test_every_move_arrives_the_same(three: Ranks) -> None:
    three.run(carried)

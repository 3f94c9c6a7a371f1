"""Every move of tensors on a CUDA device, played by the host's memory: the device gets what
processors get. Over Gloo moves use pinned memory, and the host does not wait for copies up."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.distributed as dist
from ranks import Ranks
from test_by_host import moves
from torch import Tensor

from gradwire.moves import AllReduce, Exchange, Move
from gradwire.runtime.process_groups import make_group
from gradwire.runtime.torch_dist import Performer
from posed import behind
from posing import posing

DEVICE = torch.device("cuda", 1)


def there(move: Move) -> Move:
    """The same move, with tensors on the device."""
    if isinstance(move, Exchange):
        return replace(move, sends={r: x.to(DEVICE) for r, x in move.sends.items()})
    moved = type(move)(**{**vars(move), "data": move.data.to(DEVICE)})  # type: ignore[attr-defined]
    assert isinstance(moved, Move)
    return moved


def carried(carries: bool) -> set[str]:
    """What the host waited for."""
    plain = Performer(make_group(None, 20.0))
    rank, world = dist.get_rank(), dist.get_world_size()
    with posing(carries) as scene:
        performer = Performer(make_group(None, 20.0), None, DEVICE)
        for _ in range(2):
            pairs = list(zip(moves(rank, world), map(there, moves(rank, world))))
            for one, other in pairs:
                wanted = plain.perform(one, "a test")
                with scene.watching():
                    found = performer.perform(other, "a test")
                for x, y in zip(_tensors(found), _tensors(wanted), strict=True):
                    assert x.device == DEVICE
                    assert torch.equal(behind(x), y), f"{one}"
                if isinstance(other, AllReduce):
                    assert isinstance(found, Tensor)
                    assert found.data_ptr() == other.data.data_ptr(), "in place"
        torch.cuda.current_stream(DEVICE).synchronize()
        return scene.found


def _tensors(arrived: Tensor | dict[int, Tensor]) -> list[Tensor]:
    return list(arrived.values()) if isinstance(arrived, dict) else [arrived]


@pytest.mark.parametrize("carries", [True, False])
def test_every_move_arrives_there(three: Ranks, carries: bool) -> None:
    waits = set() if carries else {"runtime/host_copies.py down_all: a stream's end"}
    assert three.run(carried, carries) == [waits] * 3

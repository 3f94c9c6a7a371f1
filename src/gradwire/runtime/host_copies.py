"""Copies between a device and the host's memory, for backends that carry what is there.

device ──► pinned memory ──► the network ──► pinned memory ──► device
       one wait of the lane's thread                 nobody waits
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from gradwire import kernels

CPU = torch.device("cpu")
_ALIGNED = 64


def is_apart(device: torch.device) -> bool:
    """Whether its memory is not the host's."""
    return device.type != "cpu"


class HostCopies:
    """Of one lane, between it and one device. Memory on both is kept, as large as was needed."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._pinned = torch.empty(0, dtype=torch.uint8)
        self._scratch = kernels.Scratch()

    def down(self, x: Tensor) -> Tensor:
        """x, 1-D, in the host's memory, until the next call. Blocks until it is there, and until
        all that went up before has arrived."""
        return self.down_all({0: x})[0]

    def down_all(self, tensors: Mapping[int, Tensor]) -> dict[int, Tensor]:
        """Many, with one wait."""
        sizes = _sizes(tensors)
        if self._pinned.numel() < sum(sizes):
            pins = self.device.type == "cuda"
            self._pinned = torch.empty(sum(sizes), dtype=torch.uint8, pin_memory=pins)
        found = _copied(tensors, self._pinned[: sum(sizes)], sizes)
        if self.device.type == "cuda":
            torch.cuda.current_stream(self.device).synchronize()
        return found

    def lift(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Tensors of any memory of the host's, on the device, in memory of their own: one copy,
        and nobody waits. What is pinned for it is kept by its allocator until they are there."""
        sizes = _sizes(dict(enumerate(tensors)))
        pins = self.device.type == "cuda"
        pinned = torch.empty(sum(sizes), dtype=torch.uint8, pin_memory=pins)
        _copied(dict(enumerate(tensors)), pinned, sizes)
        there = torch.empty(sum(sizes), dtype=torch.uint8, device=self.device)
        there.copy_(pinned, non_blocking=True)
        parts = zip(tensors, torch.split(there, sizes))
        return [part[: x.nbytes].view(x.dtype).view(x.shape) for x, part in parts]

    def up(self, x: Tensor) -> Tensor:
        """x, from pinned memory, on the device, until the next call, in the same place for the
        same size. x stays as it is until the next call of `down`."""
        return self.up_all({0: x})[0]

    def up_all(self, tensors: Mapping[int, Tensor]) -> dict[int, Tensor]:
        """Many; nobody waits."""
        sizes = _sizes(tensors)
        room = self._scratch.room("up", sum(sizes), torch.uint8, self.device)
        return _copied(tensors, room, sizes)


def _sizes(tensors: Mapping[int, Tensor]) -> list[int]:
    """Bytes of room for each."""
    return [-(-x.nbytes // _ALIGNED) * _ALIGNED for x in tensors.values()]


def _copied(tensors: Mapping[int, Tensor], room: Tensor, sizes: list[int]) -> dict[int, Tensor]:
    """Each in its part of the room."""
    return {
        name: part[: x.nbytes].view(x.dtype).view(x.shape).copy_(x, non_blocking=True)
        for (name, x), part in zip(tensors.items(), torch.split(room, sizes))
    }

"""Copies between a device and the host's memory, for backends that send from host memory only.

device ──► pinned memory ──► the network ──► pinned memory ──► device
       one wait of the lane's thread                 no wait
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from gradwire import kernels

CPU = torch.device("cpu")
_ALIGNED = 64


def is_apart(device: torch.device) -> bool:
    """Whether the device has memory of its own, apart from the host's."""
    return device.type != "cpu"


class HostCopies:
    """One lane's copies between host and one device. Buffers on both are kept, as large as was
    needed."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._pinned = torch.empty(0, dtype=torch.uint8, device="cpu")
        self._scratch = kernels.Scratch()

    def down(self, x: Tensor) -> Tensor:
        """Copies x, 1-D, to the host's memory; valid until the next call. Blocks until the copy,
        and every copy up before it, is complete."""
        return self.down_all({0: x})[0]

    def down_all(self, tensors: Mapping[int, Tensor]) -> dict[int, Tensor]:
        """Copies many tensors down, with one wait."""
        sizes = _sizes(tensors)
        if self._pinned.numel() < sum(sizes):
            pins = self.device.type == "cuda"
            self._pinned = torch.empty(
                sum(sizes), dtype=torch.uint8, pin_memory=pins, device="cpu"
            )
        found = _copied(tensors, self._pinned[: sum(sizes)], sizes)
        if self.device.type == "cuda":
            torch.cuda.current_stream(self.device).synchronize()
        return found

    def lift(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Copies tensors from any host memory to new memory on the device: one copy, without a
        wait. The allocator keeps the pinned memory for it until the copy is complete."""
        sizes = _sizes(dict(enumerate(tensors)))
        pins = self.device.type == "cuda"
        pinned = torch.empty(sum(sizes), dtype=torch.uint8, pin_memory=pins, device="cpu")
        _copied(dict(enumerate(tensors)), pinned, sizes)
        there = torch.empty(sum(sizes), dtype=torch.uint8, device=self.device)
        there.copy_(pinned, non_blocking=True)
        parts = zip(tensors, torch.split(there, sizes))
        return [part[: x.nbytes].view(x.dtype).view(x.shape) for x, part in parts]

    def up(self, x: Tensor) -> Tensor:
        """Copies x from pinned memory to the device; valid until the next call, and at the same
        address for the same size. x is unchanged until the next call of `down`."""
        return self.up_all({0: x})[0]

    def up_all(self, tensors: Mapping[int, Tensor]) -> dict[int, Tensor]:
        """Copies many tensors up, without a wait."""
        sizes = _sizes(tensors)
        room = self._scratch.room("up", sum(sizes), torch.uint8, self.device)
        return _copied(tensors, room, sizes)


def _sizes(tensors: Mapping[int, Tensor]) -> list[int]:
    """Returns the bytes of each tensor, with padding."""
    return [-(-x.nbytes // _ALIGNED) * _ALIGNED for x in tensors.values()]


def _copied(tensors: Mapping[int, Tensor], room: Tensor, sizes: list[int]) -> dict[int, Tensor]:
    """Copies each tensor into its part of the buffer."""
    return {
        name: part[: x.nbytes].view(x.dtype).view(x.shape).copy_(x, non_blocking=True)
        for (name, x), part in zip(tensors.items(), torch.split(room, sizes))
    }

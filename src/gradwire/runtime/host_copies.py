"""Copies between a device and the host's memory, for backends that carry what is there.

device ──► pinned memory ──► the network ──► host ──► device
       one wait of the lane's thread              nobody waits
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor


class HostCopies:
    """Of one lane, between it and one device. Pinned memory is kept, as large as was needed."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._pinned = torch.empty(0, dtype=torch.uint8)

    def down(self, x: Tensor) -> Tensor:
        """x, 1-D, in the host's memory, until the next call. Blocks until it is there, and until
        all that went up before has arrived."""
        return self.down_all({0: x})[0]

    def down_all(self, tensors: Mapping[int, Tensor]) -> dict[int, Tensor]:
        """Many, with one wait."""
        sizes = [-(-x.nbytes // 64) * 64 for x in tensors.values()]
        if self._pinned.numel() < sum(sizes):
            pins = self.device.type == "cuda"
            self._pinned = torch.empty(sum(sizes), dtype=torch.uint8, pin_memory=pins)
        rooms = torch.split(self._pinned[: sum(sizes)], sizes)
        found = {
            name: room[: x.nbytes].view(x.dtype).copy_(x, non_blocking=True)
            for (name, x), room in zip(tensors.items(), rooms)
        }
        if self.device.type == "cuda":
            torch.cuda.current_stream(self.device).synchronize()
        return found

    def up(self, x: Tensor) -> Tensor:
        """x, from the host's memory, on the device: new memory there."""
        return torch.empty_like(x, device=self.device).copy_(x, non_blocking=True)

"""A bucket whose gradients lie on a device, and whose local work is done in the host's memory.

device  gradients ══╗                                   ╔══► averages
host                ╚══► a context on CPUs ═════════════╝

Only the lane's thread waits for the copies down; those up follow in its stream.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from gradwire import kernels
from gradwire.buckets import Bucket
from gradwire.runtime.codec import Memory
from gradwire.runtime.context import BucketContext
from gradwire.runtime.host_copies import HostCopies
from gradwire.strategy import Feedback, Rounds, StepInfo, Strategy


class OffloadedContext(BucketContext):
    """The local work of one rank on one bucket. beside: the device of its gradients and averages;
    all else, states and messages too, is in the host's memory. options: for `Codec`.
    """

    def __init__(
        self, strategy: Strategy, bucket: Bucket, rank: int, world: int, memory: Memory, *,
        beside: torch.device, **options: Any,
    ) -> None:  # fmt: skip
        super().__init__(strategy, bucket, rank, world, memory, **options)
        self._copies = HostCopies(beside)
        self._on_device: tuple[Sequence[Tensor], Sequence[Tensor]] = (), ()
        self._on_host: Sequence[Tensor] = ()
        self._info = StepInfo()
        feedback = strategy.feedback
        acts_last = feedback is not None and type(feedback).received is not Feedback.received
        self._comes_last = acts_last or self.codec.means_are_apart

    @property
    def given(self) -> tuple[Sequence[Tensor], Sequence[Tensor]]:
        return self._on_device

    def begin(
        self, gradients: Sequence[Tensor], results: Sequence[Tensor], info: StepInfo
    ) -> None:
        """Starts a step. Nothing is copied yet, as the gradients may not be computed yet."""
        self.step, self._info = info.step, info
        self._on_device = gradients, results

    def rounds(self) -> Rounds[None]:
        """Copies gradients down, yields the step's moves, and copies averages up."""
        down = self._copies.down_all(dict(enumerate(self._on_device[0])))
        self._on_host = list(down.values())
        super().begin(self._on_host, self._on_host, self._info)
        yield from super().rounds()
        if not self._comes_last:
            self._up()

    def end(self, skipped: bool) -> None:
        counts = self.finite and not skipped
        super().end(skipped)
        if self._comes_last or not counts:
            self._up()
        self._on_device, self._on_host = ((), ()), ()

    def abandon(self) -> None:
        super().abandon()
        if self._comes_last:  # averages were not copied up, so results hold none
            for result in self._on_device[1] if self._on_host else ():
                kernels.fill_nan(result)

    def _up(self) -> None:
        for average, result in zip(self._on_host, self._on_device[1]):
            result.copy_(average, non_blocking=True)

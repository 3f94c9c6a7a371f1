"""What is ordered before what on a device's streams. On processors there is nothing to order.

backward's streams ──event──► the lane's stream: encode, wire, decode ──► who waits for the step

Events are recorded on the streams of the model's device, whatever device is current in the thread.
A tensor that is used on another stream than it was made on is recorded there, so that its memory
is not given to somebody else while kernels that wait in that stream still read it.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from time import perf_counter
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

from gradwire.errors import UsageError


class Made:
    """On which streams the gradients of one bucket were made, in one step."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._streams: set[torch.cuda.Stream] = set()

    def add(self) -> None:
        """One more was made on the calling thread's stream."""
        if self._device.type == "cuda":
            _refuse_capture()
            self._streams.add(torch.cuda.current_stream(self._device))

    def take(self) -> Before:
        """All of them, as they are now; begins anew."""
        if self._device.type != "cuda":
            return NOTHING
        self.add()  # what else the thread that hands over has done
        streams, self._streams = self._streams, set()
        return tuple((stream, stream.record_event()) for stream in streams)


def _refuse_capture() -> None:
    """UsageError while a CUDA graph is captured: what lanes do would not be in it."""
    if torch.cuda.is_current_stream_capturing():
        raise UsageError(
            "gradients are exchanged by threads of their own, whose work no CUDA graph holds; "
            "backward() was called while one is captured. Capture the forward pass alone, or "
            "train without graphs"
        )


Before: TypeAlias = "tuple[tuple[torch.cuda.Stream, torch.cuda.Event], ...]"
"""Streams with what must be over on them."""
NOTHING: Before = ()
"""On processors."""


class Moment(NamedTuple):
    """When a lane came to some point of its work. event: there in its stream, whose work the host
    has only asked for by then; None on processors."""

    seconds: float
    event: torch.cuda.Event | None = None

    def since(self, first: Moment) -> float:
        """Seconds of the host's clock at which the device came there, if it was at the first when
        the host was. Waits for it."""
        if self.event is None or first.event is None:
            return self.seconds
        self.event.synchronize()
        return first.seconds + float(first.event.elapsed_time(self.event)) / 1e3


class LaneOrder:
    """One lane's stream; none on processors."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        cuda = device.type == "cuda"
        self.stream = torch.cuda.Stream(device) if cuda else None  # type: ignore[no-untyped-call]

    def after(self, before: Before) -> AbstractContextManager[Any]:
        """A context whose work is in the lane's stream, after all that."""
        if self.stream is None:
            return nullcontext()
        for _, event in before:
            self.stream.wait_event(event)
        return torch.cuda.stream(self.stream)

    def uses(self, tensors: Iterable[Tensor]) -> None:
        """These were made on other streams, and the lane works with them."""
        if self.stream is not None:
            for x in _parts(tensors):
                x.record_stream(self.stream)

    def hands_over(self, tensors: Iterable[Tensor], before: Before) -> None:
        """These have memory of the lane's stream, and others read them from now on."""
        if self.stream is not None:
            for x in _parts(tensors):
                for stream, _ in before:
                    x.record_stream(stream)

    def now(self) -> Moment:
        """What was asked for until now."""
        if self.stream is None:
            return Moment(perf_counter())
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        self.stream.record_event(event)
        return Moment(perf_counter(), event)

    def join(self) -> None:
        """What the caller's stream does next comes after all of the lane's."""
        if self.stream is not None:
            torch.cuda.current_stream(self._device).wait_stream(self.stream)


def _parts(tensors: Iterable[Tensor]) -> Iterable[Tensor]:
    """The memory of each: of rows (COO), that of their ids and values."""
    for x in tensors:
        if x.layout == torch.strided:
            yield x
        else:
            yield from (x._indices(), x._values())

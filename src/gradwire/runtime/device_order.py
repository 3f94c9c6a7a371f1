"""The order of work on a device's streams. On CPUs there is nothing to order.

backward's streams ──event──► the lane's stream: encode, wire, decode ──► streams that use results

Events are recorded on the streams of the model's device, whatever device is current in the thread.
A tensor that is used on another stream than the one it was made on is recorded there, so that its
memory is not reused while kernels queued in that stream still read it.
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
    """The streams on which the gradients of one bucket were computed, in one step."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._streams: set[torch.cuda.Stream] = set()

    def add(self) -> None:
        """Notes that a gradient was computed on the calling thread's stream."""
        if self._device.type == "cuda":
            _refuse_capture()
            self._streams.add(torch.cuda.current_stream(self._device))

    def take(self) -> Before:
        """Returns all of them, each with an event recorded now; begins anew."""
        if self._device.type != "cuda":
            return NOTHING
        self.add()  # for any other work of the thread that hands over
        streams, self._streams = self._streams, set()
        return tuple((stream, stream.record_event()) for stream in streams)


def _refuse_capture() -> None:
    """Raises UsageError while a CUDA graph is captured: the lanes' work would not be in it."""
    if torch.cuda.is_current_stream_capturing():
        raise UsageError(
            "a CUDA graph cannot capture the exchange of gradients, which runs in threads of its "
            "own; backward() was called during a capture. Capture the forward pass alone, or "
            "train without graphs"
        )


Before: TypeAlias = "tuple[tuple[torch.cuda.Stream, torch.cuda.Event], ...]"
"""Streams, each with the event that must be reached on it."""
NOTHING: Before = ()
"""The value on CPUs."""


class Moment(NamedTuple):
    """The time at which a lane reached a point of its work. event: recorded at that point of its
    stream, as the host has only queued that work by then; None on CPUs."""

    seconds: float
    event: torch.cuda.Event | None = None

    def since(self, first: Moment) -> float:
        """Returns when the device reached it, in seconds of the host's clock, if host and device
        reached `first` together. Waits for the device."""
        if self.event is None or first.event is None:
            return self.seconds
        self.event.synchronize()
        return first.seconds + float(first.event.elapsed_time(self.event)) / 1e3


class LaneOrder:
    """One lane's stream; None on CPUs."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        cuda = device.type == "cuda"
        self.stream = torch.cuda.Stream(device) if cuda else None  # type: ignore[no-untyped-call]

    def after(self, before: Before) -> AbstractContextManager[Any]:
        """Returns a context whose work goes to the lane's stream, after these events."""
        if self.stream is None:
            return nullcontext()
        for _, event in before:
            self.stream.wait_event(event)
        return torch.cuda.stream(self.stream)

    def uses(self, tensors: Iterable[Tensor]) -> None:
        """Records that the lane's stream uses these tensors, which were made on other streams."""
        if self.stream is not None:
            for x in _parts(tensors):
                x.record_stream(self.stream)

    def hands_over(self, tensors: Iterable[Tensor], before: Before) -> None:
        """Records that `before`'s streams use these tensors, made in the lane's stream."""
        if self.stream is not None:
            for x in _parts(tensors):
                for stream, _ in before:
                    x.record_stream(stream)

    def now(self) -> Moment:
        """Returns the moment after all work queued so far."""
        if self.stream is None:
            return Moment(perf_counter())
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        self.stream.record_event(event)
        return Moment(perf_counter(), event)

    def join(self) -> None:
        """Makes the caller's stream wait for all work of the lane's."""
        if self.stream is not None:
            torch.cuda.current_stream(self._device).wait_stream(self.stream)


def _parts(tensors: Iterable[Tensor]) -> Iterable[Tensor]:
    """Yields the strided tensors of each: for rows (COO), their ids and values."""
    for x in tensors:
        if x.layout == torch.strided:
            yield x
        else:
            yield from (x._indices(), x._values())

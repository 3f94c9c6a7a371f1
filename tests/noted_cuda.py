"""Streams and events of CUDA devices that do not exist: they note what is requested of them.

Work is counted by stream, and a stream that waits for an event knows which work was done by then,
so a test can ask what is surely done from a stream's view (`Stream.knows`).
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

import torch

Point: TypeAlias = "tuple[Stream, int]"
"""A stream, and the number of a piece of work in it."""


class Stream:
    """A stream of a device. waited: what it waited for, in words. milliseconds: how long it has
    worked. later: delivers, in order, what arrives once the host has waited for the stream.
    was_used: whether any work was given to it. told: called with what the host waits for."""

    def __init__(
        self, name: str, device: torch.device, told: Callable[[str], None] = lambda _: None
    ) -> None:
        self.name, self.device, self._told = name, device, told
        self.waited, self.milliseconds = list[str](), 0.0
        self.later = list[Callable[[], None]]()
        self._reached, self._known = 0, dict[Stream, int]()
        self.was_used = False

    def works(self) -> Point:
        """Adds a piece of work behind all that the stream was given until now."""
        self.was_used = True
        self._reached += 1
        return self, self._reached

    def knows(self, point: Point) -> bool:
        """Whether that work is done before whatever this stream is given next."""
        stream, count = point
        return stream is self or self._known.get(stream, 0) >= count

    def record_event(self, event: Event | None = None) -> Event:
        event = event or Event()
        assert event.stream in (None, self), "an event is recorded on one stream"
        self.was_used = True
        event.stream, event.milliseconds = self, self.milliseconds
        event.known = {**self._known, self: self._reached}
        return event

    def wait_event(self, event: Event) -> None:
        assert event.stream is not None, "an event that was never recorded holds nobody back"
        self._wait(event, f"end of {event.stream.name}")

    def wait_stream(self, other: Stream) -> None:
        self._wait(other.record_event(), f"all of {other.name}")

    def synchronize(self) -> None:
        self.heard("a stream's end")
        self.arrive()

    def heard(self, what: str) -> None:
        """Reports that the host waits for something of this stream's."""
        self._told(what)

    def arrive(self) -> None:
        """Delivers what was under way: the host has waited for all of the stream's work."""
        later, self.later = self.later, []
        for arrives in later:
            arrives()

    def _wait(self, event: Event, what: str) -> None:
        self.was_used = True
        self.waited.append(what)
        for stream, count in event.known.items():
            self._known[stream] = max(count, self._known.get(stream, 0))


class Event:
    """Remembers how long its stream had worked, what was over, and who waited for it."""

    def __init__(self, enable_timing: bool = False) -> None:
        self._is_timed, self._is_over = enable_timing, False
        self.milliseconds = math.nan
        self.stream: Stream | None = None
        self.known = dict[Stream, int]()

    def synchronize(self) -> None:
        assert self.stream is not None
        self.stream.heard("an event")
        self._is_over = True

    def elapsed_time(self, later: Event) -> float:
        assert self._is_timed
        assert later._is_timed
        assert later._is_over
        assert self.stream is not None
        assert later.stream is not None
        assert self.stream.device == later.stream.device
        return later.milliseconds - self.milliseconds


class Memory:
    """Which streams wrote and read some memory of a device. home: the stream that it was allocated
    for, which gets it back; recorded: the streams that torch waits for before that."""

    def __init__(self, home: Stream) -> None:
        self.home, self.recorded = home, set[Stream]()
        self._written: Point | None = home.works()
        self._read = dict[Stream, int]()

    def used(self, stream: Stream, writes: bool) -> list[Stream]:
        """Notes a use. Returns streams that may still be at work on it, but must have ended."""
        before = (self._written, *(self._read.items() if writes else ()))
        late = [point[0] for point in before if point and not stream.knows(point)]
        if writes:
            self._written, self._read = stream.works(), {}
        else:
            _, self._read[stream] = stream.works()
        return late

    def is_written(self) -> None:
        """Notes that the host has waited for the write: all later work comes after it."""
        self._written = None

    def last_uses(self) -> list[Point]:
        """The last uses that torch does not wait for."""
        every = (self._written, *self._read.items())
        return [point for point in every if point and point[0] not in self.recorded]


class Cuda:
    """A substitute for `torch.cuda`: each thread has its own current device, at first device 0.

    made: streams that were requested. captures: whether a graph is captured.
    """

    Event = Event

    def __init__(self, devices: int = 2, told: Callable[[str], None] = lambda _: None) -> None:
        self._devices = [torch.device("cuda", index) for index in range(devices)]
        self.main = {device: Stream("main", device, told) for device in self._devices}
        self.made, self.captures = list[Stream](), False
        self._told, self._thread = told, threading.local()

    def at(self, device: Any) -> torch.device:
        """The device with its index: "cuda" without one is the current device."""
        index = device if isinstance(device, int) else torch.device(device).index
        return self._devices[self.current_device() if index is None else index]

    def is_current_stream_capturing(self) -> bool:
        return self.captures

    def current_device(self) -> int:
        return getattr(self._thread, "device", 0)

    def current_stream(self, device: Any = "cuda") -> Stream:
        device = self.at(device)
        return self._current.get(device, self.main[device])

    def Stream(self, device: Any = "cuda") -> Stream:
        self.made.append(Stream("lane", self.at(device), self._told))
        return self.made[-1]

    @contextmanager
    def stream(self, stream: Stream) -> Iterator[None]:
        """Makes the stream current in the context, and its device, too."""
        before = self.current_stream(stream.device)
        with self.device(stream.device):
            self._current[stream.device] = stream
            try:
                yield
            finally:
                self._current[stream.device] = before

    @contextmanager
    def device(self, device: Any) -> Iterator[None]:
        before, self._thread.device = self.current_device(), self.at(device).index
        try:
            yield
        finally:
            self._thread.device = before

    def used(self) -> set[torch.device]:
        """The devices that have a stream which was given any work."""
        return {s.device for s in (*self.main.values(), *self.made) if s.was_used}

    @property
    def _current(self) -> dict[torch.device, Stream]:
        """This thread's current streams, for devices where that is not the main one."""
        if not hasattr(self._thread, "streams"):
            self._thread.streams = {}
        found: dict[torch.device, Stream] = self._thread.streams
        return found

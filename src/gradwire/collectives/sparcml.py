"""sparcml: ranks pair up and merge all they have. log2(n) rounds, best for few ranks."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from gradwire import kernels
from gradwire.collectives._butterfly import Butterfly
from gradwire.local import Stream, Streams
from gradwire.moves import Exchange, Move
from gradwire.strategy import Collective, Context


@dataclass(frozen=True)
class SparCML(Collective):
    """Recursive doubling: whole lists to a partner, merged alike on both sides, log2(n) times.

    A list becomes dense once it would take as many bytes as all elements. Sums along a tree, so
    with other roundings than rank order; ranks end bitwise equal. Any number of ranks.
    Source: Renggli et al. 2019, "SparCML", section 5.3.1 (SSAR_Recursive_double); the list's true
    length, not its bound, decides when it becomes dense.
    """

    name: ClassVar[str] = "sparcml"
    needs: ClassVar[tuple[str, ...]] = ("entries",)

    def rounds(self, ctx: Context) -> Generator[Move, Any, None]:
        work = ctx.streams()
        mine = work.entries()
        if work.heard((yield work.announce(mine.count))) is None:
            return
        place = Butterfly(ctx.rank, ctx.world)
        held = _Held(work, replace(mine, values=mine.values.float()))
        guests = [] if place.guest is None else [place.guest]
        yield from _pass_on(held, [place.host] if place.is_folded else [], guests)
        for partner in place.partners:
            peers = [] if place.is_folded else [partner]
            yield from _pass_on(held, peers, peers)
        if place.is_folded:
            held.forget()
        yield from _pass_on(held, guests, [place.host] if place.is_folded else [])
        held.write(float(ctx.world))


def _pass_on(held: _Held, to: list[int], by: list[int]) -> Generator[Move, Any, None]:
    """How long it is, then what is held, to one rank; what another holds is merged in."""
    length = held.work.coded_count(held.count)
    arrived = yield Exchange(dict.fromkeys(to, length), dict.fromkeys(by, length.numel()))
    counts = {r: held.work.read_count(arrived[r]) for r in by}
    message = held.message() if to else length
    sizes = {r: held.bytes_of(count) for r, count in counts.items()}
    arrived = yield Exchange(dict.fromkeys(to, message), sizes)
    for r, count in counts.items():
        held.merge(count, arrived[r])


class _Held:
    """A sum on its way: a stream, or all elements once that is no more bytes."""

    def __init__(self, work: Streams, stream: Stream) -> None:
        self.work, self._stream = work, stream
        self._dense: Tensor | None = None
        self.device = stream.places.device
        self._settle()

    @property
    def count(self) -> int:
        """Of a stream's entries; of elements, if it is dense."""
        return self._stream.count if self._dense is None else self.work.size

    def _is_dense(self, count: int) -> bool:
        work = self.work
        return work.coded_bytes(work.size, count, self._stream) >= 4 * work.size

    def bytes_of(self, count: int) -> int:
        if self._is_dense(count):
            return 4 * self.work.size
        return self.work.coded_bytes(self.work.size, count, self._stream)

    def message(self) -> Tensor:
        if self._dense is not None:
            return self._dense.view(torch.uint8)
        return self.work.coded(self.work.size, self._stream)

    def merge(self, count: int, message: Tensor) -> None:
        if self._is_dense(count):
            theirs = self.work.whole(message, self.bytes_of(count)).view(torch.float32).clone()
            if self._dense is None:
                self._dense = _added(theirs, self._stream)
            else:
                self._dense = self._dense + theirs
            return
        stream = self.work.read(self.work.size, count, self._stream, message)
        if self._dense is not None:
            self._dense = _added(self._dense, stream)
        else:
            self._stream = self.work.merge(self.work.size, self._stream, stream)
            self._settle()

    def _settle(self) -> None:
        if self._dense is None and self._is_dense(self._stream.count):
            self._dense = _added(torch.zeros(self.work.size, device=self.device), self._stream)

    def forget(self) -> None:
        """It was handed over."""
        none = self._stream.places[:0]
        self._stream, self._dense = Stream(none, none.float()), None

    def write(self, divisor: float) -> None:
        if self._dense is not None:
            return self.work.write_dense(self._dense, divisor)
        means = kernels.quotient(self._stream.values, divisor).to(self.work.mean_dtype)
        return self.work.write([Stream(self._stream.places, means)])


def _added(dense: Tensor, stream: Stream) -> Tensor:
    """In place."""
    kernels.add(dense, stream.places, stream.values.contiguous(), 1.0)
    return dense

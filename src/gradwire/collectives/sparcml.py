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
    work = held.work
    message = held.message() if to else None
    length = work.coded_count(0 if message is None else message.numel())
    arrived = yield Exchange(dict.fromkeys(to, length), dict.fromkeys(by, length.numel()))
    sizes = {r: work.read_count(arrived[r], 4 * work.size) for r in by}
    arrived = yield Exchange({r: message for r in to if message is not None}, sizes)
    for r in by:
        held.merge(work.whole(arrived[r], sizes[r]))


class _Held:
    """A sum on its way: a stream, or all elements once that is no more bytes."""

    def __init__(self, work: Streams, stream: Stream) -> None:
        self.work, self._stream = work, stream
        self._dense: Tensor | None = None

    def message(self) -> Tensor:
        if self._dense is None:
            packed = self.work.packed(self.work.size, self._stream)
            if packed.numel() < 4 * self.work.size:
                return packed
            room = torch.zeros(self.work.size, device=packed.device)
            self._dense = _added(room, self._stream)
        return self._dense.view(torch.uint8)

    def merge(self, message: Tensor) -> None:
        if message.numel() == 4 * self.work.size:
            theirs = message.clone().view(torch.float32)
            if self._dense is None:
                self._dense = _added(theirs, self._stream)
            else:
                self._dense = self._dense + theirs
            return
        stream = self.work.unpacked(self.work.size, self._stream, message)
        if self._dense is not None:
            self._dense = _added(self._dense, stream)
        else:
            self._stream = self.work.merge(self.work.size, self._stream, stream)

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

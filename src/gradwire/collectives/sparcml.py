"""sparcml: ranks pair up and merge all entries. log2(n) rounds, best for few ranks."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from gradwire import kernels
from gradwire.collectives._butterfly import Butterfly
from gradwire.local import Streams
from gradwire.moves import Exchange
from gradwire.strategy import Collective, Context, Rounds
from gradwire.streams import Stream, from_rank, told_size, whole


@dataclass(frozen=True)
class SparCML(Collective):
    """Recursive doubling: partners exchange whole lists and merge them alike, log2(n) times.

    A list becomes dense once it would take as many bytes as all elements. Sums along a tree, so
    they round differently than in rank order; ranks end bitwise equal. Any number of ranks.
    Source: Renggli et al. 2019, "SparCML", section 5.3.1 (SSAR_Recursive_double); the list's true
    length, not its bound, decides when it becomes dense.
    """

    name: ClassVar[str] = "sparcml"
    sizes: ClassVar = "expected"
    needs: ClassVar[tuple[str, ...]] = ("entries",)
    takes_rows: ClassVar[bool] = True

    def rounds(self, ctx: Context) -> Rounds[None]:
        work = ctx.streams
        mine, place = work.entries(), Butterfly(ctx.rank, ctx.world)
        passes = _passes(place)
        held = _Held(replace(mine, values=mine.values.float()))
        first = held.message().numel() if any(to for to, _ in passes[:1]) else 0
        sizes = yield from work.tell(first, most=held.dense_bytes)
        if sizes is None:
            return
        for number, (to, by) in enumerate(passes):
            if number == 0:
                told = {r: sizes[r][0] for r in by}
            else:
                told = yield from _lengths(held, to, by)
            arrived = yield Exchange({r: held.message() for r in to}, told)
            if number == 0 and place.is_folded:
                held.forget()
            for r in by:
                from_rank(r, held.merge, whole(arrived[r], told[r]))
        held.write(work, float(ctx.world))


def _passes(place: Butterfly) -> list[tuple[list[int], list[int]]]:
    """Returns, for each pass, the ranks to which this one sends its sum, and those it gets."""
    host = [place.host] if place.is_folded else []
    guest = [] if place.guest is None else [place.guest]
    pairs = [[] if place.is_folded else [partner] for partner in place.partners]
    passes = [(host, guest), *((peer, peer) for peer in pairs), (guest, host)]
    return passes if place.world > place.core else passes[1:-1]


def _lengths(held: _Held, to: list[int], by: list[int]) -> Rounds[dict[int, int]]:
    """Exchange the sizes of the next messages. Returns bytes by sender."""
    mine = told_size(held.message().numel() if to else 0)
    arrived = yield Exchange(dict.fromkeys(to, mine), dict.fromkeys(by, mine.numel()))
    return {r: from_rank(r, held.stream.read_size, arrived[r], held.dense_bytes) for r in by}


class _Held:
    """A partial sum: a stream, or a dense vector once that takes no more bytes."""

    def __init__(self, stream: Stream) -> None:
        is_rows = stream.values.dim() > 1  # tables of rows are never made dense
        self.stream = stream
        self.dense_bytes = stream.most_packed_bytes() if is_rows else 4 * stream.n
        self._dense: Tensor | None = None
        self._packed: Tensor | None = None

    def message(self) -> Tensor:
        if self._dense is None:
            if self._packed is None:
                self._packed = self.stream.packed()
            if self._packed.numel() < self.dense_bytes:
                return self._packed
            room = torch.zeros(self.stream.n, device=self._packed.device, dtype=torch.float32)
            self._dense = _added(room, self.stream)
        return self._dense.view(torch.uint8)

    def merge(self, message: Tensor) -> None:
        self._packed = None
        if message.numel() == self.dense_bytes:
            theirs = message.clone().view(torch.float32)
            if self._dense is None:
                self._dense = _added(theirs, self.stream)
            else:
                self._dense = self._dense + theirs
            return
        stream = self.stream.unpacked(message)
        if self._dense is not None:
            self._dense = _added(self._dense, stream)
        else:
            self.stream = self.stream.plus(stream)

    def forget(self) -> None:
        """Drop the sum, which was sent to the host."""
        self.stream, self._dense, self._packed = self.stream[:0], None, None

    def write(self, work: Streams, divisor: float) -> None:
        if self._dense is not None:
            return work.write(kernels.quotient(self._dense, divisor))
        means = kernels.quotient(self.stream.values, divisor).to(work.mean_dtype)
        return work.write([replace(self.stream, values=means)])


def _added(dense: Tensor, stream: Stream) -> Tensor:
    """Add a stream to a dense vector, in place."""
    kernels.add(dense, stream.places, stream.values.contiguous(), 1.0)
    return dense

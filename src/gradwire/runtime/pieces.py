"""A compressor on each piece of a parameter by itself."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from gradwire import kernels
from gradwire.local import BlockCodes, KeptParts, Own, stands_for
from gradwire.strategy import (
    Claims,
    Compressor,
    Encoder,
    Key,
    Recurrence,
    Sections,
    State,
    StepInfo,
)


def of_piece(key: Key, j: int) -> Key:
    """Returns the key for the dice of piece j."""
    return Key(key.seed, key.step, f"{key.parameter}/{j}", key.rank)


@dataclass(frozen=True)
class PieceByPiece(Compressor):
    """A compressor on each piece by itself; its sections are those of the pieces, in order."""

    inner: Compressor
    bounds: tuple[tuple[int, int], ...]
    name: str = field(default="pieces", init=False)  # type: ignore[misc]

    def claims(self, n: int, dtype: str = "float32") -> Claims:
        parts = [self.inner.claims(end - begin, dtype).sections for begin, end in self.bounds]
        return Claims(tuple(section for part in parts for section in part))

    def encode(self, x: Tensor, sections: Sections, key: Key, status: Tensor) -> None:
        for j, (part, own) in enumerate(self._parts(x, sections)):
            self.inner.encode(part, own, of_piece(key, j), status)

    def places(self, sections: Sections, n: int, key: Key) -> Tensor | None:
        found = []
        for j, ((begin, end), own) in enumerate(zip(self.bounds, self.own(sections))):
            places = self.inner.places(own, end - begin, of_piece(key, j))
            if places is None:
                return None
            found.append(places + begin)
        return torch.cat(found)

    def blocks(self, sections: Sections, key: Key) -> Sequence[BlockCodes]:
        return [
            block._replace(place=slice(*self.bounds[j]))
            for j, own in enumerate(self.own(sections))
            for block in self.inner.blocks(own, of_piece(key, j))
        ]

    def decode(self, sections: Sections, x: Tensor, key: Key | None = None) -> None:
        for j, (part, own) in enumerate(self._parts(x, sections)):
            self.inner.decode(own, part, key and of_piece(key, j))

    def add(self, sections: Sections, v: Tensor, factor: float, key: Key | None = None) -> None:
        for j, (part, own) in enumerate(self._parts(v, sections)):
            self.inner.add(own, part, factor, key and of_piece(key, j))

    def accumulate(
        self, payloads: Sequence[Sections], x: Tensor, divisor: float, key: Key | None = None
    ) -> None:
        per_piece = [[own for _, own in self._parts(x, payload)] for payload in payloads]
        for j, ((begin, end), *owns) in enumerate(zip(self.bounds, *per_piece)):
            self.inner.accumulate(owns, x[begin:end], divisor, key and of_piece(key, j))

    def added(
        self, payloads: Sequence[Sections], x: Tensor, divisor: float, key: Key
    ) -> Sequence[kernels.SumSegment]:
        kind = type(self.inner)
        if not all(stands_for(kind, "added", one) for one in ("accumulate", "decode")):
            return ()
        per_piece = [[own for _, own in self._parts(x, payload)] for payload in payloads]
        found = list[kernels.SumSegment]()
        for j, ((begin, end), *owns) in enumerate(zip(self.bounds, *per_piece)):
            asked = self.inner.added(owns, x[begin:end], divisor, of_piece(key, j))
            if not asked:
                return ()
            found.extend(asked)
        return found

    def fuse(self, recurrence: Recurrence | None) -> Encoder | None:
        encoders = []
        for _ in self.bounds:
            encoder = self.inner.fuse(recurrence)
            if encoder is None:
                return None
            encoders.append(encoder)
        return _FusedPieces(self, recurrence, encoders)

    def _parts(self, x: Tensor, sections: Sections) -> Iterator[tuple[Tensor, Sections]]:
        for (begin, end), own in zip(self.bounds, self.own(sections)):
            yield x[begin:end], own

    def own(self, sections: Sections) -> Iterator[Sections]:
        """Yields the sections of each piece."""
        each = len(sections) // len(self.bounds)
        for j in range(len(self.bounds)):
            yield sections[j * each : (j + 1) * each]


def _without_journals(work: kernels.Work) -> kernels.Work:
    """Runs work without journals: a step that makes its state is undone by dropping it."""
    asked = next(work, None)
    while asked is not None:
        given = yield [
            one._replace(journal=None) if isinstance(one, kernels.UpdateTopk) else one
            for one in asked
        ]
        try:
            asked = work.send(given)
        except StopIteration:
            return


@dataclass
class _FusedPieces(Encoder):
    """Encodes each piece by a fused encoder of its own, whose state is a part of the parameter's.
    Their kernel calls are made together."""

    compressor: PieceByPiece
    recurrence: Recurrence | None
    encoders: Sequence[Encoder]
    _made: list[str] = field(default_factory=list)  # names of the state that this step made
    _parts: KeptParts = field(default_factory=KeptParts, repr=False)
    _cut: Sequence[Sequence[Tensor]] = field(default=(), repr=False)  # what _states consist of
    _states: list[dict[str, Tensor]] = field(default_factory=list, repr=False)

    def __post_init__(self) -> None:
        rule = self.recurrence
        self._wanted = [] if rule is None else [rule.state]
        if rule is not None and rule.momentum is not None:
            self._wanted.append("velocity")

    def encode(
        self, x: Tensor, state: State, sections: Sections, info: StepInfo, key: Key, status: Tensor
    ) -> None:
        kernels.together([self.work(Own(x, state, info, key), sections, status)], status)

    def work(self, own: Own, sections: Sections, status: Tensor) -> kernels.Work:
        x, state, info, key = own
        self._made = [name for name in self._wanted if name not in state]
        for name in self._made:
            state[name] = kernels.zeros(x.numel(), x.device)
        pieces = zip(self.encoders, self._each(x), self._states_of(state), self._own(sections))
        work = kernels.beside(
            encoder.work(Own(part, kept, info, of_piece(key, j)), section, status)
            for j, (encoder, part, kept, section) in enumerate(pieces)
        )
        yield from _without_journals(work) if self._made == self._wanted else work

    def undo(self, x: Tensor, state: State, sections: Sections, info: StepInfo) -> None:
        kernels.undo_many_topk(self.undoing(x, state, sections, info))

    def undoing(
        self, x: Tensor, state: State, sections: Sections, info: StepInfo
    ) -> Sequence[kernels.UndoTopk]:
        asked = list[kernels.UndoTopk]()
        if len(self._made) < len(self._wanted):
            pieces = zip(self.encoders, self._each(x), self._states_of(state), self._own(sections))
            for encoder, part, kept, section in pieces:
                asked += encoder.undoing(part, kept, section, info)
        for name in self._made:  # there was no such state before
            state.pop(name, None)
        self._made, self._cut, self._parts = [], (), KeptParts()
        return asked

    def give_back(self, state: State, sections: Sections) -> None:
        kernels.undo_many_topk(self.giving_back(state, sections))

    def giving_back(self, state: State, sections: Sections) -> Sequence[kernels.UndoTopk]:
        pieces = zip(self.encoders, self._states_of(state), self._own(sections))
        return [
            one for encoder, kept, section in pieces for one in encoder.giving_back(kept, section)
        ]

    def release(self) -> None:
        for encoder in self.encoders:
            encoder.release()

    def _own(self, sections: Sections) -> Iterator[Sections]:
        return self.compressor.own(sections)

    def _each(self, x: Tensor) -> list[Tensor]:
        return [x[begin:end] for begin, end in self.compressor.bounds]

    def _states_of(self, state: State) -> list[dict[str, Tensor]]:
        """Returns the state's parts: the same objects while the state's tensors are the same, as
        encoders keep facts about them."""
        kept = [state[name] for name in self._wanted]
        cut = self._parts.cut(kept, [slice(*bounds) for bounds in self.compressor.bounds])
        if cut is not self._cut:
            self._cut, self._states = cut, [dict(zip(self._wanted, own)) for own in cut]
        return self._states

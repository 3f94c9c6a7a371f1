"""A compressor on each piece of a parameter by itself."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from gradwire.local import BlockCodes
from gradwire.strategy import Claims, Compressor, Key, Sections


def of_piece(key: Key, j: int) -> Key:
    """The dice of piece j."""
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
        for j, ((begin, end), own) in enumerate(zip(self.bounds, self._own(sections))):
            places = self.inner.places(own, end - begin, of_piece(key, j))
            if places is None:
                return None
            found.append(places + begin)
        return torch.cat(found)

    def blocks(self, sections: Sections, key: Key) -> Sequence[BlockCodes]:
        return [
            block._replace(place=slice(*self.bounds[j]))
            for j, own in enumerate(self._own(sections))
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

    def _parts(self, x: Tensor, sections: Sections) -> Iterator[tuple[Tensor, Sections]]:
        for (begin, end), own in zip(self.bounds, self._own(sections)):
            yield x[begin:end], own

    def _own(self, sections: Sections) -> Iterator[Sections]:
        each = len(sections) // len(self.bounds)
        for j in range(len(self.bounds)):
            yield sections[j * each : (j + 1) * each]

"""The base of threshold and nonzero: payloads with any number of entries, which they state.

0         8                 16
│ bytes   │ 4·count + format │ places, coded, padded to 16 │ values │
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Generator, Sequence
from typing import Any

import torch
from torch import Tensor

from gradwire import kernels
from gradwire.compressors._added_up import AddedUp
from gradwire.compressors._entries import VALUES, Entries
from gradwire.errors import PayloadError
from gradwire.local import Added
from gradwire.member import padded
from gradwire.strategy import Key, Sections

_HEAD = 16
_FORMATS = tuple(VALUES)


class Ragged(AddedUp):
    """Entries whose magnitude reaches a threshold, in the smallest code for their number.

    Memory: 10 bytes per entry and thread while encoding, 4 per entry and payload while decoding.
    """

    index: str = "auto"
    """The code of places: "int32", or "auto", the smallest code for their number."""

    @abstractmethod
    def least(self) -> float:
        """Returns the least magnitude that is sent."""

    @abstractmethod
    def values(self, dtype: torch.dtype) -> str:
        """Returns the format of values for a gradient of that dtype: one of `VALUES`."""

    def capacity(self, n: int) -> int:
        """Returns the bytes of the longest payload: no code that "auto" chooses is longer than the
        bitmap, and no value longer than fp32."""
        longest = "bitmap" if self.index == "auto" else self.index
        return _HEAD + padded(kernels.code_bytes(longest, n, n)) + 4 * n

    def encode(self, x: Tensor, sections: Sections, key: Key, status: Tensor) -> None:
        def work() -> kernels.Work:
            yield from self.encoding(x, sections, key, status)

        kernels.together([work()], status)

    def encoding(
        self, x: Tensor, sections: Sections, key: Key, status: Tensor
    ) -> Generator[Sequence[Any], Sequence[Any], Added]:
        (section,) = sections
        (found,) = yield [kernels.Reach(x, self.least())]
        entries = Entries(x.numel(), found.places.numel(), self.values(x.dtype), self.index)
        parts, used = _parts(section, entries)
        facts = used, 4 * entries.k + _FORMATS.index(entries.values)
        kernels.stamp(section[:_HEAD].view(torch.int64), facts)
        section[_HEAD + parts[0].nbytes : used - parts[1].nbytes].zero_()
        yield [entries.segment(parts, found.places, found.values)]

        def add(v: Tensor, factor: float) -> None:
            kernels.add_coded(v, parts[0], entries.code, parts[1], factor)

        return add

    def add(self, sections: Sections, v: Tensor, factor: float, key: Key | None = None) -> None:
        entries, parts = self._read(0, sections[0], v.numel())
        kernels.add_coded(v, parts[0], entries.code, parts[1], factor)

    def read(self, sections: Sections, n: int) -> tuple[Tensor, Tensor]:
        entries, parts = self._read(0, sections[0], n)
        return entries.places(0, parts[0]), parts[1]

    def segment(self, payloads: Sequence[Sections], x: Tensor, divisor: float) -> kernels.SumCoded:
        read = [self._read(r, section, x.numel()) for r, (section,) in enumerate(payloads)]
        codes = [entries.code for entries, _ in read]
        places, values = [parts[0] for _, parts in read], [parts[1] for _, parts in read]
        return kernels.SumCoded(x, codes, places, values, divisor)

    def _read(self, payload: int, section: Tensor, n: int) -> tuple[Entries, Sections]:
        if section.numel() < _HEAD:
            raise PayloadError(
                f"payload {payload} must have at least {_HEAD} bytes; got {section.numel()}. The "
                "message is damaged or belongs to another parameter"
            )
        used, word = section[:_HEAD].view(torch.int64).tolist()
        k, form = divmod(word, 4)
        if not 0 <= k <= n or form >= len(_FORMATS):
            raise PayloadError(
                f"payload {payload} must have 0 to {n} entries of a known format; got {k} of "
                f"format {form}. The message is damaged or belongs to another parameter"
            )
        entries = Entries(n, k, _FORMATS[form], self.index)
        _, _, size = _bounds(entries)
        if used != size or size > section.numel():
            raise PayloadError(
                f"payload {payload}: {k} entries of {n} elements must take {size} bytes; its "
                f"header states {used}, and {section.numel()} arrived. The message is damaged or "
                "belongs to another parameter"
            )
        return entries, _parts(section, entries)[0]


def _parts(section: Tensor, entries: Entries) -> tuple[Sections, int]:
    """Returns the sections of places and values inside a ragged one, and where they end."""
    (places, _), (values, _) = entries.sections
    places_end, begin, end = _bounds(entries)
    first = section[_HEAD:places_end].view(getattr(torch, places))
    second = section[begin:end].view(getattr(torch, values))
    return (first, second), end


def _bounds(entries: Entries) -> tuple[int, int, int]:
    """Returns where the places end, and where the values begin and end, in bytes."""
    (places, count), (values, k) = entries.sections
    place_bytes = count * getattr(torch, places).itemsize
    begin = _HEAD + padded(place_bytes)
    return _HEAD + place_bytes, begin, begin + k * getattr(torch, values).itemsize

"""eb: every element within a stated error, in as few bits as possible."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import ClassVar

import torch
from torch import Tensor

from gradwire import kernels
from gradwire.errors import PayloadError, StrategyError
from gradwire.member import padded
from gradwire.strategy import Claims, Compressor, Key, Sections

_HEAD = 16
"""The header's size in bytes: used (8 bytes) │ largest magnitude, fp32 │ 0"""
_CHUNK = 1 << 16
_LEAST = 1e-4
_LEAST_SCALED = 2.0**-96


@dataclass(frozen=True)
class ErrorBounded(Compressor):
    """|x - x̂| <= bound · the parameter's largest magnitude, for every element.

        0       8         16
        │ bytes │ largest │ sum of each 65,536 codes, int32 … │ their codes, each padded to 16 … │

    Sends the nearest of levels up to the largest, at most 2 · bound apart. Levels 0, -1, 1, -2 …
    are numbered 1, 2, 3, 4 …; running sums of these numbers ascend like places, so the coder of
    places writes them, as Elias and Fano's code, or as a bitmap, the unary code.
    An element takes about log2(deviation / (bound · largest)) + 1.7 bits if they are normally
    distributed, half a bit more than Rice's code; 1 bit if they are zero. The size of a message
    depends on the data; collectives exchange lengths first. A parameter whose largest magnitude is
    below 2^-96 is sent as zeros. Coarse bounds want a feedback.
    Source: Di and Cappello 2016, "Fast Error-Bounded Lossy HPC Data Compression with SZ", section
    III, without prediction, as gradients have no neighbours; the code: Elias 1974.
    """

    bound: float
    name: ClassVar[str] = "eb"
    examples: ClassVar[tuple[str, ...]] = ("eb(0.001)", "eb(0.01)+ef")

    def __post_init__(self) -> None:
        if type(self.bound) not in (int, float) or not _LEAST <= self.bound <= 0.5:
            raise StrategyError(
                "eb's bound must be a fraction of the largest magnitude, from 0.0001 to 0.5; got "
                f"{self.bound!r}. Use for example eb(0.001)."
            )

    @property
    def top(self) -> int:
        """The largest level, of the largest magnitude. A margin covers fp32's rounding."""
        return math.ceil(1 / (2 * self.bound) * (1 + 2.0**-21 / self.bound))

    def claims(self, n: int, dtype: str = "float32") -> Claims:
        chunks = [min(_CHUNK, n - begin) for begin in range(0, n, _CHUNK)]
        head = _HEAD + padded(4 * len(chunks))
        most = head + sum(padded(_most_bytes(m * (2 * self.top + 1), m)) for m in chunks)
        mean = self._usual_mean(n)
        usual = head + sum(padded(_code_bytes(round(m * mean), m)) for m in chunks)
        return Claims(
            (("uint8", most),), contraction=0.0, wants_feedback=True, fixed=False, usual=usual
        )

    def _usual_mean(self, n: int) -> float:
        """Returns the mean level number, from 1, of n normally distributed elements whose largest
        magnitude is the median of such maxima."""
        largest = NormalDist().inv_cdf(0.5 + 0.5 ** (1 + 1 / n)) if n else 1.0
        return 0.5 + 2 * math.sqrt(2 / math.pi) * self.top / max(largest, 1.0)

    def encode(self, x: Tensor, sections: Sections, key: Key, status: Tensor) -> None:
        (section,), x = sections, x.detach()
        kernels.flag_non_finite(x, status)
        parts = torch.split(x, _CHUNK) if x.numel() else ()
        largest = torch.stack([_finite(part).abs().max() for part in parts or [x.new_zeros(1)]])
        largest = largest.max().view(1)
        inverse = torch.where(largest >= _LEAST_SCALED, self.top / largest, 0.0)
        ends, at = [], _HEAD + padded(4 * len(parts))
        section[8:at].zero_()
        for part in parts:  # each fits into the cache
            places = self._places(_finite(part) * inverse)
            end, k = int(places[-1]) + 1, places.numel()
            size = _code_bytes(end, k)
            kernels.encode_indices(places, end, _code_of(end, k), section[at : at + size])
            section[at + size : at + padded(size)].zero_()
            ends.append(end)
            at += padded(size)
        section[:8].view(torch.int64).fill_(at)
        section[8:12].view(torch.float32).copy_(largest)
        told = torch.tensor(ends, dtype=torch.int32, device="cpu")
        section[_HEAD : _HEAD + 4 * len(ends)].view(torch.int32).copy_(told)

    def _places(self, levels: Tensor) -> Tensor:
        """Returns running sums of the level numbers, minus one."""
        level = levels.round_().clamp_(-self.top, self.top).int()
        code = (level << 1) ^ (level >> 31)
        return code.add_(1).cumsum(0, dtype=torch.int32).sub_(1)

    def decode(self, sections: Sections, x: Tensor, key: Key | None = None) -> None:
        x.copy_(self._read(0, sections[0], x.numel()))

    def add(self, sections: Sections, v: Tensor, factor: float, key: Key | None = None) -> None:
        v.add_(self._read(0, sections[0], v.numel()), alpha=factor)

    def accumulate(
        self, payloads: Sequence[Sections], x: Tensor, divisor: float, key: Key | None = None
    ) -> None:
        read = [self._read(r, section, x.numel()) for r, (section,) in enumerate(payloads)]
        kernels.accumulate_dense(x, read, divisor)

    def _read(self, payload: int, section: Tensor, n: int) -> Tensor:
        """Returns a decoded payload, (n,) fp32."""
        try:
            largest, ends, at = self._head(section, n)
            levels = torch.empty(n, device=section.device, dtype=torch.float32)
            for end, begin in zip(ends, range(0, n, _CHUNK)):
                m = min(_CHUNK, n - begin)
                size = _code_bytes(end, m)
                places = torch.empty(m, dtype=torch.int32, device=section.device)
                kernels.decode_indices(section[at : at + size], end, _code_of(end, m), places)
                levels[begin : begin + m] = self._levels(places)
                at += padded(size)
        except PayloadError as error:
            raise PayloadError(f"payload {payload}: {error}") from error
        step = torch.where(largest >= _LEAST_SCALED, largest / self.top, 0.0)
        return levels.mul_(step).clamp_(-largest, largest)

    def _levels(self, places: Tensor) -> Tensor:
        code = places.diff(prepend=places.new_full((1,), -1)) - 1
        if int(code.max()) > 2 * self.top:
            raise PayloadError(
                f"every level must be at most {self.top} from 0; a larger one arrived. The "
                "message is damaged or belongs to another parameter"
            )
        return ((code >> 1) ^ -(code & 1)).float()

    def _head(self, section: Tensor, n: int) -> tuple[Tensor, list[int], int]:
        """Returns the largest magnitude, each list's end, and the offset of the first list."""
        count = -(-n // _CHUNK)
        begin = _HEAD + padded(4 * count)
        if section.numel() < begin:
            raise PayloadError(
                f"a payload of {n} elements must have at least {begin} bytes; got "
                f"{section.numel()}. The message is damaged or belongs to another parameter"
            )
        used, largest = int(section[:8].view(torch.int64)), section[8:12].view(torch.float32)[0]
        ends = section[_HEAD : _HEAD + 4 * count].view(torch.int32).tolist()
        sizes = [min(_CHUNK, n - i * _CHUNK) for i in range(count)]
        most = 2 * self.top + 1
        fits = all(m <= end <= m * most for end, m in zip(ends, sizes))
        size = begin + sum(padded(_code_bytes(e, m)) for e, m in zip(ends, sizes)) if fits else 0
        if (
            not fits
            or used != size
            or size > section.numel()
            or not 0 <= float(largest) < 2.0**128
        ):
            raise PayloadError(
                f"codes of {n} elements must take {size} bytes (0: their stated lengths are "
                f"impossible), with a finite largest magnitude; got {used} of {section.numel()}, "
                f"and {float(largest)}. The message is damaged or belongs to another parameter"
            )
        return largest, ends, begin


def _finite(x: Tensor) -> Tensor:
    return x.float().nan_to_num(0.0, 0.0, 0.0)


def _code_of(end: int, k: int) -> str:
    """Returns the shorter of the two codes whose length grows with end, the sum of numbers."""
    return min(("elias_fano", "bitmap"), key=lambda code: kernels.code_bytes(code, end, k))


def _most_bytes(end: int, k: int) -> int:
    """Returns the most bytes of any k places below end; 2 allow for rounding up to bytes."""
    return kernels.code_bytes("elias_fano", end, k) + 2


def _code_bytes(end: int, k: int) -> int:
    return kernels.code_bytes(_code_of(end, k), end, k)

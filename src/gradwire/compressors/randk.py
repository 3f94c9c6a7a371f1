"""randk: random elements, at the same places on every rank, so that no places travel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from gradwire import kernels
from gradwire.compressors._codec import noise_of
from gradwire.compressors._density import DENSITIES, check_density, count_of
from gradwire.errors import StrategyError, UsageError
from gradwire.strategy import Claims, Compressor, Key, Sections


@dataclass(frozen=True)
class RandK(Compressor):
    """Sends one random element of each of ceil(density·n) runs; no places travel.

    32·density bits per element. All ranks draw the same places from seed, step and name, so
    payloads add up and AllReduce carries them. An element is drawn with probability 1 over the
    length of its run, as if places were drawn anywhere, but memory is read in order. scale:
    values are multiplied by that length, so that the mean is x; without, use `ef`. Memory per
    thread: k places; k values for 16-bit gradients; 16 bytes times k with scale.
    Source: Stich et al. 2018, definition 2.1 (raw); Wangni et al. 2018 (scaled); stratified here.
    """

    density: float
    scale: bool = False
    name: ClassVar[str] = "randk"
    examples: ClassVar[tuple[str, ...]] = ("randk(0.01)+ef",)
    varies: ClassVar[Mapping[str, Sequence[float]]] = {"density": DENSITIES}

    def __post_init__(self) -> None:
        check_density(self.name, self.density)
        if not isinstance(self.scale, bool):
            raise StrategyError(
                f"randk's scale must be True or False; got {self.scale!r}. Use for example "
                "randk(0.01, scale=True)."
            )

    def k(self, n: int) -> int:
        """Returns how many of n elements are sent: at least one, unless there is none."""
        return count_of(self.density, n)

    def claims(self, n: int, dtype: str = "float32") -> Claims:
        kernels.check_index_range(n)
        k = self.k(n)
        return Claims(
            (("float32", k),), elements=k, sums=True, unbiased=self.scale,
            contraction=None if self.scale else 0.0, wants_feedback=not self.scale,
        )  # fmt: skip

    def encode(self, x: Tensor, sections: Sections, key: Key, status: Tensor) -> None:
        (values,) = sections
        n, places = x.numel(), self._places(x.numel(), values, key)
        k, whole = values.numel(), x.dtype == values.dtype
        taken = values if whole else kernels.scratch("randk taken", k, x.dtype, x.device)
        torch.index_select(x.detach(), 0, places, out=taken)
        if not whole:
            kernels.cast(taken, values)
        if self.scale and n:
            begin = kernels.scratch("randk begin", k + 1, torch.int64, x.device)
            size = kernels.scratch("randk size", k, torch.int64, x.device)
            torch.arange(k + 1, out=begin).mul_(n).floor_divide_(k)
            values.mul_(torch.sub(begin[1:], begin[:-1], out=size))
            kernels.cast(values, values, status)  # raises the status if scaling overflowed
        kernels.flag_non_finite(x, status)

    def decode(self, sections: Sections, x: Tensor, key: Key | None = None) -> None:
        self.accumulate([sections], x, 1.0, key)

    def add(self, sections: Sections, v: Tensor, factor: float, key: Key | None = None) -> None:
        (values,) = sections
        kernels.add(v, self._places(v.numel(), values, key), values, factor, are_own=True)

    def accumulate(
        self, payloads: Sequence[Sections], x: Tensor, divisor: float, key: Key | None = None
    ) -> None:
        values = [payload[0] for payload in payloads]
        places = self._places(x.numel(), values[0], key)
        kernels.accumulate(x, [places] * len(values), values, divisor, are_own=True)

    def places(self, sections: Sections, n: int, key: Key) -> Tensor:
        return self._places(n, sections[0], key)

    def _places(self, n: int, values: Tensor, key: Key | None) -> Tensor:
        """Returns the places, (k,) int32, ascending; valid until the thread's next call."""
        if key is None:
            raise UsageError(
                "decoding randk needs the key it was encoded with, which determines the indices; "
                "got none. Pass the key that encode got."
            )
        places = kernels.scratch("randk", values.numel(), torch.int32, values.device)
        kernels.strata(noise_of(key._replace(rank=0)), n, places)
        return places

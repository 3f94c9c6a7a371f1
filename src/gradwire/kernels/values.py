"""What faces and rooms tell each other: plain values, without the work that makes them."""

import hashlib
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from torch import Tensor

_GOLDEN = 0x9E3779B9  # 2^32 over the golden ratio


class Noise(NamedTuple):
    """Two keys, and what is added to every number modulo 2^32."""

    first: int
    second: int
    shift: int = 0

    @staticmethod
    def of(name: str, rank: int = 0) -> "Noise":
        """The numbers that belong to a name, as one rank draws them.

        Ranks share them up to a rotation by the golden ratio: each rank's are uniform, and two
        ranks that round the same value tend to round it in opposite directions, so the error of
        the mean is smaller than that of independent numbers (Suresh et al. 2022, "Correlated
        Quantization for Distributed Mean Estimation").
        """
        words = hashlib.blake2b(name.encode(), digest_size=8).digest()
        first, second = (int.from_bytes(words[i : i + 4], "little") for i in (0, 4))
        return Noise(first, second, rank * _GOLDEN % 2**32)


NON_FINITE = 1
"""The bit of the status word that says that something is not finite."""
DAMAGED = 2
"""The bit that says that something which arrived cannot be used."""

SILENCE = Noise(0, 0)
"""For what throws no dice."""


@dataclass(slots=True)
class Words:
    """So many elements of a tensor, from the first on: a view that need not be made, for many."""

    every: Tensor
    first: int
    length: int

    def view(self) -> Tensor:
        """They alone."""
        return self.every[self.first : self.first + self.length]


Hint: TypeAlias = float | Tensor | Words
"""The magnitude that candidates of the next selection reach, as a room gives it back: a number, or
words on its device; 0: unknown."""


def number_of(hint: Hint) -> float:
    """It as a number, whichever room gave it."""
    if isinstance(hint, Words):
        hint = hint.view()
    return float(hint.max()) if isinstance(hint, Tensor) else float(hint)


class Reaching(NamedTuple):
    """places: (k,) int32, ascending; values: (k,) fp32. Until the thread's next call."""

    places: Tensor
    values: Tensor


class AdamStep(NamedTuple):
    """The numbers of a step, as they are multiplied with."""

    scale: float
    beta1: float
    rest1: float
    beta2: float
    rest2: float
    root: float
    eps: float
    factor: float

    @staticmethod
    def of(
        steps: int, beta1: float, beta2: float, eps: float, *, factor: float = 1.0,
        scale: float = 1.0,
    ) -> "AdamStep":  # fmt: skip
        """Of the so many-th step, from 1. factor: of the noise. scale: what the gradient is
        multiplied by first."""
        root, by = (1 - beta2**steps) ** -0.5, factor / (1 - beta1**steps)
        return AdamStep(scale, beta1, 1 - beta1, beta2, 1 - beta2, root, eps, by)


Moments: TypeAlias = tuple[Tensor, Tensor]
"""Adam's two, (n,) fp32 each."""

Payload: TypeAlias = tuple[Tensor, Tensor]
"""Codes or bits, and the scales or values that they are read with."""


class Partition(NamedTuple):
    """counts: by owner. serial: entries for which every try found a taken slot. growths: how often
    an owner's table was doubled."""

    counts: list[int]
    serial: int
    growths: int

"""The values that faces and rooms exchange, without the code that computes them."""

import hashlib
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from torch import Tensor

_GOLDEN = 0x9E3779B9  # 2^32 over the golden ratio


class Noise(NamedTuple):
    """The key of a sequence of random numbers: two words, and a shift that is added to every
    number modulo 2^32."""

    first: int
    second: int
    shift: int = 0

    @staticmethod
    def of(name: str, rank: int = 0) -> "Noise":
        """Returns the key of a name's random numbers, as one rank draws them.

        Ranks share them up to a rotation by the golden ratio: each rank's are uniform, and two
        ranks that round the same value tend to round it in opposite directions, so the error of
        the mean is smaller than that of independent numbers (Suresh et al. 2022, "Correlated
        Quantization for Distributed Mean Estimation").
        """
        words = hashlib.blake2b(name.encode(), digest_size=8).digest()
        first, second = (int.from_bytes(words[i : i + 4], "little") for i in (0, 4))
        return Noise(first, second, rank * _GOLDEN % 2**32)


NON_FINITE = 1
"""The bit of the status word for a number that is not finite."""
DAMAGED = 2
"""The bit of the status word for a received payload that cannot be used."""

SILENCE = Noise(0, 0)
"""The key of encodings that draw no random numbers."""


@dataclass(slots=True)
class Words:
    """A slice of a tensor, `length` elements from `first` on, as a view that is made only when
    needed: a step has many of them."""

    every: Tensor
    first: int
    length: int

    def view(self) -> Tensor:
        """Returns the slice as a tensor."""
        return self.every[self.first : self.first + self.length]


Hint: TypeAlias = float | Tensor | Words
"""The magnitude that candidates of the next selection must reach, as a room returns it: a number,
or elements on its device; 0: unknown."""


def number_of(hint: Hint) -> float:
    """Returns the hint of any room as a number."""
    if isinstance(hint, Words):
        hint = hint.view()
    return float(hint.max()) if isinstance(hint, Tensor) else float(hint)


class Reaching(NamedTuple):
    """The elements found. places: (k,) int32, ascending; values: (k,) fp32; valid until this
    thread's next call."""

    places: Tensor
    values: Tensor


class AdamStep(NamedTuple):
    """The factors of one Adam step. rest1, rest2: 1 - beta1, 1 - beta2. root, factor: with the
    corrections of bias."""

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
        """Returns the factors of step number `steps`, from 1. factor: the noise factor. scale: the
        gradient is multiplied by it first."""
        root, by = (1 - beta2**steps) ** -0.5, factor / (1 - beta1**steps)
        return AdamStep(scale, beta1, 1 - beta1, beta2, 1 - beta2, root, eps, by)


Moments: TypeAlias = tuple[Tensor, Tensor]
"""Adam's first and second moment, (n,) fp32 each."""

Payload: TypeAlias = tuple[Tensor, Tensor]
"""Codes or bits, and the scales or values that decode them."""


class Partition(NamedTuple):
    """A split. counts: of each owner. serial: entries for which every try found a taken slot.
    growths: how often an owner's table was doubled."""

    counts: list[int]
    serial: int
    growths: int

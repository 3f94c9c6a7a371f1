"""qsgd: random rounding to levels, unbiased; one scale per block of 512."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from gradwire.compressors._codec import Codec
from gradwire.errors import StrategyError
from gradwire.kernels.formats import LEVELS2, LEVELS4, LEVELS8, Format
from gradwire.strategy import Claims, Evidence, Member

_FORMATS = {2: LEVELS2, 4: LEVELS4, 8: LEVELS8}


@dataclass(frozen=True)
class QSGD(Codec):
    """Rounds at random to the next lower or higher level: `bits` + 1/16 bits per element.

    The mean is x. 2^(bits-1) - 1 levels up to the block's largest magnitude: closer together than
    with the 2-norm. Blocks whose largest magnitude is below 2^-96 are sent as zeros.
    Source: Alistarh et al. 2017, section 3.1, with the infinity norm of their section 5.
    """

    bits: int = 4
    name: ClassVar[str] = "qsgd"
    goal: ClassVar[float] = 2.5  # for random numbers
    varies: ClassVar[Mapping[str, Sequence[float]]] = {"bits": (2, 4, 8)}
    examples: ClassVar[tuple[str, ...]] = ("qsgd(2)", "qsgd(4)", "qsgd(8)")
    evidence: ClassVar[tuple[Evidence, ...]] = (
        Evidence("qsgd(4) | allgather", "sgd", True, "language", "qsgd"),
        Evidence("qsgd(4) | allgather", "sgdm", True, "glyphs", "qsgd"),
        Evidence("qsgd(4) | alltoall", "sgdm", True, "speech", "qsgd-alltoall"),
        Evidence("qsgd(4) | alltoall", "sgdm", True, "digits", "qsgd-alltoall"),
        Evidence("qsgd(4) | alltoall", "sgdm", True, "glyphs", "qsgd-alltoall"),
        Evidence("qsgd(4) | alltoall", "adamw", True, "gpt", "qsgd-alltoall"),
        Evidence("qsgd(4) | alltoall", "muon", False, "gpt-muon", "qsgd-alltoall"),
    )

    def __post_init__(self) -> None:
        if type(self.bits) is not int or self.bits not in _FORMATS:
            raise StrategyError(
                f"qsgd's bits must be 2, 4 or 8, for each element; got {self.bits!r}. Use for "
                "example qsgd(4)."
            )

    def is_as_fine_as(self, other: Member) -> bool:
        return isinstance(other, QSGD) and self.bits >= other.bits

    def format(self) -> Format:
        return _FORMATS[self.bits]

    def claims(self, n: int, dtype: str = "float32") -> Claims:
        return Claims(self.sections(n), unbiased=True)

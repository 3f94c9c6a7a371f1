"""mx: floats of 4, 6 or 8 bits; 32 neighbours share a power of two."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from gradwire.compressors._codec import Codec
from gradwire.errors import StrategyError
from gradwire.kernels.formats import E2M1X, E2M3X, E3M2X, E4M3X, Format
from gradwire.strategy import Claims, Member

_FORMATS = {
    "e2m1": (E2M1X, 0.89), "e3m2": (E3M2X, 0.984), "e2m3": (E2M3X, 0.989),
    "e4m3": (E4M3X, 0.984),
}  # fmt: skip
"""Each format, and the fraction of |x|² that it keeps at worst: if an element just below a power
of two is cut to the largest number, or if 31 others are half of the least one."""


@dataclass(frozen=True)
class Microscaling(Codec):
    """OCP Microscaling: MXFP4 ("e2m1"), MXFP6 ("e3m2", "e2m3") or MXFP8 ("e4m3").

    Rounds to nearest even; the shared scale takes a byte: 4.25, 6.25, 8.25 bits per element. It
    is the power of two under the largest magnitude, so that up to an eighth of that magnitude (a
    quarter for e2m1) is cut. If it is below 2^-96, zeros are sent. Four bits want a feedback.
    Source: OCP Microscaling Formats (MX) Specification v1.0 (2023), sections 5 and 6.3; Rouhani et
    al. 2023, "Microscaling Data Formats for Deep Learning", algorithm 1.
    """

    variant: str = "e2m1"
    name: ClassVar[str] = "mx"
    goal: ClassVar[float] = 2.5
    examples: ClassVar[tuple[str, ...]] = (
        "mx+ef", 'mx(variant="e3m2")', 'mx(variant="e2m3")', 'mx(variant="e4m3")'
    )  # fmt: skip

    def __post_init__(self) -> None:
        if not isinstance(self.variant, str) or self.variant not in _FORMATS:
            raise StrategyError(
                f"mx's variant must be one of {', '.join(_FORMATS)}; got {self.variant!r}. Use "
                'for example mx(variant="e2m3").'
            )

    def is_as_fine_as(self, other: Member) -> bool:
        """Whether its mantissa is at least as long, and its range at least as wide."""
        if not isinstance(other, Microscaling):
            return False
        own, theirs = self.variant, other.variant
        return own[1] >= theirs[1] and own[3] >= theirs[3]

    def format(self) -> Format:
        return _FORMATS[self.variant][0]

    def claims(self, n: int, dtype: str = "float32") -> Claims:
        form, kept = _FORMATS[self.variant]
        return Claims(self.sections(n), contraction=kept, wants_feedback=form.bits == 4)

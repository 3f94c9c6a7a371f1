"""Places and values of a sparse payload: how they are written, and how they are read."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from gradwire import kernels
from gradwire.errors import StrategyError
from gradwire.strategy import Sections

VALUES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}


@dataclass(frozen=True)
class Entries:
    """k entries of a parameter of n elements: a section of places, a section of values."""

    n: int
    k: int
    values: str = "fp32"
    index: str = "auto"

    @staticmethod
    def check(owner: str, values: object, index: object) -> None:
        """Raise StrategyError unless these are known formats of values and places."""
        for what, given, known in (
            ("values", values, tuple(VALUES)),
            ("index", index, ("auto", *kernels.INDEX_CODES)),
        ):
            if given not in known:
                raise StrategyError(
                    f"{owner}'s {what} must be one of {', '.join(known)}; got {given!r}. Use for "
                    f'example {owner}(0.01, {what}="{known[-1]}").'
                )

    @property
    def code(self) -> str:
        """The code of the places: the smallest, unless one was requested."""
        return kernels.smallest(self.n, self.k) if self.index == "auto" else self.index

    @property
    def sections(self) -> tuple[tuple[str, int], ...]:
        """The sections in the form of `Claims`. Places are int32, or bytes if they are coded."""
        kernels.check_index_range(self.n)
        values = VALUES[self.values], self.k
        if self.code == "int32":
            return ("int32", self.k), values
        return ("uint8", kernels.code_bytes(self.code, self.n, self.k)), values

    def segment(
        self, sections: Sections, places: Tensor, values: Tensor, sent: Tensor | None = None,
        residual: Tensor | None = None,
    ) -> kernels.WriteEntries:  # fmt: skip
        """Returns the kernel segment that writes entries. places: (k,) int32, ascending. values:
        (k,) fp32, finite, in their format's range. sent, residual: see `kernels.WriteEntries`."""
        return kernels.WriteEntries(
            places, values, self.n, self.code, sections[0], sections[1], sent, residual
        )

    def write(self, sections: Sections, places: Tensor, values: Tensor) -> None:
        """Write one `segment` by itself."""
        kernels.write_entries([self.segment(sections, places, values)])

    def places(self, payload: int, section: Tensor) -> Tensor:
        """Returns the places of one payload, (k,) int32; a PayloadError names the payload."""
        if self.code == "int32":
            return section
        return kernels.decoded_places(payload, section, self.n, self.code, self.k)

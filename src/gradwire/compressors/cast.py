"""none, fp16, bf16: every element is sent, in its own or a shorter float format.

A cast adds up on the wire, so AllReduce may carry it. The sum of fp16 can overflow to infinity,
which every rank then sees.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from gradwire import kernels
from gradwire.compressors._added_up import AddedUp
from gradwire.local import Own, stands_for
from gradwire.strategy import (
    Claims,
    Encoder,
    Evidence,
    Key,
    Recurrence,
    Sections,
    State,
    StepInfo,
)


class Cast(AddedUp):
    """Sends x rounded to nearest even in the wire's format."""

    goal: ClassVar[float] = 1.5

    def encode(self, x: Tensor, sections: Sections, key: Key, status: Tensor) -> None:
        kernels.cast(x, sections[0], status)

    def decode(self, sections: Sections, x: Tensor, key: Key | None = None) -> None:
        kernels.cast(sections[0], x)

    def add(self, sections: Sections, v: Tensor, factor: float, key: Key | None = None) -> None:
        kernels.add_cast(v, sections[0], factor)

    def segment(self, payloads: Sequence[Sections], x: Tensor, divisor: float) -> kernels.SumDense:
        return kernels.SumDense(x, [values for (values,) in payloads], divisor)

    def casts(self) -> bool:
        return all(stands_for(type(self), "casts", one) for one in ("encode", "fuse"))

    def fuse(self, recurrence: Recurrence | None) -> Encoder | None:
        return _AsItIs() if recurrence is None and self.casts() else None


class _AsItIs(Encoder):
    """Casts gradients without feedback, of many parameters in one call."""

    def encode(
        self, x: Tensor, state: State, sections: Sections, info: StepInfo, key: Key, status: Tensor
    ) -> None:
        kernels.together([self.work(Own(x, state, info, key), sections, status)], status)

    def work(self, own: Own, sections: Sections, status: Tensor) -> kernels.Work:
        x, scale = own.gradient, own.info.clip_scale
        if scale != 1.0:
            x = x.to(torch.promote_types(x.dtype, torch.float32)) * scale
        yield [kernels.CastInto(x, sections[0])]

    def undo(self, x: Tensor, state: State, sections: Sections, info: StepInfo) -> None:
        pass

    def give_back(self, state: State, sections: Sections) -> None:
        pass


@dataclass(frozen=True)
class Identity(Cast):
    """The gradient in its own dtype: lossless."""

    name: ClassVar[str] = "none"

    def claims(self, n: int, dtype: str = "float32") -> Claims:
        return Claims(((dtype, n),), sums=True, lossless=True, contraction=1.0)


@dataclass(frozen=True)
class Float16(Cast):
    """2 bytes per element; 11 bits of precision, range 6e-8 to 65504."""

    name: ClassVar[str] = "fp16"
    evidence: ClassVar[tuple[Evidence, ...]] = (
        Evidence("fp16 | allreduce", "adamw", True, "gpt", "fp16"),
    )

    def claims(self, n: int, dtype: str = "float32") -> Claims:
        lossless = dtype == "float16"
        return Claims((("float16", n),), sums=True, lossless=lossless, contraction=0.0)


@dataclass(frozen=True)
class BFloat16(Cast):
    """2 bytes per element; 8 bits of precision, the range of fp32."""

    name: ClassVar[str] = "bf16"

    def claims(self, n: int, dtype: str = "float32") -> Claims:
        lossless = dtype == "bfloat16"
        return Claims((("bfloat16", n),), sums=True, lossless=lossless, contraction=1 - 2.0**-16)

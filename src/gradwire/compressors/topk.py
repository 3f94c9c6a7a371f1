"""topk: the k elements of largest magnitude, with their places.

Selection is exact; ties go to the lower index. One pass over memory in the steady state, fused
with error feedback or DGC's momentum correction (`kernels.update_topk`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from torch import Tensor

from gradwire import kernels
from gradwire.errors import StrategyError
from gradwire.strategy import (
    Claims,
    Compressor,
    Encoder,
    Key,
    Recurrence,
    Sections,
    State,
    StepInfo,
)


@dataclass(frozen=True)
class TopK(Compressor):
    """k = ceil(density·n) of each parameter's n elements: 4 bytes of index, 4 of value each.

    Source: Aji and Heafield 2017, "Sparse Communication for Distributed Gradient Descent".
    """

    density: float
    name: ClassVar[str] = "topk"

    def __post_init__(self) -> None:
        if not isinstance(self.density, int | float) or not 0 < self.density <= 1:
            raise StrategyError(
                f"topk's density is the fraction of elements sent, above 0 and at most 1; got "
                f"{self.density!r}. Use for example topk(0.01)."
            )

    def k(self, n: int) -> int:
        """How many of n elements are sent: at least one, unless there is none."""
        return min(n, math.ceil(self.density * n))

    def claims(self, n: int, dtype: str = "float32") -> Claims:
        k = self.k(n)
        share = k / n if n else 1.0
        sections = ("int32", k), ("float32", k)
        return Claims(sections, elements=k, contraction=share, wants_feedback=True)

    def encode(self, x: Tensor, sections: Sections, key: Key) -> bool:
        indices, values = sections
        return kernels.topk(x, indices.numel(), indices, values).finite

    def decode(self, sections: Sections, x: Tensor) -> None:
        self.accumulate([sections], x, 1.0)

    def accumulate(self, payloads: Sequence[Sections], x: Tensor, divisor: float) -> None:
        indices, values = [p[0] for p in payloads], [p[1] for p in payloads]
        kernels.accumulate(x, indices, values, divisor)

    def add(self, sections: Sections, v: Tensor, factor: float) -> None:
        indices, values = sections
        kernels.add(v, indices, values, factor)

    def fuse(self, recurrence: Recurrence | None) -> Encoder | None:
        if recurrence is None:
            return _Select()
        return _UpdateAndSelect(recurrence) if recurrence.sent == "leaves" else None


@dataclass
class _Select(Encoder):
    """Selection without memory; keeps the last threshold, which only saves time."""

    hint: float = 0.0

    def encode(
        self, x: Tensor, state: State, sections: Sections, info: StepInfo, key: Key
    ) -> bool:
        indices, values = sections
        selected = kernels.topk(x, indices.numel(), indices, values, hint=self.hint)
        if info.clip_scale != 1.0:
            values.mul_(info.clip_scale)
        self.hint = selected.hint
        return selected.finite

    def undo(self, x: Tensor, state: State, sections: Sections, info: StepInfo) -> None:
        pass

    def give_back(self, state: State, sections: Sections) -> None:
        pass


@dataclass
class _UpdateAndSelect(Encoder):
    """u, v and the selection in one pass; u and v in fp32, in place."""

    recurrence: Recurrence
    hint: float = 0.0
    hint_of: Tensor | None = field(default=None, repr=False)  # the residual it is about
    earlier_hint: float = 0.0  # of before this step
    fresh: bool = False  # this step made the state
    journal: kernels.Journal = field(default_factory=kernels.Journal, repr=False)
    sent_velocity: Tensor | None = field(default=None, repr=False)

    def encode(
        self, x: Tensor, state: State, sections: Sections, info: StepInfo, key: Key
    ) -> bool:
        indices, values = sections
        self.fresh = "residual" not in state and "velocity" not in state
        self._prepare(x, state, indices.numel())
        if state["residual"] is not self.hint_of:  # new, or of another run
            self.hint, self.hint_of = 0.0, state["residual"]
        self.earlier_hint = self.hint
        rule = self.recurrence
        selected = kernels.update_topk(
            x, state.get("velocity"), state["residual"], indices.numel(), indices, values,
            self.sent_velocity, momentum=rule.momentum, nesterov=rule.nesterov, mask=rule.mask,
            scale=info.clip_scale * rule.gain, decay=rule.decay, hint=self.hint, journal=None if self.fresh else self.journal,
        )  # fmt: skip
        self.hint = selected.hint
        return selected.finite

    def _prepare(self, x: Tensor, state: State, k: int) -> None:
        if "residual" not in state:
            state["residual"] = kernels.zeros(x.numel(), x.device)
        if self.recurrence.momentum is not None:
            if "velocity" not in state:
                state["velocity"] = kernels.zeros(x.numel(), x.device)
            if self.sent_velocity is None:
                self.sent_velocity = kernels.zeros(k, x.device)

    def undo(self, x: Tensor, state: State, sections: Sections, info: StepInfo) -> None:
        self.hint = self.earlier_hint
        if self.fresh:  # there was none
            for name in ("residual", "velocity"):
                state.pop(name, None)
            self.hint_of = None
            return
        rule, (indices, values) = self.recurrence, sections
        kernels.undo_topk(
            x, state.get("velocity"), state["residual"], indices, values, self.sent_velocity,
            momentum=rule.momentum, nesterov=rule.nesterov, mask=rule.mask,
            scale=info.clip_scale * rule.gain, decay=rule.decay, journal=self.journal,
        )  # fmt: skip

    def give_back(self, state: State, sections: Sections) -> None:
        indices, values = sections
        kernels.restore_topk(
            state.get("velocity"), state["residual"], indices, values, self.sent_velocity,
            mask=self.recurrence.mask,
        )  # fmt: skip

    def release(self) -> None:
        self.journal.clear()

"""topk: the k elements of largest magnitude, with their places.

Selection is exact; ties go to the lower index. One pass over memory in the steady state, fused
with error feedback or DGC's momentum correction (`kernels.update_topk`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import ClassVar

import torch
from torch import Tensor

from gradwire import kernels
from gradwire.compressors._added_up import AddedUp
from gradwire.compressors._density import DENSITIES, check_density, count_of
from gradwire.compressors._entries import Entries
from gradwire.kernels.values import Hint
from gradwire.local import Own
from gradwire.strategy import (
    Claims,
    Encoder,
    Key,
    Member,
    Recurrence,
    Sections,
    State,
    StepInfo,
)


@dataclass(frozen=True)
class TopK(AddedUp):
    """Sends the k = ceil(density·n) largest of each parameter's n elements.

    values: "fp32", or "bf16" or "fp16", whose rounding error stays in the residual.
    index: how the places are coded, without loss and in a size that n and k alone decide: "auto"
    (the smallest), "int32", "gap16", "gap8", "elias_fano" (about 2 + log2(n/k) bits) or "bitmap".
    Messages between owners and partners use the smallest code too; with "int32", that one.
    Memory per parameter: k places and k values, k values more if they are rounded, and k
    velocities with `dgc`. Momentum factor masking clears the velocity at all selected places, also
    if the value rounds to zero in 16 bits.
    Source: Aji and Heafield 2017, "Sparse Communication for Distributed Gradient Descent".
    """

    density: float
    values: str = "fp32"
    index: str = "auto"
    name: ClassVar[str] = "topk"
    goal: ClassVar[float] = 1.5
    varies: ClassVar[Mapping[str, Sequence[float]]] = {"density": DENSITIES}
    examples: ClassVar[tuple[str, ...]] = (
        "topk(0.001)", "topk(0.001)+ef", "topk(0.01)+ef", "dgc(0.001)",
        'dgc(0.001, values="bf16")',
    )  # fmt: skip

    def __post_init__(self) -> None:
        check_density(self.name, self.density)
        Entries.check(self.name, self.values, self.index)

    def is_as_fine_as(self, other: Member) -> bool:
        return isinstance(other, TopK) and self.density >= other.density

    def k(self, n: int) -> int:
        """Returns how many of n elements are sent: at least one, unless there is none."""
        return count_of(self.density, n)

    def entries(self, n: int) -> Entries:
        """Returns the format of the places and values of n elements."""
        return _entries_of(n, self.k(n), self.values, self.index)

    def claims(self, n: int, dtype: str = "float32") -> Claims:
        k = self.k(n)
        share = k / n if n else 1.0
        if self.values != "fp32":  # below fp16's range everything is rounded to zero
            share *= 0.99 if self.values == "bf16" else 0.0
        sections = self.entries(n).sections
        return Claims(
            sections, elements=k, contraction=share, wants_feedback=True, entries=True,
            listed=self.index == "int32",
        )  # fmt: skip

    def encode(self, x: Tensor, sections: Sections, key: Key, status: Tensor) -> None:
        entries = self.entries(x.numel())
        places = kernels.scratch("topk", entries.k, torch.int32, x.device)
        values = kernels.scratch("topk", entries.k, torch.float32, x.device)
        kernels.topk(x, entries.k, places, values, status)
        entries.write(sections, places, values)

    def add(self, sections: Sections, v: Tensor, factor: float, key: Key | None = None) -> None:
        places, values = sections
        kernels.add_coded(v, places, self.entries(v.numel()).code, values, factor)

    def segment(self, payloads: Sequence[Sections], x: Tensor, divisor: float) -> kernels.SumCoded:
        codes = [self.entries(x.numel()).code] * len(payloads)
        places, values = [p[0] for p in payloads], [p[1] for p in payloads]
        return kernels.SumCoded(x, codes, places, values, divisor)

    def read(self, sections: Sections, n: int) -> tuple[Tensor, Tensor]:
        return self.entries(n).places(0, sections[0]), sections[1]

    def fuse(self, recurrence: Recurrence | None) -> Encoder | None:
        if recurrence is None:
            return _Select(self)
        return _UpdateAndSelect(self, recurrence) if recurrence.sent == "leaves" else None


@lru_cache(1 << 14)  # called for each payload, with the same arguments in every step
def _entries_of(n: int, k: int, values: str, index: str) -> Entries:
    return Entries(n, k, values, index)


@dataclass
class _Select(Encoder):
    """Selects without feedback; keeps the last threshold, which only saves time."""

    compressor: TopK
    hint: Hint = 0.0
    taken: _Taken | None = field(default=None, repr=False)

    def encode(
        self, x: Tensor, state: State, sections: Sections, info: StepInfo, key: Key, status: Tensor
    ) -> None:
        if self.taken is None:
            self.taken = _Taken(self.compressor.entries(x.numel()), x.device)
        places, values = self.taken.places, self.taken.values
        self.hint = kernels.topk(x, places.numel(), places, values, status, self.hint)
        if info.clip_scale != 1.0:
            values.mul_(info.clip_scale)
            kernels.flag_non_finite(values, status)
        kernels.write_entries([self.taken.segment(sections)])

    def undo(self, x: Tensor, state: State, sections: Sections, info: StepInfo) -> None:
        pass

    def give_back(self, state: State, sections: Sections) -> None:
        pass


@dataclass
class _UpdateAndSelect(Encoder):
    """Updates u and v and selects in one pass; u and v are fp32, in place."""

    compressor: TopK
    recurrence: Recurrence
    hint: Hint = 0.0
    hint_of: Tensor | None = field(default=None, repr=False)  # the residual of the hint
    earlier_hint: Hint = 0.0  # the hint before this step
    fresh: bool = False  # this step made the state
    journal: kernels.Journal = field(default_factory=kernels.Journal, repr=False)
    taken: _Taken | None = field(default=None, repr=False)
    sent_velocity: Tensor | None = field(default=None, repr=False)

    def encode(
        self, x: Tensor, state: State, sections: Sections, info: StepInfo, key: Key, status: Tensor
    ) -> None:
        kernels.together([self.work(Own(x, state, info, key), sections, status)], status)

    def work(self, own: Own, sections: Sections, status: Tensor) -> kernels.Work:
        x, state, info, _ = own
        rule, name = self.recurrence, self.recurrence.state
        self.fresh = not any(kept in state for kept in self._kept)
        taken = self._prepare(x, state)
        residual, k = state[name], taken.places.numel()
        if residual is not self.hint_of:  # a new residual, or that of another run
            self.hint, self.hint_of = 0.0, residual
        self.earlier_hint = self.hint
        segment = kernels.UpdateTopk(  # positional arguments take half the time
            x, self._velocity(state), residual, k, taken.places, taken.values,
            self.sent_velocity, rule.momentum, rule.nesterov, rule.mask,
            info.clip_scale * rule.gain, rule.decay, self.hint,
            None if self.fresh else self.journal,
        )  # fmt: skip
        (self.hint,) = yield [segment]
        yield [taken.segment(sections, residual)]

    def _prepare(self, x: Tensor, state: State) -> _Taken:
        if self.recurrence.state not in state:
            state[self.recurrence.state] = kernels.zeros(x.numel(), x.device)
        if self.taken is None:
            self.taken = _Taken(self.compressor.entries(x.numel()), x.device)
        if self.recurrence.momentum is not None:
            if "velocity" not in state:
                state["velocity"] = kernels.zeros(x.numel(), x.device)
            if self.sent_velocity is None:
                self.sent_velocity = kernels.zeros(self.taken.places.numel(), x.device)
        return self.taken

    @property
    def _kept(self) -> tuple[str, ...]:
        """The names of its state; an owner's has others beside it."""
        rule = self.recurrence
        return (rule.state,) if rule.momentum is None else (rule.state, "velocity")

    def _velocity(self, state: State) -> Tensor | None:
        return None if self.recurrence.momentum is None else state["velocity"]

    def undo(self, x: Tensor, state: State, sections: Sections, info: StepInfo) -> None:
        kernels.undo_many_topk(self.undoing(x, state, sections, info))

    def undoing(
        self, x: Tensor, state: State, sections: Sections, info: StepInfo
    ) -> Sequence[kernels.UndoTopk]:
        self.hint = self.earlier_hint
        if self.fresh or self.taken is None:  # there was no state before
            for name in self._kept:
                state.pop(name, None)
            self.hint_of = None
            return ()
        return [self._undone(x, state, info.clip_scale)]

    def give_back(self, state: State, sections: Sections) -> None:
        kernels.undo_many_topk(self.giving_back(state, sections))

    def giving_back(self, state: State, sections: Sections) -> Sequence[kernels.UndoTopk]:
        return [self._undone(None, state)]

    def _undone(self, x: Tensor | None, state: State, scale: float = 1.0) -> kernels.UndoTopk:
        assert self.taken is not None
        rule = self.recurrence
        return kernels.UndoTopk(
            x, self._velocity(state), state[rule.state], self.taken.places, self.taken.sent,
            self.sent_velocity, rule.momentum, rule.nesterov, rule.mask, scale * rule.gain,
            rule.decay, None if x is None else self.journal,
        )  # fmt: skip

    def release(self) -> None:
        self.journal.clear()


class _Taken:
    """The entries that one step selected, before and after the rounding of their values."""

    def __init__(self, entries: Entries, device: torch.device) -> None:
        self.entries = entries
        self.places = torch.zeros(entries.k, dtype=torch.int32, device=device)
        self.values = torch.zeros(entries.k, dtype=torch.float32, device=device)
        rounds = entries.values != "fp32"
        self.sent = torch.zeros_like(self.values) if rounds else self.values
        self._said: kernels.WriteEntries | None = None

    def segment(self, sections: Sections, residual: Tensor | None = None) -> kernels.WriteEntries:
        """Returns the kernel segment that writes the sections, and puts rounding errors into the
        residual, without loss. The same tensors give the same object, which kernels then know."""
        sent = None if self.sent is self.values else self.sent
        if sent is None:
            residual = None
        said = self._said
        if said is None or said[4] is not sections[0] or said[5] is not sections[1] or (
            said[7] is not residual
        ):  # fmt: skip
            said = self.entries.segment(sections, self.places, self.values, sent, residual)
            self._said = said
        return said

"""Feedback and compressor, composed step by step: the truth that fused kernels are tested by."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from gradwire import kernels
from gradwire.strategy import Compressor, Encoder, Feedback, Key, Sections, State, StepInfo


@dataclass
class ComposedEncoder(Encoder):
    """before, encode, decode, after. State is replaced, never changed in place."""

    compressor: Compressor
    feedback: Feedback | None
    _old: dict[str, Tensor] = field(default_factory=dict)
    _unsent: tuple[Tensor, State] | None = None

    def encode(
        self, x: Tensor, state: State, sections: Sections, info: StepInfo, key: Key
    ) -> bool:
        self._unsent = None
        if not kernels.is_finite(x):
            return False
        if self.feedback is None and info.clip_scale == 1.0:
            self.compressor.encode(x, sections, key)
            return True
        y = x.float() if info.clip_scale == 1.0 else x.float() * info.clip_scale
        if self.feedback is None:
            self.compressor.encode(y, sections, key)
            return True
        return self._with_memory(self.feedback, y, state, sections, info, key)

    def _with_memory(
        self, feedback: Feedback, x: Tensor, state: State, sections: Sections, info: StepInfo,
        key: Key,
    ) -> bool:  # fmt: skip
        y, midway = feedback.before(x, state, info)
        self.compressor.encode(y, sections, key)
        sent = torch.empty_like(y)
        self.compressor.decode(sections, sent)
        if not (kernels.is_finite(y) and kernels.is_finite(sent)):
            return False
        self._old, self._unsent = dict(state), (y, midway)
        _replace(state, feedback.after(y, sent, midway))
        return True

    def undo(self, x: Tensor, state: State, sections: Sections, info: StepInfo) -> None:
        if self._unsent is not None:
            _replace(state, self._old)
        self.release()

    def give_back(self, state: State, sections: Sections) -> None:
        if self._unsent is not None and self.feedback is not None:
            y, midway = self._unsent
            _replace(state, self.feedback.after(y, torch.zeros_like(y), midway))
        self.release()

    def release(self) -> None:
        self._old, self._unsent = {}, None


def make_encoder(compressor: Compressor, feedback: Feedback | None) -> Encoder:
    """The compressor's fused encoder for this feedback if it has one, else the composition."""
    recurrence = feedback.recurrence() if feedback else None
    if feedback is None or recurrence is not None:
        fused = compressor.fuse(recurrence)
        if fused is not None:
            return fused
    return ComposedEncoder(compressor, feedback)


def _replace(state: State, new: State) -> None:
    kept = dict(new)
    state.clear()
    state.update(kept)

"""Feedback and compressor together: composed step by step (the truth in tests), and in place."""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from gradwire import kernels
from gradwire.local import OF_COLLECTIVE, Added, BlockCodes, KeptParts, Own, stands_for
from gradwire.runtime.sums import decode_own
from gradwire.strategy import (
    Compressor,
    Encoder,
    Feedback,
    Key,
    Recurrence,
    Sections,
    State,
    StepInfo,
)


@dataclass
class ComposedEncoder(Encoder):
    """Runs `before`, `encode`, `decode`, `after`. State is replaced, never changed in place."""

    compressor: Compressor
    feedback: Feedback | None
    _old: dict[str, Tensor] = field(default_factory=dict)
    _unsent: tuple[Tensor, State] | None = None

    def encode(
        self, x: Tensor, state: State, sections: Sections, info: StepInfo, key: Key, status: Tensor
    ) -> None:
        kernels.together([self.work(Own(x, state, info, key), sections, status)], status)

    def work(self, own: Own, sections: Sections, status: Tensor) -> kernels.Work:
        x, _, info, key = own
        self._unsent = None
        y = x
        if info.clip_scale != 1.0:
            y = x.to(torch.promote_types(x.dtype, torch.float32)) * info.clip_scale
        if self.feedback is not None:
            yield from self._with_memory(self.feedback, y.float(), own, sections, status)
        elif blocks := self.compressor.blocks(sections, key):
            yield [
                kernels.EncodeCodes(form, _part(y, at), codes, scales, noise, clip)
                for form, codes, scales, noise, at, clip in blocks
            ]
        else:
            yield from _encoding(self.compressor, y, sections, key, status)

    def _with_memory(
        self, feedback: Feedback, x: Tensor, own: Own, sections: Sections, status: Tensor
    ) -> kernels.Work:
        gradient, state, info, key = own
        # Only finite numbers enter, so that the payload can be decoded, and the state undone. And
        # none that lie in the gradient's memory, where the average is written: a feedback may keep
        # what it was given, and `give_back` reads what it encoded.
        given = kernels.finite_part(x, status)
        given = given.clone() if given.data_ptr() == gradient.data_ptr() else given
        y, midway = feedback.before(given, state, info)
        y = kernels.finite_part(y, status)
        yield from _encoding(self.compressor, y, sections, key, status)
        sent = torch.empty_like(y)
        decode_own(self.compressor, sections, sent, key, status)
        self._old, self._unsent = dict(state), (y, midway)
        places = self.compressor.places
        after = feedback.after(y, sent, midway)
        _replace(state, feedback.masked(after, lambda: places(sections, y.numel(), key)))

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


@dataclass
class InPlaceEncoder(Encoder):
    """A recurrence around any compressor, in the state's own memory.

    It equals the composition bit for bit. undo inverts the recurrence: up to rounding, and exactly
    where the journal kept the old state, which is where gradients are large against the state.
    """

    compressor: Compressor
    recurrence: Recurrence
    # One for the whole, or one for each part that is coded by itself.
    _journals: list[kernels.Journal] = field(
        default_factory=lambda: [kernels.Journal()], repr=False
    )
    _places: list[slice | None] = field(default_factory=lambda: [None])
    _parts: KeptParts = field(default_factory=KeptParts, repr=False)
    _hint: float = 0.0
    _earlier_hint: float = 0.0  # the hint before this step
    _steps: int = 0
    _fresh: bool = False  # this step made v
    _made: list[str] = field(default_factory=list)  # names of the state that this step made
    _key: Key | None = None

    def __post_init__(self) -> None:
        rule = self.recurrence
        self._wanted = [rule.state] if rule.momentum is None else [rule.state, "velocity"]

    def encode(
        self, x: Tensor, state: State, sections: Sections, info: StepInfo, key: Key, status: Tensor
    ) -> None:
        kernels.together([self.work(Own(x, state, info, key), sections, status)], status)

    def work(self, own: Own, sections: Sections, status: Tensor) -> kernels.Work:
        x, state, info, key = own
        rule = self.recurrence
        self._fresh, self._key = rule.state not in state, key
        self._made = [name for name in self._wanted if name not in state]
        for name in self._made:
            state[name] = kernels.zeros(x.numel(), x.device)
        x, info = self._clipped(x, info)
        blocks = self.compressor.blocks(sections, key) if rule.sent == "leaves" else ()
        if blocks:
            yield self._segments(x, state, blocks, info)
        else:
            yield from self._one_by_one(x, state, sections, info, key, status)
        self._look(state[rule.state], x, info)

    def _one_by_one(
        self, x: Tensor, state: State, sections: Sections, info: StepInfo, key: Key, status: Tensor
    ) -> kernels.Work:
        rule, v = self.recurrence, state[self.recurrence.state]
        self._advance(x, state, info, self._journals[0], status)
        # v is finite, so this can be decoded
        add = yield from _encoding(self.compressor, v, sections, key, status)
        if rule.sent != "stays":
            add(v, -1.0)
        if rule.sent == "joins":
            self._advance(x, state, info, None, status)

    def _segments(
        self, x: Tensor, state: State, blocks: Sequence[BlockCodes], info: StepInfo
    ) -> list[kernels.UpdateCodes]:
        self._places = [block.place for block in blocks]
        kept = self._velocity(state), state[self.recurrence.state]
        parts = self._parts.cut(kept, self._places)
        if len(blocks) > len(self._journals):
            self._journals += [kernels.Journal() for _ in blocks[len(self._journals) :]]
        rule, scale = self.recurrence, info.clip_scale * self.recurrence.gain
        return [
            kernels.UpdateCodes(  # positional arguments take half the time
                form, _part(x, at), u, v, codes, scales, noise, rule.momentum, rule.nesterov,
                scale, rule.decay, self._hint, None if self._fresh else journal, clip,
            )
            for (form, codes, scales, noise, at, clip), (u, v), journal
            in zip(blocks, parts, self._journals)
        ]  # fmt: skip

    def undo(self, x: Tensor, state: State, sections: Sections, info: StepInfo) -> None:
        kernels.undo_many_topk(self.undoing(x, state, sections, info))

    def undoing(
        self, x: Tensor, state: State, sections: Sections, info: StepInfo
    ) -> Sequence[kernels.UndoTopk]:
        rule, self._hint = self.recurrence, self._earlier_hint  # this step is no guide
        x, info = self._clipped(x, info)
        if self._fresh:  # there was no state before
            self._forget_made(state)
            return ()
        if rule.sent == "joins":
            kernels.undo_many_topk(self._undone(x, state, info, [None]))
        if rule.sent != "stays":
            self.compressor.add(sections, state[rule.state], 1.0, self._key)
        undone = self._undone(x, state, info, self._journals)
        self._forget_made(state)
        return undone

    def _forget_made(self, state: State) -> None:
        for name in self._made:
            state.pop(name, None)
        self._made, self._parts = [], KeptParts()

    def give_back(self, state: State, sections: Sections) -> None:
        if self.recurrence.sent == "leaves":
            self.compressor.add(sections, state[self.recurrence.state], 1.0, self._key)
        elif self.recurrence.sent == "joins":
            self.compressor.add(sections, state[self.recurrence.state], -1.0, self._key)

    def release(self) -> None:
        for journal in self._journals:
            journal.clear()

    def _clipped(self, x: Tensor, info: StepInfo) -> tuple[Tensor, StepInfo]:
        """Clips x first if there is a gain, too, so that clipping rounds on its own, as in the
        composition."""
        if self.recurrence.gain == 1.0 or info.clip_scale == 1.0:
            return x, info
        return x.float() * info.clip_scale, info._replace(clip_scale=1.0)

    def _look(self, v: Tensor, x: Tensor, info: StepInfo) -> None:
        """Measures now and then how large state and gradients are, for journals to judge by.

        A fine quantizer's residual is far smaller than the gradient. So gradients up to twice
        their usual size are not put aside, and inverting is off by that size times 6e-8.
        """
        self._earlier_hint = self._hint
        if self._hint == 0.0 or self._steps % _STEPS_PER_LOOK == 0:
            usual = 2 * info.clip_scale * self.recurrence.gain * kernels.largest(x)[0]
            if math.isfinite(usual):
                self._hint = max(kernels.largest(v)[0], usual / kernels.JOURNAL_FACTOR)
        self._steps += 1

    def _advance(
        self, x: Tensor, state: State, info: StepInfo, journal: kernels.Journal | None,
        status: Tensor,
    ) -> None:  # fmt: skip
        rule = self.recurrence
        kernels.advance(
            x, self._velocity(state), state[rule.state], status, momentum=rule.momentum,
            nesterov=rule.nesterov, scale=info.clip_scale * rule.gain, decay=rule.decay,
            hint=self._hint, journal=None if self._fresh else journal,
        )  # fmt: skip

    def _undone(
        self, x: Tensor, state: State, info: StepInfo, journals: Sequence[kernels.Journal | None]
    ) -> list[kernels.UndoTopk]:
        u, v, rule = self._velocity(state), state[self.recurrence.state], self.recurrence
        places, nothing = kernels.nothing_taken(v)
        return [
            kernels.UndoTopk(
                _part(x, at), u if u is None else _part(u, at), _part(v, at), places, nothing,
                None if u is None else nothing, rule.momentum, rule.nesterov, False,
                info.clip_scale * rule.gain, rule.decay, journal,
            )
            for at, journal in zip(self._places, journals)
        ]  # fmt: skip

    def _velocity(self, state: State) -> Tensor | None:
        return None if self.recurrence.momentum is None else state["velocity"]


def _encoding(
    compressor: Compressor, x: Tensor, sections: Sections, key: Key, status: Tensor
) -> Generator[Sequence[Any], Sequence[Any], Added]:
    """Does what `Compressor.encoding` does, for any compressor."""
    if stands_for(type(compressor), "encoding", "encode"):
        return (yield from compressor.encoding(x, sections, key, status))
    compressor.encode(x, sections, key, status)
    return lambda v, factor: compressor.add(sections, v, factor, key)


def _part(x: Tensor, place: slice | None) -> Tensor:
    return x if place is None else x[place]


_STEPS_PER_LOOK = 64


def make_encoder(
    compressor: Compressor, feedback: Feedback | None, rule: Recurrence | None = None
) -> Encoder:
    """Returns the compressor's fused encoder for this feedback if it has one, else one in place.

    rule: the feedback as data, if no member stands for it. The composition remains for feedback
    that is not a recurrence, and for momentum factor masking with compressors that have no fused
    encoder for it.
    """
    if feedback is not None and feedback.sends_all:
        feedback = None
    if feedback is not None:
        own = feedback.encoder(compressor)
        if own is not None:
            return own
        rule = feedback.recurrence()
    if feedback is None or rule is not None:
        fused = compressor.fuse(rule)
        if fused is not None:
            return fused
    if rule is not None and not rule.mask:
        return InPlaceEncoder(compressor, rule)
    return ComposedEncoder(compressor, feedback)


def _replace(state: State, new: State) -> None:
    """Replaces the feedback's part of the state; the collective's part stays."""
    kept = {name: v for name, v in new.items() if name not in OF_COLLECTIVE}
    for name in [name for name in state if name not in OF_COLLECTIVE]:
        del state[name]
    state.update(kept)

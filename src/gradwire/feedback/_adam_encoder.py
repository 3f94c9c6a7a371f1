"""Adam's step: as a function, and as an encoder with any compressor, in place; with block codes it
takes one pass."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from gradwire.feedback._measured import StepEncoder, noise_factor
from gradwire.kernels.adam import adam, undo_adam
from gradwire.kernels.segments import AdamCodes
from gradwire.kernels.together import Work, together
from gradwire.kernels.torch.adam import moments_with, moved
from gradwire.kernels.values import AdamStep, Moments
from gradwire.local import NOISE, STEPS, KeptParts, Own
from gradwire.strategy import Key, Sections, State, StepInfo


@dataclass
class AdamEncoder(StepEncoder):
    """Equals the composition of `Adam`'s methods bit for bit. Undo is exact to the rounding of the
    gradient's square, which may be all of a second moment: one stays that fits the first."""

    beta1: float
    beta2: float
    eps: float
    states: ClassVar[tuple[str, ...]] = ("exp_avg", "exp_avg_sq", "residual")
    _how: AdamStep | None = field(default=None, repr=False)
    _parts: KeptParts = field(default_factory=KeptParts, repr=False)

    def encode(
        self, x: Tensor, state: State, sections: Sections, info: StepInfo, key: Key, status: Tensor
    ) -> None:
        together([self.work(Own(x, state, info, key), sections, status)], status)

    def work(self, own: Own, sections: Sections, status: Tensor) -> Work:
        x, state, info, key = own
        self.begin(x, state, key)
        if self._fresh:
            # Kept on the host, which counts.
            state[STEPS] = torch.zeros(1, dtype=torch.float32, device="cpu")
        state[STEPS] += 1
        self._how = how = step_of(self.beta1, self.beta2, self.eps, state, info)
        moments, v = _moments(state), state["residual"]
        blocks = self.compressor.blocks(sections, key)
        if not blocks:
            adam(x, moments, v, how, status)
            self.send(state, sections, key, status)
            return
        parts = self._parts.cut((*moments, v), [block.place for block in blocks])
        yield [
            AdamCodes(form, x if at is None else x[at], (m, q), w, how, codes, scales, noise, clip)
            for (form, codes, scales, noise, at, clip), (m, q, w) in zip(blocks, parts)
        ]

    def undo(self, x: Tensor, state: State, sections: Sections, info: StepInfo) -> None:
        if self._how is None:
            return
        if self._fresh:
            self.forget(state)
            state.pop(STEPS, None)
            self._parts = KeptParts()
        else:
            self.give_back(state, sections)
            m, q = _moments(state)
            undo_adam(x, (m, q), state["residual"], self._how)
            torch.maximum(q, m.square().mul_(least_square(self.beta1, self.beta2)), out=q)
            state[STEPS] -= 1
        self.release()

    def release(self) -> None:
        self._how = None


def least_square(beta1: float, beta2: float) -> float:
    """Returns the least second moment that any gradients can give beside a first moment of 1.

    By Cauchy and Schwarz: (Σ rest1·beta1^k·g)² <= rest1²/rest2 · Σ (beta1²/beta2)^k · second. So
    no step is longer than 7.3, with betas 0.9 and 0.999. 0 where the sum has no limit.
    """
    ratio = beta1**2 / beta2 if beta2 else 1.0
    return (1 - beta2) * (1 - ratio) / (1 - beta1) ** 2 if ratio < 1 else 0.0


def step_of(beta1: float, beta2: float, eps: float, state: State, info: StepInfo) -> AdamStep:
    """Returns the numbers of the step that the state counts."""
    factor, scale = noise_factor(state), info.clip_scale
    return AdamStep.of(int(state[STEPS]), beta1, beta2, eps, factor=factor, scale=scale)


def direction(
    g: Tensor, state: State, beta1: float, beta2: float, eps: float, info: StepInfo
) -> tuple[Tensor, dict[str, Tensor]]:
    """Returns Adam's step without its learning rate, and the moments updated by g. Changes neither
    input. The step has the noise factor, if the state has one.
    """
    zero = torch.zeros_like(g)
    moments = {STEPS: state.get(STEPS, torch.zeros(1, dtype=torch.float32, device="cpu")) + 1}
    counted = {**moments, NOISE: state[NOISE]} if NOISE in state else moments
    how = step_of(beta1, beta2, eps, counted, info._replace(clip_scale=1.0))
    m, q = moments_with(g, (state.get("exp_avg", zero), state.get("exp_avg_sq", zero)), how)
    return moved(m, q, how), {**moments, "exp_avg": m, "exp_avg_sq": q}


def _moments(state: State) -> Moments:
    return state["exp_avg"], state["exp_avg_sq"]

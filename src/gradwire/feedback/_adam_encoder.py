"""adam around any compressor, in the state's own memory; of block codes in one pass."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from gradwire.feedback._measured import noise_factor
from gradwire.feedback._step_encoder import StepEncoder
from gradwire.kernels.adam import adam, adam_codes, undo_adam
from gradwire.kernels.values import AdamStep, Moments
from gradwire.local import STEPS
from gradwire.strategy import Key, Sections, State, StepInfo


@dataclass
class AdamEncoder(StepEncoder):
    """Bit for bit what the composition of `Adam` does; undo is exact to rounding."""

    beta1: float
    beta2: float
    eps: float
    states: ClassVar[tuple[str, ...]] = ("exp_avg", "exp_avg_sq", "residual")
    _how: AdamStep | None = field(default=None, repr=False)

    def encode(
        self, x: Tensor, state: State, sections: Sections, info: StepInfo, key: Key, status: Tensor
    ) -> None:
        self.begin(x, state, key)
        if self._fresh:
            state[STEPS] = torch.zeros(1, device=x.device)
        state[STEPS] += 1
        self._how = step_of(self.beta1, self.beta2, self.eps, state, info)
        moments, v = _moments(state), state["residual"]
        blocks = self.compressor.blocks(sections, key)
        for block in blocks:
            at = block.place or slice(None)
            own = (moments[0][at], moments[1][at])
            adam_codes(
                block.form, x[at], own, v[at], self._how, block.codes, block.scales, block.noise,
                status,
            )  # fmt: skip
        if not blocks:
            adam(x, moments, v, self._how, status)
            self.send(state, sections, key, status)

    def undo(self, x: Tensor, state: State, sections: Sections, info: StepInfo) -> None:
        if self._how is None:
            return
        if self._fresh:
            self.forget(state)
            state.pop(STEPS, None)
        else:
            self.give_back(state, sections)
            undo_adam(x, _moments(state), state["residual"], self._how)
            state[STEPS] -= 1
        self.release()

    def release(self) -> None:
        self._how = None


def step_of(beta1: float, beta2: float, eps: float, state: State, info: StepInfo) -> AdamStep:
    """The numbers of the step that the state counts."""
    factor, scale = noise_factor(state), info.clip_scale
    return AdamStep.of(int(state[STEPS]), beta1, beta2, eps, factor=factor, scale=scale)


def _moments(state: State) -> Moments:
    return state["exp_avg"], state["exp_avg_sq"]

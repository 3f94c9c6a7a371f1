"""adam around any compressor, in the state's own memory; of block codes in one pass."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from gradwire import kernels
from gradwire.feedback._measured import noise_factor
from gradwire.kernels.adam import AdamStep, Moments, adam, adam_codes, undo_adam
from gradwire.local import STEPS, Encoder
from gradwire.strategy import Compressor, Key, Sections, State, StepInfo

_VECTORS = ("exp_avg", "exp_avg_sq", "residual")


@dataclass
class AdamEncoder(Encoder):
    """Bit for bit what the composition of `Adam` does; undo is exact to rounding."""

    compressor: Compressor
    beta1: float
    beta2: float
    eps: float
    _how: AdamStep | None = field(default=None, repr=False)
    _fresh: bool = False  # this step made the state
    _encoded: bool = False
    _key: Key | None = None

    def encode(
        self, x: Tensor, state: State, sections: Sections, info: StepInfo, key: Key
    ) -> bool:
        self._fresh, self._key = STEPS not in state, key
        if self._fresh:
            state[STEPS] = torch.zeros(1, device=x.device)
            for name in _VECTORS:
                state[name] = kernels.zeros(x.numel(), x.device)
        state[STEPS] += 1
        self._how = step_of(self.beta1, self.beta2, self.eps, state, info)
        moments, v = _moments(state), state["residual"]
        blocks, finite = self.compressor.blocks(sections, key), True
        for block in blocks:
            at = block.place or slice(None)
            own = (moments[0][at], moments[1][at])
            finite &= adam_codes(
                block.form, x[at], own, v[at], self._how, block.codes, block.scales, block.noise
            )
        if blocks:
            self._encoded = True
            return finite
        finite = adam(x, moments, v, self._how)
        self._encoded = finite and self.compressor.encode(v, sections, key)
        if self._encoded:
            self.compressor.add(sections, v, -1.0, key)
        return self._encoded

    def undo(self, x: Tensor, state: State, sections: Sections, info: StepInfo) -> None:
        if self._how is None:
            return
        if self._fresh:
            for name in (STEPS, *_VECTORS):
                state.pop(name, None)
        else:
            if self._encoded:
                self.compressor.add(sections, state["residual"], 1.0, self._key)
            undo_adam(x, _moments(state), state["residual"], self._how)
            state[STEPS] -= 1
        self.release()

    def give_back(self, state: State, sections: Sections) -> None:
        if self._encoded:
            self.compressor.add(sections, state["residual"], 1.0, self._key)

    def release(self) -> None:
        self._how, self._encoded = None, False


def step_of(beta1: float, beta2: float, eps: float, state: State, info: StepInfo) -> AdamStep:
    """The numbers of the step that the state counts."""
    factor, scale = noise_factor(state), info.clip_scale
    return AdamStep.of(int(state[STEPS]), beta1, beta2, eps, factor=factor, scale=scale)


def _moments(state: State) -> Moments:
    return state["exp_avg"], state["exp_avg_sq"]

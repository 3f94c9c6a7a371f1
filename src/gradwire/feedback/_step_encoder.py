"""What the encoders of adam and muon share: a step joins what waits, what is sent leaves it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from torch import Tensor

from gradwire import kernels
from gradwire.local import Encoder
from gradwire.strategy import Compressor, Key, Sections, State


@dataclass
class StepEncoder(Encoder):
    """States are vectors of the parameter's size, one of them "residual"."""

    compressor: Compressor
    states: ClassVar[tuple[str, ...]]
    _fresh: bool = field(default=False, kw_only=True)  # this step made the state
    _key: Key | None = field(default=None, kw_only=True)

    def begin(self, x: Tensor, state: State, key: Key) -> None:
        """The state is there."""
        self._key, self._fresh = key, "residual" not in state
        if self._fresh:
            for name in self.states:
                state[name] = kernels.zeros(x.numel(), x.device)

    def send(self, state: State, sections: Sections, key: Key, status: Tensor) -> None:
        """What waits, and keep the rest."""
        v = state["residual"]
        self.compressor.encode(v, sections, key, status)
        self.compressor.add(sections, v, -1.0, key)

    def forget(self, state: State) -> None:
        """The state that this step made."""
        for name in self.states:
            state.pop(name, None)

    def give_back(self, state: State, sections: Sections) -> None:
        self.compressor.add(sections, state["residual"], 1.0, self._key)

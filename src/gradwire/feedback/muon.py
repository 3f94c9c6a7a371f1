"""muon: each rank's own orthogonal step is what is encoded, instead of its gradient."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from gradwire import kernels
from gradwire.beside import without_feedback
from gradwire.feedback._measured import Measured, StepEncoder, noise_factor
from gradwire.feedback._numbers import check_adam, check_momentum, momentum_of
from gradwire.feedback._orthogonal import orthogonal
from gradwire.local import Encoder
from gradwire.member import Evidence, Member, Moments, UpdateRule
from gradwire.strategy import Compressor, Key, Sections, State, StepInfo, Strategy


@dataclass(frozen=True)
class Muon(Measured):
    """v = v + κ·orthogonal(m); send C(v); keep the rest. Two fp32 buffers: v and the momentum m.

    m: of this rank's own gradient. All singular values of a step are about 1, so that its
    elements are of one size, and signs tell most of it. For `gradwire.optim.Muon`, which leaves
    the momentum of hidden matrices to the plan, and Adam's moments, of these betas and eps, of all
    others.

    κ, local: as of `adam`; w is the orthogonal step.

    rest: how all that is no hidden matrix travels, as "qsgd(4) | alltoall": vectors and others as
    gradients, for Adam's moments of their average; or, by a compressor that wants a feedback,
    others as steps, by `adam`. "": others as hidden matrices do, but by `adam`; vectors dense.

    turns: as of `Measured`: which matrix has which turn, a plan says (`Plan.make`). Orthogonal
    steps take a part of the time, too.

    Source: Jordan et al. 2024, "Muon"; its compression, the noise factor and the own view are ours
    (docs/design/soundness.md).
    """

    momentum: float = 0.95
    nesterov: bool = True
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    local: bool = True
    rest: str = ""
    turns: int = 1
    turn: int = 0
    rule: ClassVar[UpdateRule] = "orthogonal"
    optimizer: ClassVar[str] = "Muon"
    name: ClassVar[str] = "muon"
    evidence: ClassVar[tuple[Evidence, ...]] = (
        Evidence(
            "lloyd(2)+muon(beta2=0.99) | alltoall", "muon", True, "gpt-muon", "muon-2-alltoall"
        ),
        Evidence(
            'lloyd(2)+muon(beta2=0.99, rest="qsgd | alltoall", turns=4) | alltoall', "muon", True,
            "llama-muon", "muon-2-turns-4-rest-4",  # 0.45 % above dense; on gpt-muon 0.2 %
        ),
        Evidence(
            "lloyd(1)+muon(beta2=0.99) | alltoall", "muon", False, "gpt-muon", "muon-1-alltoall"
        ),
    )  # fmt: skip

    def __post_init__(self) -> None:
        check_momentum(self.name, self.momentum, nesterov=self.nesterov)
        check_adam(self.name, self.beta1, self.beta2, self.eps, local=self.local)
        if self.rest != "":  # the text as it prints, so that equals are equal
            own = without_feedback(self.rest, "muon's rest")
            object.__setattr__(self, "rest", str(own))
        self.check_turns()

    def is_as_fine_as(self, other: Member) -> bool:
        """Whatever the momentum: it is the training's, not a loss."""
        if not isinstance(other, Muon) or self.rest != other.rest:
            return False
        return self.local >= other.local and self.turns <= other.turns

    def moments(self) -> Moments:
        return momentum_of(self.momentum, self.nesterov)

    def others(self, strategy: Strategy) -> str:
        own = Strategy.parse(self.rest) if self.rest else strategy
        steps = f"adam({self._of_adam}, local={self.local})"
        waits = not self.rest or own.compressor.claims(1 << 20).wants_feedback
        return f"{own.compressor}+{steps if waits else self.dense()} | {own.collective}"

    def dense(self) -> str:
        return f"server_adam({self._of_adam})"

    @property
    def _of_adam(self) -> str:
        return f"beta1={self.beta1}, beta2={self.beta2}, eps={self.eps}"

    def encoder(self, compressor: Compressor) -> Encoder:
        return MuonEncoder(compressor, self)

    def before(self, x: Tensor, state: State, info: StepInfo) -> tuple[Tensor, State]:
        # The gradient is scaled already.
        m = self.averaged(x, state)
        moments = {**state, "exp_avg": m}
        step = self.step(x, m, info) * (noise_factor(state) * self.turns)
        return step + state.get("residual", torch.zeros_like(x)), moments

    def follow(self, x: Tensor, state: State, status: Tensor) -> None:
        def take_up() -> None:
            for name in MuonEncoder.states:
                if name not in state:
                    state[name] = kernels.zeros(x.numel(), x.device)
            state["exp_avg"].lerp_(x, 1 - self.momentum)

        if "exp_avg" in state and kernels.goes_on(status):
            m = state["exp_avg"]
            kernels.copy_unless(status, m.lerp(x, 1 - self.momentum), m)
        else:  # the first time a device is waited for: whether there are moments is no number
            kernels.run_unless(status, take_up)

    def divided(self, x: Tensor, state: State, info: StepInfo) -> Tensor:
        return self.step(x, self.averaged(x, state), info)

    # -- its arithmetic --------------------------------------------------------------------

    def averaged(self, g: Tensor, state: State) -> Tensor:
        """The momentum once g, 1-D, is in it."""
        return state.get("exp_avg", torch.zeros_like(g)).lerp(g, 1 - self.momentum)

    def step(self, g: Tensor, m: Tensor, info: StepInfo) -> Tensor:
        """The orthogonal step, 1-D, by the momentum m that has g in it."""
        along = g.lerp(m, self.momentum) if self.nesterov else m
        return orthogonal(along.view(_matrix(info, g))).reshape(-1)


@dataclass
class MuonEncoder(StepEncoder):
    """Bit for bit what the composition of `Muon` does; undo is exact to rounding."""

    feedback: Muon
    states: ClassVar[tuple[str, ...]] = ("exp_avg", "residual")
    _step: Tensor | None = field(default=None, repr=False)

    def encode(
        self, x: Tensor, state: State, sections: Sections, info: StepInfo, key: Key, status: Tensor
    ) -> None:
        self.begin(x, state, key)
        g, m = kernels.finite_part(x.float() * info.clip_scale, status), state["exp_avg"]
        m.lerp_(g, 1 - self.feedback.momentum)
        self._step = self.feedback.step(g, m, info)
        self._step.mul_(noise_factor(state) * self.feedback.turns)
        state["residual"].add_(self._step)
        self.send(state, sections, key, status)

    def undo(self, x: Tensor, state: State, sections: Sections, info: StepInfo) -> None:
        if self._step is None:
            return
        if self._fresh:
            self.forget(state)
        else:
            self.give_back(state, sections)
            state["residual"].sub_(self._step)
            kept = self.feedback.momentum
            if kept > 0:
                g = kernels.finite_part(x.float() * info.clip_scale)
                state["exp_avg"].sub_(g, alpha=1 - kept).div_(kept)
        self.release()

    def release(self) -> None:
        self._step = None


def _matrix(info: StepInfo, x: Tensor) -> tuple[int, ...]:
    """The shape of what x is; what is no matrix is one row."""
    return info.shape if len(info.shape) == 2 else (1, x.numel())

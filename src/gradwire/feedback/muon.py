"""muon: each rank encodes its own orthogonal step, instead of its gradient."""

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

    m: that of this rank's own gradient. All singular values of a step are about 1, so that its
    elements are of one size, and signs hold most of it. For `gradwire.optim.Muon`, which leaves
    to the plan the momentum of hidden matrices, and Adam's moments (with these betas and eps) of
    all other parameters.

    κ, local: as for `adam`; w is the orthogonal step.

    rest: the strategy of all parameters but hidden matrices, as "qsgd(4) | alltoall". They travel
    as gradients, with Adam's moments of their average; or, with a compressor that wants a
    feedback, as steps of `adam`, and vectors dense. "": the compressor and collective of hidden
    matrices, with `adam`; vectors dense.

    turns: see `Measured`; `Plan.make` decides which matrix has which turn. Orthogonal steps are
    computed less often, too.

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
        if self.rest != "":  # normalized, so that equal feedbacks compare equal
            own = without_feedback(self.rest, "muon's rest")
            object.__setattr__(self, "rest", str(own))
        self.check_turns()

    def is_as_fine_as(self, other: Member) -> bool:
        """Whether `local` is kept and turns are no more. The momentum does not count."""
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
        # x is already multiplied by the clip scale.
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
        else:  # the first time waits for the device, as the host must know whether to make moments
            kernels.run_unless(status, take_up)

    def divided(self, x: Tensor, state: State, info: StepInfo) -> Tensor:
        return self.step(x, self.averaged(x, state), info)

    # -- its arithmetic --------------------------------------------------------------------

    def averaged(self, g: Tensor, state: State) -> Tensor:
        """Returns the momentum updated by g, 1-D."""
        return state.get("exp_avg", torch.zeros_like(g)).lerp(g, 1 - self.momentum)

    def step(self, g: Tensor, m: Tensor, info: StepInfo) -> Tensor:
        """Returns the orthogonal step, 1-D, for the momentum m, which g has updated."""
        along = g.lerp(m, self.momentum) if self.nesterov else m
        return orthogonal(along.view(_matrix(info, g))).reshape(-1)


@dataclass
class MuonEncoder(StepEncoder):
    """Equals the composition of `Muon`'s methods bit for bit; undo is exact to rounding."""

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
    """Returns the shape of x as a matrix; anything but a matrix is one row."""
    return info.shape if len(info.shape) == 2 else (1, x.numel())

"""Moves moments from an optimizer to the plan that keeps them, and back.

    dense AdamW ──► take ──► every rank's own moments ──► give ──► dense AdamW
                             begin as the average's       their mean

A rank's own gradient has the noise of its batch, so its squares are κ² times as large as the
average's; κ is measured in the first step, or known.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from gradwire.errors import UsageError
from gradwire.feedback._measured import noise_factor
from gradwire.local import NOISE, STEPS
from gradwire.soundness import is_of, update_rule
from gradwire.strategy import Feedback, State
from gradwire.training.session import Session
from gradwire.training.trainable import shard_of

MOMENTUM, FIRST, SECOND = "momentum_buffer", "exp_avg", "exp_avg_sq"
_OF_ADAM = {FIRST, SECOND, "step"}


def take(session: Session, optimizer: Optimizer, *, anew: bool = False) -> int:
    """Move the optimizer's moments into the plan; returns the number of parameters moved.
    Parameters that ranks keep in parts are skipped, and, unless `anew`, those of which the plan
    remembers something."""
    taken = 0
    for name, p, feedback in _kept(session):
        state, mine = optimizer.state.get(p), session.ledger.memory[name]
        found = _read(state, feedback, optimizer) if state else None
        if found is not None and (anew or not mine):
            mine.clear()
            begun = feedback.adopt(found)
            place = session.ledger.placed
            mine.update({key: place(name, key, x) for key, x in begun.items()})
            del optimizer.state[p]
            taken += 1
    return taken


@torch.no_grad()
def give(session: Session, optimizer: Optimizer) -> None:
    """Write the mean of all ranks' moments into an optimizer's state; the plan's stay. Collective.

    Raises:
        UsageError: a rank keeps only a part of a parameter, or the optimizer steps by other
            moments than the plan keeps.
    """
    parts = [name for name in session.parameters if not session.ledger.is_own(name)]
    if parts or any(type(p) is not nn.Parameter for p in session.parameters.values()):
        raise UsageError(
            "give_moments needs the moments of whole parameters; here ranks keep those of parts, "
            f"or of machines, for example of '{(parts or list(session.parameters))[0]}'. Save "
            "handle.state_dict(), and load it in a job where each rank keeps whole parameters."
        )
    groups = {id(p): group for group in optimizer.param_groups for p in group["params"]}
    given = [kept for kept in _kept(session) if session.step > 0 and id(kept[1]) in groups]
    for name, p, feedback in given:
        _check_kind(optimizer, groups[id(p)], feedback, optimizer.state.get(p, {}))
        _check_noise(name, feedback, session.ledger.memory[name])
    for name, p, feedback in given:
        # Moments that a rank lacks, as its gradients were not finite so far, count as zeros.
        state = session.ledger.memory[name]
        written = optimizer.state[p] = _written(state, feedback, p, session)
        beside = groups[id(p)].get("fused") or groups[id(p)].get("capturable")
        if "step" in written and beside:  # torch wants it on the parameter's device
            written["step"] = written["step"].to(p.device)


def _check_kind(
    optimizer: Optimizer, group: Mapping[str, Any], feedback: Feedback, state: Mapping[str, Any]
) -> None:
    if feedback.rule == "orthogonal":
        is_its_own = is_of(optimizer, "Muon")
    else:  # gradwire's Muon steps by AdamW what is no hidden matrix; others may have its state
        # alone: NAdam's has more in it, which would be lost.
        is_its_own = is_of(optimizer, "Adam") or "muon" in group or set(state) == _OF_ADAM
    if not is_its_own or group.get("amsgrad"):
        raise UsageError(
            f"an optimizer can take only moments of its own kind; '{feedback}' keeps others than "
            f"{type(optimizer).__name__}{' with amsgrad' * bool(group.get('amsgrad'))} has. Pass "
            "gradwire.optim.AdamW, or Muon, without amsgrad."
        )


def _check_noise(name: str, feedback: Feedback, state: State) -> None:
    """Raise UsageError, alike on all ranks, where second moments are of each rank's own gradient
    and nothing tells how much larger they are than the average's."""
    if feedback.rule == "adaptive" and SECOND not in feedback.shared and NOISE not in state:
        raise UsageError(
            "give_moments needs the noise of the ranks' batches, which a step measures; that of "
            f"'{name}' is not known, as no finite step was taken since the number of ranks has "
            "changed. Take a step, then call it."
        )


def _kept(session: Session) -> Iterator[tuple[str, nn.Parameter, Feedback]]:
    """Yields the parameters whose moments (Adam's, Muon's) the plan keeps, and this rank whole."""
    for name, p in session.parameters.items():
        feedback = session.plan.strategy_of(name).feedback
        if feedback is not None and feedback.rule != "linear" and session.ledger.is_own(name):
            yield name, p, feedback


def _read(state: State, feedback: Feedback, optimizer: Optimizer) -> dict[str, Tensor] | None:
    """Returns a torch optimizer's state in the feedback's form; None if it is another kind, as
    SGD's momentum, which is no average."""
    if feedback.rule == "orthogonal":
        is_muon_s = MOMENTUM in state and update_rule(optimizer) == "orthogonal"
        return {FIRST: _flat(state[MOMENTUM])} if is_muon_s else None
    if not set(state) >= _OF_ADAM:
        return None
    steps = torch.as_tensor(state["step"], dtype=torch.float32, device="cpu")
    return {STEPS: steps.reshape(1).clone(), FIRST: _flat(state[FIRST]),
            SECOND: _flat(state[SECOND])}  # fmt: skip


def _flat(x: Tensor) -> Tensor:
    """Returns a copy of this rank's part, flat, in fp32."""
    return shard_of(x).detach().float().reshape(-1).clone()


def _written(
    state: State, feedback: Feedback, p: nn.Parameter, session: Session
) -> dict[str, Tensor]:
    """Returns the mean of all ranks' states in the form of torch's optimizers. Collective."""

    def mean(x: Tensor) -> Tensor:
        if FIRST in feedback.shared:  # all ranks have the average's already
            return _as(p, x)
        return _as(p, session.summed(x / session.world, "moments"))

    zeros = torch.zeros(p.numel(), device=p.device, dtype=torch.float32)
    first = mean(state.get(FIRST, zeros))
    if feedback.rule == "orthogonal":
        return {MOMENTUM: first}
    second = mean(state.get(SECOND, zeros) / noise_factor(state) ** 2)
    steps = state.get(STEPS, zeros.new_zeros(1)).cpu().reshape(()).clone()
    return {"step": steps, FIRST: first, SECOND: second}


def _as(p: Tensor, x: Tensor) -> Tensor:
    """Returns a copy with the parameter's dtype and strides, on which fused optimizers rely."""
    return torch.empty_like(p).copy_(x.view(p.shape))

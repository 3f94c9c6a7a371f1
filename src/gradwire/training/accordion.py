"""Accordion: sends more of each gradient in critical phases, which it detects during training."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from gradwire.errors import UsageError
from gradwire.moves import AllGather
from gradwire.training.documents import ACCORDION
from gradwire.training.session import Session
from gradwire.training.trainable import shard_of
from gradwire.warmup import Warmup, at_density

if TYPE_CHECKING:
    from gradwire.training.attach import Handle


class Accordion:
    """Switches between a handle's plan and the same plan at a higher density. Collective, between
    two steps: it begins with the higher density.

        accordion = gradwire.Accordion(handle, density=0.1, every=500)
        loss.backward();  accordion.step(rate);  optimizer.step()

    A phase is critical if the 2-norm of the sum of averaged gradients over `every` exchanges has
    changed by at least the part `eta` since the `every` exchanges before, or if the learning rate
    that `step` is told fell. The first interval is critical, too, and so is the second, as nothing
    precedes the first. With feedback the sum of averages approaches that of the gradients at any
    density, once many exchanges are summed: several times 1/density, an epoch in the paper.
    Averages are alike on all ranks, and the first rank decides. Residuals pass to the other plan.
    Memory: a copy of the model in fp32.
    Source: Agarwal et al. 2021, "Adaptive Gradient Communication via Critical Learning Regime
    Identification" (Accordion), algorithm 1.

    `is_critical` says whether the higher density is in force, the same on all ranks.

    Args:
        handle: that of an attached model. With "auto" no more plans are looked for.
        density: the density in critical phases: a fraction of elements, or the text of a strategy
            without a feedback, as in `gradwire.Warmup`.
        every: the number of exchanges from one decision to the next.
        eta: the relative change that is critical.

    Raises:
        PlanError, StrategyError: `gradwire.Warmup` refuses the density.
        UsageError: the plan has a warm-up of its own, a number is out of range, it is no handle of
            `gradwire.attach`, or the model was attached with on_failure="shrink".
    """

    def __init__(self, handle: Handle, density: float | str, every: int, eta: float = 0.5) -> None:
        Warmup(1, (density,))
        if not isinstance(getattr(handle, "_session", None), Session):
            raise UsageError(
                "Accordion takes the handle that gradwire.attach returned; got a "
                f"{type(handle).__name__}. Attach the model, and pass the handle."
            )
        is_eta = isinstance(eta, int | float) and 0 < eta < math.inf
        if type(every) is not int or every < 1 or not is_eta:
            raise UsageError(
                "Accordion's every must be a whole number, 1 or more, and eta above 0; got "
                f"every={every!r}, eta={eta!r}. Use for example Accordion(handle, 0.1, 500)."
            )
        if handle._session.settings.warmup is not None:
            raise UsageError(
                "Accordion begins with the higher density itself, so it takes no warm-up; the "
                "model was attached with one. Attach without warmup=."
            )
        if handle._session.on_lost is not None:
            raise UsageError(
                "Accordion's ranks decide together after equally many steps, which one that comes "
                'later has not made; the model was attached with on_failure="shrink". Leave that '
                "out, or call handle.adopt(plan) by a rule of your own."
            )
        self._handle, self._phases = handle, Phases(every, eta)
        self._sparse = handle.plan
        self._dense = at_density(handle.plan, density, handle._session.world)
        self.is_critical = True
        handle.adopt(self._dense)

    def step(self, rate: float | None = None) -> bool:
        """Add this step's averages; returns whether the phase is critical from now on. Call it
        after `backward`, while `.grad` holds averages. Every `every`-th call decides, and is
        collective. rate: the learning rate, if that falls in a few large steps; one that always
        falls a little, as by a cosine, would make every phase critical.

        Raises:
            UsageError: the rate is no number, no `.grad` has held an average in the interval that
                ends now, or the handle was detached.
        """
        self._handle._check_usable()
        session, phases = self._handle._session, self._phases
        rate = phases.rate if rate is None else _number(rate)
        averages = {
            n: shard_of(p.grad) for n, p in session.parameters.items() if p.grad is not None
        }
        phases.add(averages, _scale(session))
        if phases.is_over:
            if not phases.sums:
                raise UsageError(
                    "Accordion looks at averages in .grad; none had any since its last decision. "
                    "Call step() after backward(), before zero_grad()."
                )
            self._agree(phases.found_critical(self._norm(), rate))
        return self.is_critical

    def state_dict(self) -> dict[str, Any]:
        """Returns the state, alike on all ranks; save it beside the handle's, at the end of an
        interval, as sums within one are left out."""
        phases = self._phases
        return {"taken": phases.taken, "before": phases.before, "rate": phases.rate,
                "is_critical": self.is_critical}  # fmt: skip

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load a state, and adopt the plan of its phase. Collective.

        Load it before the handle loads its own state, which fits only the plan with which it was
        saved, that of the phase:

            accordion = gradwire.Accordion(handle, density=0.1, every=500)
            accordion.load_state_dict(state["accordion"])
            handle.load_state_dict(state["gradwire"])

        Raises:
            UsageError: it is no such state; nothing has changed then.
        """
        given, phases = ACCORDION.take(state), self._phases
        phases.taken, phases.before, phases.rate = given["taken"], given["before"], given["rate"]
        phases.sums = {}
        self._go(given["is_critical"])

    def _norm(self) -> float:
        """Returns the norm of all sums. Collective if ranks keep parts of them: each rank measures
        its own, as some may have none of a parameter."""
        session = self._handle._session
        own = self._phases.norm()
        if session.circle is session.performers[0]:
            return float(own)
        square = own.double().square().view(1)
        squares = session.circle.perform(AllGather(square), "Accordion's sums")
        assert isinstance(squares, torch.Tensor)
        return math.sqrt(float(squares.sum()) / session.world)  # each replica has them all

    def _agree(self, critical: bool) -> None:
        """Goes on as the first rank has found. Collective."""
        session, circle = self._handle._session, self._handle._session.circle
        word = torch.tensor([critical], dtype=torch.uint8, device=session.device)
        dist.broadcast(word, dist.get_global_rank(circle.group, 0), group=circle.group)
        self._go(bool(word))

    def _go(self, critical: bool) -> None:
        if critical != self.is_critical:
            self._handle.adopt(self._dense if critical else self._sparse)
            self.is_critical = critical


class Phases:
    """What `Accordion` looks at: sums of averages, and what is left of the interval before.

    taken: the exchanges so far. before: the norm of the interval before. rate: the last learning
    rate that was told.
    """

    def __init__(self, every: int, eta: float) -> None:
        self._every, self._eta = every, eta
        self.taken, self.before, self.rate = 0, math.nan, math.inf
        self.sums: dict[str, torch.Tensor] = {}

    @property
    def is_over(self) -> bool:
        """Whether an interval has had all of its exchanges."""
        return self.taken % self._every == 0

    def add(self, averages: Mapping[str, torch.Tensor], scale: float = 1.0) -> None:
        """Adds a step's averages, by name, without their loss scale."""
        for name, x in averages.items():
            whole = x.to_dense() if x.is_sparse else x
            if name not in self.sums:
                self.sums[name] = torch.zeros_like(whole, dtype=torch.float32)
            # A skipped step has NaN.
            self.sums[name].add_(whole.nan_to_num(0.0, 0.0, 0.0), alpha=1.0 / scale)
        self.taken += 1

    def norm(self) -> torch.Tensor:
        """Returns the norm of the sums."""
        found: torch.Tensor = torch.stack(torch._foreach_norm(list(self.sums.values()))).norm()
        return found

    def found_critical(self, now: float, rate: float) -> bool:
        """Ends an interval of that norm. Returns whether it was critical."""
        critical = changed(self.before, now, self._eta) or rate < self.rate
        self.before, self.rate, self.sums = now, rate, {}
        return critical


def _scale(session: Session) -> float:
    """Returns the loss scale of the averages in `.grad`: 1 once the scaler has unscaled them."""
    states = getattr(session.scaler, "_per_optimizer_states", {}).values()
    is_unscaled = any(state["stage"].name == "UNSCALED" for state in states)
    return 1.0 if is_unscaled else session.loss_scale


def _number(rate: Any) -> float:
    try:
        return float(rate)
    except (TypeError, ValueError, RuntimeError) as error:
        raise UsageError(
            f"a learning rate must be a number; got {rate!r:.80}. Pass for example "
            "scheduler.get_last_lr()[0]."
        ) from error


def changed(before: float, now: float, eta: float) -> bool:
    """Whether a norm has changed by at least the part eta; True if `before` is unknown (NaN)."""
    return math.isnan(before) or (now != before and abs(now - before) >= eta * before)

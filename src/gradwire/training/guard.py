"""Detects whether a strategy does harm in this run, in its first steps and at intervals after.

For a few thousand elements the dense mean of the gradients is computed, too, and a copy of the
optimizer steps a copy of the weights by it (`Shadow`). After WINDOW steps a sound strategy has
taken the weights about where dense training would have, an unsound one has not.
"""

from __future__ import annotations

import math
import warnings
import weakref
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.optim import Optimizer

from gradwire.soundness import SoundnessWarning, name_of, sound, update_rule
from gradwire.training.attached import keeper_of
from gradwire.training.recommend import instead
from gradwire.training.session import Session
from gradwire.training.shadow import OTHERWISE, Shadow, is_by_element, is_by_matrix
from gradwire.training.trainable import shard_of, shards_of

WINDOW = 40
"""The number of steps that are compared: 2 % of a short run."""
EVERY = 1000
"""Steps from the beginning of a window to that of the next."""
LIMIT, LIMIT_OF_MATRICES = 0.45, 0.75
"""How far apart the paths may be, relative to the length of the dense one: of elements, and of
matrices that Muon steps. Measured on strategies that are sound and on some that are not:
docs/design/guard.md."""
SAMPLE, MATRIX = 16384, 1 << 18
"""The most elements of the sample of all parameters, and of a matrix that is watched whole."""
_PATIENCE = 5  # steps to wait for an optimizer whose steps can be watched


class Apart(NamedTuple):
    """How far apart the paths are at a window's end, relative to the length of the dense one."""

    elements: float | None
    matrices: float | None

    @property
    def too_far(self) -> list[tuple[float, float, str]]:
        """Distances above their limits, each with its limit and the kind of weights."""
        kinds = zip(self, (LIMIT, LIMIT_OF_MATRICES), ("weights", "matrices"))
        return [(x, most, of) for x, most, of in kinds if x is not None and not x <= most]


class Guard:
    """Watches one attached model, on all ranks at the same steps.

    apart: how far apart the paths were at the end of each window, for parameters that step by
    element and for a matrix that Muon steps; None for a kind that was not watched. harmed: whether
    a distance was above its limit, the same on all ranks.
    """

    def __init__(self, session: Session) -> None:
        self._session, self.apart, self.harmed = session, list[Apart](), False
        rows = {p.name for b in session.plan.buckets for p in b.parameters if p.sparse}
        parts = shards_of(session.parameters)
        watched = {n: p for n, p in parts.items() if n not in rows and p.numel()}
        each = max(1, SAMPLE // max(len(watched), 1))
        self._places = {n: _spread(p, each) for n, p in watched.items()}
        feedbacks = {n: session.plan.strategy_of(n).feedback for n in watched}
        by_matrix = [n for n, own in feedbacks.items() if own and own.rule == "orthogonal"]
        for name in _smallest(by_matrix, watched):  # must be watched from its first step
            self._places[name] = _spread(watched[name], watched[name].numel())
        self._given = dict[str, Tensor]()
        self._arrived = dict[str, Tensor]()
        self._mean: dict[str, Tensor] | None = None  # this step's, until a shadow has taken it
        self._late: dict[str, Tensor] | None = None  # residuals at a window's end, as steps
        self._shadow: Shadow | None = None
        self._watched: weakref.ref[Optimizer] | None = None
        self._next: float = 0  # the step at which a window begins
        self._seen = -1  # the last one

    def look_from(self, step: float) -> None:
        """Begin the next window at this step, and drop the current one and its samples. math.inf:
        none, while plans are tried that training may not keep. All ranks must call it."""
        self._shadow = self._watched = self._mean = self._late = None
        self._given.clear()
        self._arrived.clear()
        self._next, self._seen = step, -1

    def look_anew(self, step: int) -> None:
        """As `look_from`, but begin no window if none was to begin, as while plans are tried."""
        if self._next < math.inf:
            self.look_from(step)

    # -- called by the session -------------------------------------------------------------

    @property
    def looks(self) -> bool:
        """Whether this step's gradients are sampled."""
        return self._shadow is not None or self._session.step >= self._next

    def given(self, name: str, gradient: Tensor) -> None:
        """Sample this rank's own gradient, before anything of it is sent."""
        if name in self._places and self.looks:
            self._given[name] = gradient.detach().reshape(-1)[self._places[name]].float()

    def arrived(self, name: str, average: Tensor | None) -> None:
        """Sample the average that a gradient has become."""
        if name in self._given and average is not None:
            self._arrived[name] = average.detach().reshape(-1)[self._places[name]].float()

    # -- before the optimizer's step -------------------------------------------------------

    def before_step(self, optimizer: Optimizer) -> None:
        """Look at the weights as the last step left them, and at `.grad` for the next step.
        Collective if the step is watched."""
        if self._watched is not None and self._watched() is not optimizer:
            return
        if self._shadow is not None:
            self._shadow.look()
            if self._shadow.steps >= WINDOW:
                self._judge(optimizer, self._shadow)
        if self._session.step != self._seen and self._given:
            self._seen, self._mean = self._session.step, self._means()
        if self._mean is None:
            return
        if self._shadow is None and self._session.step > self._next:
            self._begin(optimizer)
        if self._shadow is not None:
            self._shadow.take(self._mean)
            self._mean = None
            if self._shadow.steps >= WINDOW and update_rule(optimizer) == "linear":
                # A linear rule applies residuals later with the same effect. They are read now, as
                # the next exchange changes them.
                self._late = self._waiting(optimizer)

    def before_closure(self, optimizer: Optimizer) -> None:
        """Give no result for a window in which a closure makes a step's gradients, inside it."""
        if self._shadow is not None and self._watched is not None and self._watched() is optimizer:
            self._shadow.is_followed = False

    def after_step(self, optimizer: Optimizer) -> None:
        """Note where a step has left the weights."""
        watched = self._watched() if self._watched is not None else None
        if self._shadow is not None and watched is optimizer:
            self._shadow.leave()

    def _means(self) -> dict[str, Tensor] | None:
        """Returns the mean of all ranks' gradients, in the unit in which the optimizer takes them;
        None in a step that is skipped. Collective."""
        # All were given on every rank, at the latest by `Session.flush`, but not in one order.
        names = [name for name in self._places if name in self._given]
        scale = self._session.clip_scale / self._session.world
        total = self._sum(torch.cat([self._given[n] for n in names]).mul_(scale))
        parts = dict(zip(names, torch.split(total, [self._given[n].numel() for n in names])))
        factor = self._factor(names)
        self._given.clear()
        self._arrived.clear()
        finite = bool(total.isfinite().all()) and factor is not None
        return {n: x * factor for n, x in parts.items()} if finite and factor else None

    def _factor(self, names: list[str]) -> float | None:
        """Returns the factor by which averages were multiplied since they arrived: by clipping, or
        by unscaling; None if it is NaN. Notes whether they were changed otherwise."""
        parameters, came = self._session.parameters, self._arrived
        here = [n for n in names if n in came and parameters[n].grad is not None]
        if not here:
            return 1.0
        gradients = ((n, shard_of(parameters[n].grad).detach().reshape(-1)) for n in here)
        taken = torch.cat([x[self._places[n]].double() for n, x in gradients])
        arrived = torch.cat([came[n] for n in here]).double()
        pairs = (taken, arrived), (arrived, arrived), (taken, taken)
        now, was, whole = (float(torch.dot(*pair)) for pair in pairs)
        if self._shadow is not None and was * whole - now * now > OTHERWISE**2 * was * whole:
            self._shadow.is_followed = False
        factor = now / was if was > 0 else 1.0
        return factor if factor == factor else None

    # -- windows ---------------------------------------------------------------------------

    def _begin(self, optimizer: Optimizer) -> None:
        """Begin a window, unless the plan keeps a momentum that began before it. Collective."""
        session, named = self._session, self._session.parameters
        warmup = session.settings.warmup
        if warmup is not None and session.taken < warmup.steps:
            self._next = session.step + warmup.steps - session.taken
            return
        groups = {id(p): g for g in optimizer.param_groups for p in g["params"]}
        fresh = session.taken <= 1

        def are(kind: Callable[..., bool]) -> list[str]:
            return [
                name for name, p in named.items()
                if id(p) in groups and kind(optimizer, groups[id(p)], p)
                and (fresh or keeper_of(p) is None)
            ]  # fmt: skip

        # Each rank may step some of the parameters (ZeroRedundancyOptimizer): all sample alike.
        element, matrix = are(is_by_element), are(is_by_matrix)
        by_element, by_matrix = self._anywhere(element), self._anywhere(matrix)
        whole = _smallest(by_matrix, named)
        late = [n for n in whole if len(self._places[n]) < named[n].numel()]
        for name in late:  # sampled whole from the next step on
            self._places[name] = _spread(named[name], named[name].numel())
        if late and not any(keeper_of(named[name]) for name in late):
            self._next = session.step
            return
        watched = [n for n in (*by_element, *whole) if n not in late]
        if watched:  # by this rank, or by others, whose sums it takes part in
            mine = {*element, *matrix}
            places = {n: self._places[n] for n in watched if n in mine}
            own = [n for n in whole if n in places]
            self._shadow = Shadow(optimizer, named, places, own)
            self._watched = weakref.ref(optimizer)
        if watched or session.step > self._next + _PATIENCE:  # another optimizer may step, too
            self._next = session.step + EVERY

    def _anywhere(self, names: list[str]) -> list[str]:
        """Returns the sampled parameters that are among these on some rank. Collective."""
        own = set(names)
        ranks = self._sum(
            torch.tensor([float(name in own) for name in self._places], dtype=torch.float32)
        ).tolist()
        return [name for name, count in zip(self._places, ranks) if count]

    def _judge(self, optimizer: Optimizer, shadow: Shadow) -> None:
        """End a window: note how far apart the paths are, and warn if too far; neither if a rank
        could not follow what the loop did beside the optimizer. Collective."""
        kinds = ([n for n in shadow.began if n not in shadow.whole], shadow.whole)
        own = [shadow.apart(names, self._late) for names in kinds]
        own += [*(float(bool(names)) for names in kinds), float(not shadow.is_followed)]
        # Different processors may round differently, and all ranks must decide alike.
        total = self._sum(torch.tensor(own, dtype=torch.float32)).tolist()
        self._shadow = self._watched = self._late = None
        if total[4]:
            return
        pairs = zip(total[:2], total[2:4])  # sums of distances, and over how many ranks
        apart = Apart(*(far / ranks if ranks else None for far, ranks in pairs))
        self.apart.append(apart)
        if not apart.too_far:
            return
        if self._session.rank == 0:
            warnings.warn(_words(apart, self._session, optimizer), SoundnessWarning, stacklevel=5)
        self.harmed = True

    def _sum(self, own: Tensor) -> Tensor:
        """Returns the sum over all ranks. Collective."""
        return self._session.summed(own.float().to(self._session.device), "the guard's sample")

    def _waiting(self, optimizer: Optimizer) -> dict[str, Tensor]:
        """Returns the mean of all ranks' residuals, as the steps of weights that they will become.
        Collective."""
        session, found = self._session, self._session.ledger.waiting()
        own = torch.cat([
            found[name].reshape(-1)[at].float() if name in found
            else torch.zeros(len(at), device=session.device, dtype=torch.float32)
            for name, at in self._places.items()
        ])  # fmt: skip
        sizes = [at.numel() for at in self._places.values()]
        parts = zip(self._places, torch.split(self._sum(own / session.world), sizes))
        by_id = {id(p): g for g in optimizer.param_groups for p in g["params"]}
        steps = {}
        for name, x in parts:
            p = session.parameters[name]
            if id(p) in by_id:
                steps[name] = x * (-_reach(by_id[id(p)], p) / session.loss_scale)
        return steps


def _words(apart: Apart, session: Session, optimizer: Optimizer) -> str:
    far, limit, what = apart.too_far[0]
    own, name = session.plan.main_strategy, name_of(optimizer)
    # Where even a strategy that is known to be sound does harm, others that lose much may, too.
    surprising = sound(own, optimizer).kind == "sound"
    known = f"Sound with {name}"
    if surprising:
        known = f"It is sound with {name} elsewhere. Sound with any optimizer"
    return (
        f"'{own}' does harm in this run: in {WINDOW} steps the {what} moved elsewhere than dense "
        f"gradients would have moved them, by {far:.0%} of the distance; with a sound strategy it "
        f"is less than {limit:.0%}. {known} is "
        f"{instead(optimizer, session.world, with_any=surprising)}"
    )


def _reach(group: Mapping[str, Any], parameter: Tensor) -> float:
    """Returns how far a gradient moves the weights in total, with the optimizer's momentum."""
    kept = 0.0 if keeper_of(parameter) is not None else float(group.get("momentum", 0.0))
    damped = 1.0 - float(group.get("dampening", 0.0))
    return float(group["lr"]) * (damped / (1 - kept) if kept else 1.0)


def _smallest(matrices: list[str], named: Mapping[str, Tensor]) -> list[str]:
    """Returns the smallest matrix, which is watched whole; an empty list if all are too large."""
    fit = [name for name in matrices if named[name].numel() <= MATRIX]
    return sorted(fit, key=lambda name: named[name].numel())[:1]


def _spread(parameter: Tensor, most: int) -> Tensor:
    """Returns evenly spaced places of at most `most` elements of a parameter."""
    step = -(-parameter.numel() // most)
    return torch.arange(0, parameter.numel(), step, device=parameter.device)

"""N ranks of one plan in one process: computes what a job does, without its processes.

    gradients of N ranks, by name ──► the plan's buckets, in lockstep ──► averages, by name

For studies of convergence with more workers than processors, and for tests.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from gradwire.errors import UsageError
from gradwire.plan import Plan
from gradwire.runtime.ledger import Ledger
from gradwire.runtime.lockstep import drive
from gradwire.strategy import StepInfo
from gradwire.trace import Trace


class Workers:
    """N ranks of one plan in this process, with all that they remember from step to step.

    Args:
        plan: the plan of every rank.
        world: the number of ranks.
        options: `seed`, of stochastic compressors, and `device`, of the gradients.

    `step` counts exchanges; `trace` has the spans and bytes of the last one.

    Raises:
        UsageError: it is no `Plan`, or world is no whole number of at least 1.

    Example:
        >>> from gradwire.buckets import Parameter
        >>> from gradwire.testing import Workers
        >>> plan = gradwire.Plan.make([Parameter("w", (20, 30))], "topk(0.1)+ef | allgather")
        >>> workers = Workers(plan, 4)
        >>> averages = workers.exchange([{"w": torch.randn(20, 30)} for _ in range(4)])
        >>> averages["w"].shape
        torch.Size([20, 30])
    """

    def __init__(self, plan: Plan, world: int, **options: Any) -> None:
        if not isinstance(plan, Plan) or not isinstance(world, int) or world < 1:
            raise UsageError(
                "Workers takes a Plan and a whole number of ranks, at least 1; got "
                f"{plan!r:.80} and world={world!r}. Make a plan by Plan.make."
            )
        self.ledgers = [Ledger(plan, rank, world, **options) for rank in range(world)]
        self.step, self.trace = 0, Trace(world)

    @property
    def plan(self) -> Plan:
        """The plan by which the ranks exchange."""
        return self.ledgers[0].plan

    def adopt(self, plan: Plan) -> None:
        """Change to another plan for the same parameters, as `Handle.adopt` does. Raises PlanError
        if it is of others, or what this plan remembers cannot be passed on."""
        plan.check([p for bucket in self.plan.buckets for p in bucket.parameters])
        self.ledgers[0].check_next(plan)
        for ledger in self.ledgers:
            ledger.adopt(plan)

    @torch.no_grad()
    def exchange(
        self, gradients: Sequence[Mapping[str, Tensor]], clip_scales: Sequence[float] = ()
    ) -> dict[str, Tensor]:
        """Run one step. Returns the averages that every rank gets, by name, in the shapes of the
        plan's parameters.

        gradients: one mapping per rank, of all parameters of the plan, dense, of as many elements;
        a gradient that is contiguous may be changed. clip_scales: what each rank multiplies its
        gradient by. `trace` records this exchange.

        Raises:
            UsageError: there is not one of each per rank, or a gradient is missing or of another
                size.
            MoveError: ranks disagree.
        """
        world = len(self.ledgers)
        scales = clip_scales or [1.0] * world
        if len(gradients) != world or len(scales) != world:
            raise UsageError(
                f"each of the {world} workers must have one mapping of gradients, and one clip "
                f"scale if there are any; got {len(gradients)} and {len(clip_scales)}. Pass one "
                "per worker."
            )
        for rank, mine in enumerate(gradients):
            self._check(rank, mine)
        self.trace = Trace(world)
        averages: dict[str, Tensor] = {}
        for b, bucket in enumerate(self.plan.buckets):
            contexts = [ledger.contexts[b] for ledger in self.ledgers]
            for ledger, context, mine, scale in zip(self.ledgers, contexts, gradients, scales):
                flat = [mine[name].reshape(-1) for name in bucket.names]
                ledger.add_leftovers(b, flat, scale)
                results = [torch.empty_like(x) for x in flat]
                context.begin(flat, results, StepInfo(self.step, scale))
            drive([c.rounds() for c in contexts], self.trace)
            shapes = (p.shape for p in bucket.parameters)
            found = zip(bucket.names, contexts[0].results, shapes)
            averages |= {name: x.view(shape) for name, x, shape in found}
        self._end()
        return averages

    def _check(self, rank: int, gradients: Mapping[str, Tensor]) -> None:
        """Raise UsageError unless a rank has a gradient for each parameter, of its size."""
        for p in (p for bucket in self.plan.buckets for p in bucket.parameters):
            found = gradients.get(p.name) if isinstance(gradients, Mapping) else None
            if found is None or found.numel() != p.elements:
                got = "none" if found is None else f"one of shape {list(found.shape)}"
                raise UsageError(
                    f"each worker must have a gradient of {p}; worker {rank} has {got}. Pass "
                    "zeros for one without a part in the loss."
                )

    def _end(self) -> None:
        for ledger in self.ledgers:
            skipped = not ledger.finite
            for context in ledger.contexts:
                context.end(skipped)
            ledger.settle()
        self.step += 1

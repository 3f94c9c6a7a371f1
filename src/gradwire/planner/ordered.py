"""Predicts a step in the published planner's model, in which resources are queues.

- Stages on COMPUTE before a job's first link run as soon as the job is ready and delay all later
  backward. All other stages wait in a queue that serves one at a time.
- Each link is one queue, in the order of the jobs (or, by="ready", of their arrival): all of a
  job's stages on it go before the next job's, as the paper draws them.
- WORKERS: one worker encodes in that order, and decodes in a queue of its own, so that no job's
  encoding waits for the wire of the job before.
- Stages on COMPUTE after a link have the lowest priority and a queue too: all is over at
  max(C + D, M), where C is the end of backward and of what delayed it, D the sum of these stages
  and M = max over k of (arrival of k + sum of these stages from job k on).
- LATENCY is waiting.

In the order of the jobs everything is a maximum of sums: no rising cost makes a step shorter, and
no job sent before the last bubble is worth compressing. `simulate` (timeline.py), which models our
executor, promises neither.

Source: Espresso (EuroSys'23), section 4.3 and figures 2, 5 and 9, which fix it by picture only.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from gradwire.errors import PlanError
from gradwire.kernels.jobs import Served
from gradwire.kernels.schedule import ordered_step
from gradwire.planner.timeline import Executor, Job, as_they_are

Order = Literal["order", "ready"]
_DEFAULT = Executor()


def ordered(jobs: Sequence[Job], executor: Executor = _DEFAULT, *, by: Order = "order") -> float:
    """Returns seconds of an iteration: what is around backward, backward, what communication adds.

    Only the executor's times around and of backward count. Raises PlanError if a time is negative
    or not finite, or `by` is unknown.
    """
    return executor.around_seconds + _served(jobs, executor, by).seconds


def last_bubble(jobs: Sequence[Job], executor: Executor = _DEFAULT) -> int:
    """Returns the last job for which all links waited after they had been used; 0 if none did.

    Jobs before it need no compression: what they save only makes the bubble wider.
    """
    waited = _served(jobs, executor, "order").idle.nonzero().flatten().tolist()
    return int(waited[-1]) if waited else 0


def _served(jobs: Sequence[Job], executor: Executor, by: Order) -> Served:
    if by not in ("order", "ready"):
        raise PlanError(f"links must serve by 'order' or 'ready'; got {by!r}. Choose one.")
    own, runs, choice = as_they_are(jobs, executor)
    return ordered_step(own, choice, runs.backward_seconds, by == "ready")

"""The subjects of a recording: a model that is exchanged in every step, or local steps.

                          a step                        an exchange
    attached model   one, with its exchange        of every step, of all of the model
    local steps      the optimizer's, alone        every few steps, of one fragment

Rows are of the optimizer's steps in both, so that a run by local steps and one that exchanges in
every step can be compared.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any, Protocol

from gradwire.plan import Plan
from gradwire.run_folder import EVERY, StepRow
from gradwire.trace import Span
from gradwire.training.attach import Handle
from gradwire.training.local_steps import LocalSteps
from gradwire.training.rows import Rows, micro, short
from gradwire.training.session import Session
from gradwire.training.stats import KINDS

_BUCKET = re.compile(r"^bucket (\d+)")


class Recorded(Protocol):
    """The source of a recording's numbers.

    sessions: they notify the recording of their exchanges. facts: further facts to repeat the run.
    """

    sessions: Sequence[Session]
    facts: dict[str, Any]

    @property
    def optimizer(self) -> str:
        """The name of the optimizer; "" as long as it is not known."""

    @property
    def over(self) -> int:
        """The number of the last step that is over; valid between steps."""

    def ending(self, session: Session) -> int:
        """Returns the number of the step whose exchange ends now, the same on all ranks."""

    @property
    def plan(self) -> Plan:
        """A plan with all buckets."""

    @property
    def ages(self) -> list[float | None]:
        """The mean number of steps, bucket by bucket, from one time that an element is sent to the
        next; None if that depends on the data."""

    def begin(self) -> None:
        """Count from now on."""

    def row(self, step: int, at: float, most_seconds: float, has_norm: bool) -> StepRow | None:
        """Returns the row that ends with a step, as `Rows.next` does."""

    def spans(self, session: Session, rank: int) -> list[Span]:
        """Returns the training thread's and the lanes' spans of the step that `ending` names."""

    def took(self, session: Session) -> tuple[float, int]:
        """Returns the seconds since the exchange before, and the number of steps in them."""


class Attached:
    """A model attached by `gradwire.attach`, with an exchange in every step."""

    def __init__(self, handle: Handle) -> None:
        self._session, self._waiting = handle._session, handle._view.waiting
        self._handle = handle
        self.sessions: Sequence[Session] = [self._session]
        self.facts: dict[str, Any] = {}

    @property
    def optimizer(self) -> str:
        """The name of the optimizer that `attach` was told of, or of those that have stepped."""
        found = self._handle.optimizers
        return ", ".join(own if isinstance(own, str) else type(own).__name__ for own in found)

    @property
    def over(self) -> int:
        """See `Recorded`."""
        return self._session.step - 1

    def ending(self, session: Session) -> int:
        """See `Recorded`."""
        return session.step

    @property
    def plan(self) -> Plan:
        """The plan in force."""
        return self._session.plan

    @property
    def ages(self) -> list[float | None]:
        """See `Recorded`."""
        return self._session.stats.ages()

    def begin(self) -> None:
        """See `Recorded`."""
        self._rows = Rows(self._session, self._waiting)

    def row(self, step: int, at: float, most_seconds: float, has_norm: bool) -> StepRow | None:
        """See `Recorded`."""
        return self._rows.next(step, at, most_seconds, has_norm=has_norm)

    def spans(self, session: Session, rank: int) -> list[Span]:
        """See `Recorded`."""
        return [*session.stats.last_spans(rank), *session.conductor.trace.spans]

    def took(self, session: Session) -> tuple[float, int]:
        """See `Recorded`."""
        return session.stats.last_seconds, 1


class Alone:
    """A model of `LocalSteps`: fragments take turns, and their buckets are numbered consecutively.

    All time that is not a wait for an exchange counts as compute. bytes_given: the bytes that an
    exchange in every step would have been given.
    """

    def __init__(self, local: LocalSteps) -> None:
        self._local = local
        self.sessions: Sequence[Session] = [own.handle._session for own in local.fragments]
        self._waiting: Sequence[Callable[..., Any]] = [
            fragment.handle._view.waiting for fragment in local.fragments
        ]
        self.facts: dict[str, Any] = {EVERY: local.every / len(local.fragments)}

    @property
    def optimizer(self) -> str:
        """See `Recorded`."""
        return type(self._local.optimizer).__name__

    @property
    def over(self) -> int:
        """See `Recorded`."""
        return self._local.step - 1

    def ending(self, session: Session) -> int:
        """See `Recorded`. An exchange that takes several steps counts as that of the first: when
        it ends, ranks may be at different steps."""
        return self._local.fragments[self.sessions.index(session)].launched_at - 1

    @property
    def plan(self) -> Plan:
        """A plan with all fragments' buckets."""
        plans = [session.plan for session in self.sessions]
        buckets = tuple(bucket for plan in plans for bucket in plan.buckets)
        strategies = tuple(strategy for plan in plans for strategy in plan.strategies)
        return Plan(buckets, strategies, plans[0].lanes)

    @property
    def ages(self) -> list[float | None]:
        """See `Recorded`. A fragment is exchanged every few steps."""
        every = self._local.every
        found = [age for session in self.sessions for age in session.stats.ages()]
        return [None if age is None else every * age for age in found]

    def begin(self) -> None:
        """See `Recorded`."""
        self._seen = self._totals()
        self._row_at, self._row_step = perf_counter(), self._local.step
        self._before_at = self._over_at = self._row_at
        self._over_step = self._row_step

    def row(self, step: int, at: float, most_seconds: float, has_norm: bool) -> StepRow | None:
        """See `Recorded`. It ends with the last exchange, however long ago that was."""
        totals = self._totals()
        new = {name: total - self._seen[name] for name, total in totals.items()}
        steps, now = step + 1 - self._row_step, self._over_at
        if steps < 1 or not new["steps"]:
            return None
        seconds, wait = (now - self._row_at) / steps, new["exposed"] / steps
        self._seen, self._row_at, self._row_step = totals, now, step + 1
        return StepRow(
            step=step, steps=steps, at=at, seconds=micro(seconds),
            most_seconds=micro(most_seconds), compute=micro(max(0.0, seconds - wait)),
            backward=0.0, wait=micro(wait), **{kind: micro(new[kind] / steps) for kind in KINDS},
            bytes_sent=round(new["bytes_sent"] / steps),
            bytes_across=round(new["bytes_across"] / steps),
            bytes_given=round(sum(session.stats.dense_bytes for session in self.sessions)),
            skipped=round(steps * new["skipped"] / new["steps"]),
            residual_norm=short(self._norm()) if has_norm else None,
        )  # fmt: skip

    def spans(self, session: Session, rank: int) -> list[Span]:
        """See `Recorded`."""
        mine = session.stats.last_spans(rank)
        before = max((s.end_seconds for s in mine if s.kind != "wait"), default=0.0)
        alone = [s for s in mine if s.kind == "wait"]
        if before > self._before_at:
            alone.insert(0, mine[0]._replace(
                kind="compute", start_seconds=self._before_at, end_seconds=before
            ))  # fmt: skip
        first = sum(len(s.plan.buckets) for s in self.sessions[: self.sessions.index(session)])
        lanes = session.conductor.trace.spans
        return [*alone, *(span._replace(label=_from(first, span.label)) for span in lanes)]

    def took(self, session: Session) -> tuple[float, int]:
        """See `Recorded`."""
        now, step = perf_counter(), self._local.step
        seconds, steps = now - self._over_at, step - self._over_step
        self._before_at, self._over_at, self._over_step = self._over_at, now, step
        return seconds, max(1, steps)

    def _totals(self) -> dict[str, float]:
        """Returns the sums of all fragments' stats."""
        each = [session.stats.totals() for session in self.sessions]
        return {name: sum(own[name] for own in each) for name in each[0]}

    def _norm(self) -> float:
        norms = zip(self.sessions, self._waiting)
        return math.hypot(*(session.stats.residual_norm(waiting) for session, waiting in norms))


def _from(first: int, label: str) -> str:
    """Returns a label with its bucket number counted over all fragments."""
    return _BUCKET.sub(lambda found: f"bucket {first + int(found[1])}", label) if first else label

"""Rows of what steps took: means over the steps since the row before.

Recordings write them, and trainers' loggers receive their numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from torch import Tensor

from gradwire.metrics import named
from gradwire.run_folder import StepRow
from gradwire.training.session import Session
from gradwire.training.stats import KINDS


class Rows:
    """Makes rows of a session's steps, from now on: the time since the last exchange is excluded.
    A row over several plans has the gradient size of the last one. waiting: as in
    `Stats.residual_norm`."""

    def __init__(
        self, session: Session, waiting: Callable[[str, Tensor], Tensor] | None = None
    ) -> None:
        self._session, self._waiting = session, waiting
        self._seen = session.stats.totals()
        self.forget_now()

    def forget_now(self) -> None:
        """Exclude the time since the last exchange from all steps, as between two trainings."""
        self._session.stats.forget_now()

    def next(
        self, step: int, at: float = 0.0, most_seconds: float = 0.0, *, has_norm: bool = True
    ) -> StepRow | None:
        """Returns the row that ends with a step; None if there was no step since the last row.
        has_norm: compute the residuals' norm, which reads all of their memory."""
        stats = self._session.stats
        totals = stats.totals()
        new = {name: total - self._seen[name] for name, total in totals.items()}
        if not (steps := new["steps"]):
            return None
        self._seen = totals
        mean = {name: total / steps for name, total in new.items()}
        parts = {name: micro(mean[name]) for name in ("compute", "backward", *KINDS)}
        return StepRow(
            step=step, steps=int(steps), at=at,
            seconds=micro(mean["compute"] + mean["backward"] + mean["exposed"]),
            most_seconds=micro(most_seconds), wait=micro(mean["exposed"]), **parts,
            bytes_sent=round(mean["bytes_sent"]), bytes_across=round(mean["bytes_across"]),
            bytes_given=round(stats.dense_bytes + mean["row_bytes"]),
            skipped=int(new["skipped"]),
            residual_norm=short(stats.residual_norm(self._waiting)) if has_norm else None,
        )  # fmt: skip


def numbers(row: StepRow) -> dict[str, float]:
    """Returns a row's numbers by the names that loggers show, gradwire/step_seconds and so on."""
    return {f"gradwire/{name}": float(x) for name, x in named(row).items()}


def micro(seconds: float) -> float:
    """Returns seconds rounded to microseconds, which are short to write."""
    return round(seconds, 6)


def short(norm: float) -> float | None:
    """Returns a norm rounded to six digits; None if it is not finite."""
    return float(f"{norm:.6g}") if math.isfinite(norm) else None

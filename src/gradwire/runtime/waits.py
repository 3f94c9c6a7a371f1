"""Waits for messages between pairs of ranks, and keeps the first error."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from time import monotonic
from typing import Any, NamedTuple

from torch import Tensor

_GRACE_SECONDS = 1.0  # for all operations in progress, once one failed


class Part(NamedTuple):
    """One message of an exchange: the peer's distance, the data, the peer's rank, and the plane
    that it takes (`planes`)."""

    distance: int
    data: Tensor
    rank: int
    plane: int | None = None


class Waits:
    """Waits for operations in progress. Once one has failed, all others have a second left."""

    def __init__(self) -> None:
        self.errors: list[Exception] = []
        self._silent: list[int] = []
        self._deadline: float | None = None

    def begun(self, call: Callable[[Part], Any], part: Part) -> Any:
        """Starts an operation. Returns it, or None if it cannot start."""
        with self._remembered(part):
            return call(part)

    def finish(self, part: Part, work: Any) -> None:
        """Waits for an operation, and keeps its error."""
        if work is None:
            return
        if self.errors and self._deadline is None:
            self._deadline = monotonic() + _GRACE_SECONDS
        with self._remembered(part):
            if self._deadline is None:
                work.wait()
            else:
                work.wait(timedelta(seconds=max(0.01, self._deadline - monotonic())))

    def refuse(self) -> None:
        """Raises the first error, if there is one; `silent` are the ranks with which one came."""
        if self.errors:
            self.errors[0].silent = self._silent  # type: ignore[attr-defined]
            # Not kept here: its frames hold this object, and messages under way, which keep
            # connections open by which others wait for this rank.
            raise self.errors.pop(0)

    @contextmanager
    def _remembered(self, part: Part) -> Iterator[None]:
        try:
            yield
        except (RuntimeError, ConnectionError) as error:
            self.errors.append(error)
            if part.rank not in self._silent:
                self._silent.append(part.rank)

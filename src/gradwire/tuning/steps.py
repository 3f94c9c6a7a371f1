"""Runs code at the beginning of every exchange, on all ranks at the same one."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from time import perf_counter

from gradwire.errors import PlanError
from gradwire.training.session import Session

Life = Generator[None, None, None]


class OnSteps:
    """Runs a generator from one `yield` to the next when a step's first gradient is ready.

    It counts exchanges, not calls of forward. So ranks stay at the same step whatever they do
    between: evaluation, accumulation, `synchronize` on a rank without a batch, `torch.compile`.
    `seconds` is the time between two exchanges, without the generator's own work.
    """

    def __init__(self, session: Session, life: Callable[[OnSteps], Life]) -> None:
        self._session, self._began, self.seconds = session, 0.0, 0.0
        self._life = life(self)
        session.before_step = self._before_step

    def close(self) -> None:
        """Stops running the generator."""
        if self._session.before_step == self._before_step:
            self._session.before_step = None

    def live(self, life: Life) -> None:
        """Runs another generator from the next step on."""
        self._life = life

    def _before_step(self) -> None:
        self.seconds = perf_counter() - self._began
        try:
            next(self._life, None)
        except PlanError:  # on all ranks (`from_first`, `same_plan`)
            self.close()  # the plan in force stays
            raise
        except BaseException as error:  # perhaps on this rank alone: others may be amid a move
            self.close()
            self._session.fail(error)
            raise
        self._began = perf_counter()


def for_steps(count: int) -> Iterator[None]:
    """Waits for so many steps."""
    for _ in range(count):
        yield

"""Something that happens at the beginning of every exchange, on all ranks at the same one."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from time import perf_counter

from gradwire.training.session import Session

Life = Generator[None, None, None]


class OnSteps:
    """Runs a generator from one `yield` to the next when a step's first gradient is there.

    Exchanges, not calls of forward: evaluations, accumulation, a rank without a batch that calls
    `synchronize`, and what `torch.compile` makes of forward, change nothing about which ranks are
    where. `seconds` is what lies between two of them, without what the generator did.
    """

    def __init__(self, session: Session, life: Callable[[OnSteps], Life]) -> None:
        self._session, self._began, self.seconds = session, 0.0, 0.0
        self._life = life(self)
        session.before_step = self._before_step

    def close(self) -> None:
        """No more."""
        if self._session.before_step == self._before_step:
            self._session.before_step = None

    def live(self, life: Life) -> None:
        """Something else from the next step on."""
        self._life = life

    def _before_step(self) -> None:
        self.seconds = perf_counter() - self._began
        try:
            next(self._life, None)
        except BaseException:
            self.close()  # the plan in force stays
            raise
        self._began = perf_counter()


def for_steps(count: int) -> Iterator[None]:
    """So many steps in which nothing happens."""
    for _ in range(count):
        yield

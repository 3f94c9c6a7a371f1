"""plan="auto": watch, measure, plan, race, adopt; and again when the job has changed.

    step 0 … ─ as plain fp32 ─┬─ watched ─┬ measured ┬─ plans race ─┬─ the winner ──── drift? ─┐
                              └───────────┴──────────┴──────────────┴────────────◄─────────────┘

All of it happens at the beginning of steps, in the thread that calls forward, and on all ranks at
the same step: decisions are made of numbers that all ranks share.
"""

from __future__ import annotations

import sys
from collections.abc import Generator, Iterator, Sequence
from statistics import median
from time import perf_counter
from typing import Any

import torch
from torch import Tensor, nn

from gradwire.moves import AllGather
from gradwire.plan import Plan
from gradwire.planner.choose import Candidate, Choice, choose
from gradwire.planner.profile import Profile
from gradwire.training.attach import Handle
from gradwire.tuning.profiling import STRATEGIES, measure
from gradwire.tuning.race import Race
from gradwire.tuning.recorder import Recorder

_WARM_UP, _WATCHED = 3, 7  # steps
_LOOK_EVERY = 50  # steps between looks at drift
_DRIFT = 1.3  # times as long as when the plan was adopted


class Tuner:
    """Drives one attached model from plan to plan. Made by `attach(…, "auto")`."""

    def __init__(
        self, module: nn.Module, handle: Handle, strategies: Sequence[str] = STRATEGIES,
        *, races: bool = True,
    ) -> None:  # fmt: skip
        self._module, self._handle, self._session = module, handle, handle._session
        self._strategies, self._races = tuple(strategies), races
        self.profile: Profile | None = None
        self.choice: Choice | None = None
        self.raced: dict[str, list[float]] = {}
        self.is_settled = False
        self._seen, self._step_seconds, self._began = -1, 0.0, 0.0
        self._life = self._lives()
        self._hook: Any = module.register_forward_pre_hook(self._on_forward)

    def close(self) -> None:
        """Stop tuning; the plan in force stays."""
        self._hook.remove()

    def _on_forward(self, module: nn.Module, inputs: Any) -> None:
        session = self._session
        if not torch.is_grad_enabled() or session.step == self._seen:
            return  # an evaluation, or one more forward before the step's exchange
        now = perf_counter()
        self._step_seconds, self._seen = now - self._began, session.step
        next(self._life)
        self._began = perf_counter()  # tuning is no part of a step

    def _lives(self) -> Iterator[None]:
        """One step each."""
        while True:
            yield from self._steps(_WARM_UP)
            yield from self._watch()
            yield from self._decide()
            yield from self._until_drift()

    def _steps(self, count: int) -> Iterator[None]:
        for _ in range(count):
            yield

    def _watch(self) -> Iterator[None]:
        recorder = Recorder(self._module, self._session)
        yield from self._steps(_WATCHED)
        recorder.close()
        self.profile = measure(self._session, recorder, self._strategies, self._say)

    def _decide(self) -> Iterator[None]:
        assert self.profile is not None
        self.choice = choose(self.profile, lanes=range(1, len(self._session.performers) + 1))
        best, finalists = self.choice.best, self.choice.finalists
        if self._races and len(finalists) > 1 and not self.choice.is_enough:
            best = yield from self._race(finalists)
        self._adopt(best.plan)
        self._say(f"adopted {best.plan.main_strategy}, {len(best.plan.buckets)} buckets")
        self.is_settled = True

    def _race(self, finalists: Sequence[Candidate]) -> Generator[None, None, Candidate]:
        assert self.choice is not None
        baselines = sorted(self.choice.baselines.values(), key=lambda c: c.seconds)
        digests = [c.plan.digest() for c in finalists]
        race = Race(len(finalists), digests.index(baselines[0].plan.digest()))
        self._say(f"{len(finalists)} plans race")
        while not race.is_over:
            while not race.is_round_over:
                self._adopt(finalists[race.plan].plan)
                yield
                race.took(self._step_seconds)
            race.learn(self._exchanged(race.own_times()))
        self.raced = {str(c.plan.main_strategy): race.seconds[i] for i, c in enumerate(finalists)}
        return finalists[race.winner()]

    def _until_drift(self) -> Iterator[None]:
        yield from self._steps(_WARM_UP)
        usual = None
        while True:
            mine = list[float]()
            for _ in range(_LOOK_EVERY):
                yield
                mine.append(self._step_seconds)
            slowest = max(own[0] for own in self._exchanged([median(mine)]))
            usual = usual or slowest
            if not 1 / _DRIFT < slowest / usual < _DRIFT:
                self._say(f"steps take {slowest:.3g} s, and took {usual:.3g} s: planning again")
                return

    def _adopt(self, plan: Plan) -> None:
        if plan.digest() != self._session.plan.digest():
            self._handle.adopt(plan)

    def _exchanged(self, numbers: Sequence[float]) -> list[list[float]]:
        mine = torch.tensor(numbers, dtype=torch.float64, device=self._session.device)
        arrived = self._session.performers[0].perform(AllGather(mine), "the race")
        assert isinstance(arrived, Tensor)
        rows: list[list[float]] = arrived.cpu().tolist()
        return rows

    def _say(self, line: str) -> None:
        if self._session.rank == 0:
            print(f"gradwire: {line}", file=sys.stderr, flush=True)

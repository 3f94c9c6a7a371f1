"""Plans compete on real steps; the one that wins beyond noise is adopted.

turn      plan A ▂▂▇▇▇  plan B ▂▂▇▇▇  plan C ▂▂▇▇▇      ▂ not counted, ▇ counted
round     every plan has a turn; the mean of a step's times over all ranks counts
halving   after each pair of rounds the slower half is out, never the baseline

Ranks wait for each other in every step, so over many steps all take the same time. A rank that
ends one step late begins the next one late: the means add up to the time that training takes. The
slowest rank's times would add up to more, the more so the more ranks share a processor.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from statistics import mean, median

from gradwire.errors import PlanError

_UNCOUNTED, _COUNTED = 2, 4  # steps of a turn
_LASTS_SECONDS = 10.0
_RESAMPLES = 400
_CONFIDENCE = 0.9


@dataclass
class Race:
    """A race of so many plans, by number; `baselines` are the plans to beat. The same on all
    ranks.

    rounds: the least and the most rounds; between them, the race lasts for a number of counted
    seconds: short steps are noisy, and cheap to repeat.

    In every step `plan` says whose turn it is, and `took` gets the seconds that the step took on
    this rank. When `is_round_over`, ranks exchange `own_times` and all `learn` them. Raises
    PlanError without a baseline.
    """

    plans: int
    baselines: tuple[int, ...] = (0,)
    rounds: tuple[int, int] = (6, 20)

    def __post_init__(self) -> None:
        if not self.baselines:
            raise PlanError(
                f"a race needs a plan to beat; got {self.plans} plans and no baseline. Pass the "
                "numbers of the baselines, such as (0,)."
            )
        self._left = list(range(self.plans))
        self._rounds = 0
        self._mine: dict[int, list[float]] = {number: [] for number in self._left}
        self._turns = self._turns_of_a_round()
        self.seconds: dict[int, list[float]] = {number: [] for number in self._left}

    def _turns_of_a_round(self) -> list[tuple[int, bool]]:
        """Returns, for each step of a round, the plan's number and whether the step counts; every
        other round runs in reverse order."""
        order = self._left if self._rounds % 2 == 0 else self._left[::-1]
        steps = [False] * _UNCOUNTED + [True] * _COUNTED
        return [(number, counts) for number in order for counts in steps]

    @property
    def plan(self) -> int:
        """The number of the plan whose turn the next step is."""
        return self._turns[0][0]

    @property
    def is_round_over(self) -> bool:
        """Whether every plan that is still racing has had its turn."""
        return not self._turns

    @property
    def is_over(self) -> bool:
        """Whether racing on would tell no more."""
        only_baselines = self._rounds > 0 and set(self._left) <= set(self.baselines)
        fewest, most = self.rounds
        spent = sum(map(sum, self.seconds.values()))
        is_long = self._rounds >= most or (self._rounds >= fewest and spent >= _LASTS_SECONDS)
        return self.plans == 1 or only_baselines or is_long

    def took(self, seconds: float) -> None:
        """Records the seconds that the step took on this rank, and ends its turn."""
        number, counts = self._turns.pop(0)
        if counts:
            self._mine[number].append(seconds)

    def own_times(self) -> list[float]:
        """Returns this rank's times of the round, by ascending plan number."""
        return [seconds for number in sorted(self._left) for seconds in self._mine[number]]

    def learn(self, times: Sequence[Sequence[float]]) -> None:
        """Takes every rank's `own_times`, of which the mean counts, step by step."""
        means = iter([mean(of_ranks) for of_ranks in zip(*times)])
        for number in sorted(self._left):
            self.seconds[number] += [next(means) for _ in self._mine[number]]
            self._mine[number] = []
        self._rounds += 1
        if self._rounds % 2 == 0:
            self._halve()
        self._turns = [] if self.is_over else self._turns_of_a_round()

    def _halve(self) -> None:
        order = sorted(self._left, key=lambda number: median(self.seconds[number]))
        kept = set(order[: max(2, (len(order) + 1) // 2)]) | set(self.baselines)
        self._left = [number for number in self._left if number in kept]

    def paced(self, number: int) -> list[float]:
        """Returns a plan's seconds, as if every round had been as fast as the race was. A plan
        that is out early had few rounds: a time when all were slow is not held against it."""
        usual = {left: median(self.seconds[left]) for left in self._left}
        rounds = zip(*[[median(t) / usual[n] for t in _turns(self.seconds[n])] for n in usual])
        own = zip(_turns(self.seconds[number]), map(median, rounds))
        return [seconds / pace for turn, pace in own for seconds in turn]

    def winner(self) -> int:
        """Returns the fastest plan, if it beats the faster baseline beyond noise; else that
        baseline."""
        if self.plans == 1:
            return 0
        fastest = min(self._left, key=lambda number: median(self.seconds[number]))
        baseline = min(self.baselines, key=lambda number: median(self.seconds[number]))
        if fastest in self.baselines:
            return fastest
        _, high = ratio_interval(self.seconds[fastest], self.seconds[baseline])
        return fastest if high < 1.0 else baseline


def ratio_interval(one: Sequence[float], other: Sequence[float]) -> tuple[float, float]:
    """Returns the interval in which the ratio of medians lies. Resamples whole turns, as the
    steps of one turn share disturbances. Deterministic."""
    dice = random.Random(0)
    ratios = sorted(_resampled(one, dice) / _resampled(other, dice) for _ in range(_RESAMPLES))
    cut = int(_RESAMPLES * (1 - _CONFIDENCE) / 2)
    return ratios[cut], ratios[-1 - cut]


def _resampled(steps: Sequence[float], dice: random.Random) -> float:
    turns = _turns(steps)
    return median(chain(*dice.choices(turns, k=len(turns))))


def _turns(steps: Sequence[float]) -> list[Sequence[float]]:
    return [steps[i : i + _COUNTED] for i in range(0, len(steps), _COUNTED)]

"""Which member sums next: the one that was fastest where it was tried, elsewhere the cheapest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import mean, median

_TURNS = 5  # of each member in a race: the median counts
_LIKELY = 2.0  # times the cheapest price: as far as prices may be wrong
_FINAL_TURNS = 10
_CLOSE = 1.3  # times the fastest: as far as a median of five may be wrong
_MARGIN = 0.9  # a change must promise this much, or it would go to and fro


class Chooser:
    """Chooses one bucket's collective. All but `took` and `times` is the same on all ranks.

    prices ──► one is much cheaper ──────────────────────────────────────────► the choice
           └─► several are likely ──► race: five turns each, on real steps ──► the fastest, or
                                      ten more of those that are close         who wins the final

    Prices know bytes and moves; what local work costs on these machines only a race tells. What
    members took, on the slowest rank, corrects their prices from then on.
    """

    def __init__(self) -> None:
        self._choice: str | None = None
        self._prices: Mapping[str, float] = {}
        self._corrections: dict[str, float] = {}  # seconds measured, over the price
        self._turns: list[str] = []
        self._took: dict[str, list[float]] = {}
        self._is_final = False

    def price(self, prices: Mapping[str, float], network_is_known: bool) -> None:
        """Seconds, by member; of equals the first is preferred. Nothing changes amid a race."""
        if self._turns or self._took:
            return
        self._prices = prices
        # Of whom nothing is known the best is hoped: it runs once, and then more is known.
        hope = min(1.0, mean(self._corrections.values())) if self._corrections else 1.0
        seconds = {m: p * self._corrections.get(m, hope) for m, p in prices.items()}
        best = min(seconds, key=seconds.__getitem__)
        known = self._corrections
        likely = [
            m for m in prices
            if seconds[m] <= _LIKELY * seconds[best] or (m == self._choice and m in known)
        ]  # fmt: skip
        if network_is_known and len(likely) > 1 and not known.keys() >= set(likely):
            self._turns = likely * _TURNS
        elif self._choice is None or seconds[best] <= _MARGIN * seconds[self._choice]:
            self._choice = best

    @property
    def member(self) -> str:
        """Who sums in this step."""
        if self._turns:
            return self._turns[0]
        assert self._choice is not None, "price comes first"
        return self._choice

    def took(self, seconds: float) -> None:
        """What the step's member took here."""
        if self._turns:
            self._took.setdefault(self._turns.pop(0), []).append(seconds)

    @property
    def race_is_over(self) -> bool:
        """Whether ranks must tell each other their times before the next step; or a part of it."""
        return bool(self._took) and not self._turns

    def times(self) -> list[int]:
        """Nanoseconds that each member took in a race that is over."""
        return [int(1e9 * median(seconds)) for seconds in self._took.values()]

    def learn(self, times: Sequence[Sequence[int]]) -> None:
        """What every rank's `times` were."""
        seconds = {m: 1e-9 * max(of_ranks) for m, of_ranks in zip(self._took, zip(*times))}
        self._choice = min(seconds, key=seconds.__getitem__)
        self._corrections |= {m: seconds[m] / self._prices[m] for m in seconds}
        self._took = {}
        close = [m for m in seconds if seconds[m] <= _CLOSE * seconds[self._choice]]
        self._is_final = len(close) > 1 and not self._is_final
        self._turns = close * _FINAL_TURNS if self._is_final else []

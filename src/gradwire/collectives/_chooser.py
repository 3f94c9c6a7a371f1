"""Chooses the member that sums next: the fastest that was tried, or else the cheapest by price."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import mean, median

_TURNS = 5  # steps of each member in a race: their median counts
_LIKELY = 2.0  # times the cheapest price: prices may be wrong by so much
_FINAL_TURNS = 10
_CLOSE = 1.3  # times the fastest: a median of five may be wrong by so much
_MARGIN = 0.9  # a new choice must take at most this part of the time, or choices would flip


class Chooser:
    """Chooses one bucket's collective. Only `took` and `times` differ between ranks.

    prices ──► one is much cheaper ──────────────────────────────────────────► the choice
           └─► several are likely ──► race: five turns each, on real steps ──► the fastest, or
                                      ten more of those that are close         the final's winner

    Prices know bytes and moves; only a race shows what local work costs on these machines. The
    times that members took, on the slowest rank, correct their prices from then on.
    """

    def __init__(self) -> None:
        self._choice: str | None = None
        self._prices: Mapping[str, float] = {}
        self._corrections: dict[str, float] = {}  # seconds measured, over the price
        self._turns: list[str] = []
        self._took: dict[str, list[float]] = {}
        self._is_final = False

    def price(self, prices: Mapping[str, float], network_is_known: bool) -> None:
        """Set prices: seconds by member; the first of equals is preferred. Ignored in a race."""
        if self._turns or self._took:
            return
        self._prices = prices
        # A member that never ran gets an optimistic correction, so that it is tried once.
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
        """The member that sums in this step."""
        if self._turns:
            return self._turns[0]
        assert self._choice is not None, "price comes first"
        return self._choice

    def took(self, seconds: float) -> None:
        """Record the time that the step's member took on this rank."""
        if self._turns:
            self._took.setdefault(self._turns.pop(0), []).append(seconds)

    @property
    def race_is_over(self) -> bool:
        """Whether a race or its final ended, so that ranks must exchange times before a step."""
        return bool(self._took) and not self._turns

    def times(self) -> list[int]:
        """Returns the median nanoseconds of each member in a race that is over."""
        return [int(1e9 * median(seconds)) for seconds in self._took.values()]

    def learn(self, times: Sequence[Sequence[int]]) -> None:
        """Decide a race by every rank's `times`, and correct the prices."""
        seconds = {m: 1e-9 * max(of_ranks) for m, of_ranks in zip(self._took, zip(*times))}
        self._choice = min(seconds, key=seconds.__getitem__)
        self._corrections |= {m: seconds[m] / self._prices[m] for m in seconds}
        self._took = {}
        close = [m for m in seconds if seconds[m] <= _CLOSE * seconds[self._choice]]
        self._is_final = len(close) > 1 and not self._is_final
        self._turns = close * _FINAL_TURNS if self._is_final else []

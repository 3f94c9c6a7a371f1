"""The twin of csrc/planner/link_paths and link_bounds: lower bounds on what is to come.

Clocks add up and wait for one another, so times are maxima of sums. `Bounds` has fronts of them,
exact but for thinning; `Paths` has one weighted mean of them. Sources: the C++ headers.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import exp, inf, log1p
from typing import NamedTuple, TypeAlias

from gradwire.kernels.lanes import CPU, GPU, Clocks, Group, Problem

LEAST_SLACK = 2e-5  # of the time
LATEST = 8  # completions that others are compared with before any sorting
MEMORY, MOST_STEP = 0.8, 3.0  # of lengths, from round to round; of a weight's logarithm
GAIN, PATIENCE, SHORTER = 1e-5, 8, 0.7  # bounds that rise less; rounds of them; steps after that

Tail: TypeAlias = tuple[float, float, float]


class Mean(NamedTuple):
    """Weights of paths that are with backward, and of those on the link; least mean to come."""

    delay: float = 0.0
    link: float = 0.0
    rest: float = 0.0


@dataclass
class Turns:
    """At a stop: from backward to the link, from there to the worker, from it to the link."""

    direct: float = 0.0
    away: float = 0.0
    back: float = 0.0


class Paths:
    """A lower bound on what is to come, of plans that cut at stops alone, by paths.

    A path begins with backward, turns to the link at some tensor, or to the cpu worker and from
    there to the link, and gets longer with each group that it passes. A plan ends after any
    weighted mean of its paths; with fixed weights the least mean of all plans is found from stop
    to stop, backwards. The weights are learned in a game of paths against plans, in rounds
    (Freund and Schapire 1999, "Adaptive game playing using multiplicative weights").
    """

    def __init__(self, p: Problem, stops: Sequence[int]) -> None:
        self.p, self.stops, self.last = p, stops, len(stops) - 1
        self.costs = [list(self._costs(stop)) for stop in range(self.last)]
        away = 0.0 if any(option.lane == CPU for option in p.options) else -inf
        self.logs = [Turns(0.0, away, 0.0) for _ in stops]
        self.shares, self.lengths = ([Turns() for _ in stops] for _ in range(2))
        self.newest = [0.0 for _ in stops]
        self.now = [Mean() for _ in stops]
        self.best = [*self.now[:-1], Mean(0.0, 1.0)]
        self.before = [0.0 for _ in stops]
        self.chosen = [(0, 0, Group(0, 0.0, 0.0, 0.0, 0.0)) for _ in stops]
        self.bound, self.step, self.idle = 0.0, 0.5, 0

    def _costs(self, stop: int) -> Iterator[tuple[int, int, Group]]:
        """All groups that begin at a stop, the stops where they end, their options."""
        first = self.stops[stop]
        for option in range(len(self.p.options)):
            for end in range(stop + 1, self.last + 1):
                if self.stops[end] - first > self.p.max_span:
                    break
                yield end, option, self.p.group(first, self.stops[end], option)

    def begin_like(self, other: Paths) -> None:
        """Begins with what another has learned of the same problem, by fewer stops."""
        at = 1
        for stop in range(1, self.last + 1):
            while other.stops[at] < self.stops[stop]:
                at += 1
            known = other.logs[at]
            self.logs[stop] = Turns(known.direct, known.away, known.back)

    def __call__(self, c: Clocks, stop: int) -> float:
        """What a plan with these clocks takes at least."""
        at = self.best[stop]
        begin = self.p.ready[min(self.stops[stop], self.p.n - 1)] + c.delay
        cpu, link = max(c.cpu, begin), max(c.link, begin)
        return at.delay * c.delay + (1 - at.delay - at.link) * cpu + at.link * link + at.rest

    def after(self, x: Tail, stop: int) -> float:
        """What a plan with this completion takes at least; only after `look_back`."""
        at = self.best[stop]
        here = self.before[stop] + at.delay * x[0]
        return here + (1 - at.delay - at.link) * x[1] + at.link * x[2]

    def play(self, goal: float) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """One round; ends and options of the plan of least mean. goal: the time of a plan."""
        self._weigh()
        self._minimise()
        found = self.now[0].rest
        self.idle = 0 if found > self.bound * (1 + GAIN) else self.idle + 1
        if found > self.bound:
            self.bound, self.best = found, [*self.now]
        elif self.idle >= PATIENCE:
            self.step, self.idle = self.step * SHORTER, 0
        if found == inf:
            return (), ()
        plan = list(self._plan())
        self._lengthen()
        self._learn(goal - found)
        ends, options = zip(*((self.stops[end], option) for _, end, option, _ in plan))
        return ends, options

    def _plan(self) -> Iterator[tuple[int, int, int, Group]]:
        stop = 0
        while stop < self.last:
            yield (stop, *self.chosen[stop])
            stop = self.chosen[stop][0]

    def _weigh(self) -> None:
        """The shares of turns in all paths, and where the paths are between them."""
        back = away = every = -inf
        inner = range(1, self.last + 1)
        for stop in reversed(inner):
            self.shares[stop].away = self.logs[stop].away + back
            back = _log_sum(back, self.logs[stop].back)
        for stop in inner:
            log, share = self.logs[stop], self.shares[stop]
            share.back = log.back + away
            away = _log_sum(away, log.away)
            self.newest[stop] = 0.0 if away == -inf else exp(log.away - away)
            every = _log_sum(every, _log_sum(log.direct, share.back))
        delay = link = 0.0
        for stop in reversed(inner):
            share = self.shares[stop]
            share.direct = exp(self.logs[stop].direct - every)
            share.away, share.back = exp(share.away - every), exp(share.back - every)
            self.now[stop] = Mean(delay)
            delay += share.direct + share.away
        for stop in inner:
            link += self.shares[stop].direct + self.shares[stop].back
            known = self.now[stop].delay
            self.now[stop] = Mean(known, min(link, 1 - known))
        self.now[0], self.now[self.last] = Mean(1.0), Mean(0.0, 1.0)

    def _minimise(self) -> None:
        """The least mean of all plans."""
        for stop in reversed(range(self.last)):
            at, least = self.now[stop], inf
            for end, option, group in self.costs[stop]:
                total = _mean(group, at, self.now[end]) + self.now[end].rest
                if total < least:
                    least, self.chosen[stop] = total, (end, option, group)
            self.now[stop] = Mean(at.delay, at.link, least)

    def look_back(self) -> None:
        """The least mean of all that comes before a stop."""
        self.before = [0.0] + [inf for _ in range(self.last)]
        for stop in range(self.last):
            for end, _, group in self.costs[stop]:
                total = self.before[stop] + _mean(group, self.best[stop], self.best[end])
                self.before[end] = min(self.before[end], total)

    def _lengthen(self) -> None:
        """Adds how much longer than the others the plan makes paths that turn at a stop."""
        more = [Turns() for _ in self.stops]
        for stop, end, _, g in self._plan():
            cpu = g.encode if g.lane == CPU else 0.0
            more[stop].away -= g.ready + (g.encode if g.lane == GPU else 0.0)
            more[end].away += g.ready + cpu
            more[stop].back -= cpu
            more[end].back += g.send
        away = back = 0.0
        for stop in reversed(range(1, self.last + 1)):
            if stop < self.last:
                away += more[stop].away
                back += more[stop].back
            length = self.lengths[stop]
            length.away = away + MEMORY * length.away
            length.back = back + MEMORY * length.back
            length.direct = length.away + length.back

    def _learn(self, missing: float) -> None:
        """Changes weights, the more the more is missing to a known time (Polyak's rule)."""
        middle = spread = most = 0.0
        pairs = list(zip(self.shares, self.lengths))[1:]
        for share, length in pairs:
            middle += (
                share.direct * length.direct + share.away * length.away + share.back * length.back
            )
        mean = variance = 0.0  # of the lengths of paths that turned to the worker
        for (share, length), part in zip(pairs, self.newest[1:]):
            direct, back = length.direct - middle, mean + length.back - middle
            spread += share.direct * direct * direct + share.back * (back * back + variance)
            most = max(most, abs(direct))
            off = length.away - mean
            mean += part * off
            variance = (1 - part) * (variance + part * off * off)
        if not most > 0:
            return
        step = MOST_STEP / most
        if self.step * missing < step * spread:
            step = self.step * missing / spread
        for log, length in zip(self.logs[1:], self.lengths[1:]):
            log.direct += step * length.direct
            log.away += step * length.away
            log.back += step * length.back


def _log_sum(x: float, y: float) -> float:
    """log(e^x + e^y)."""
    low, high = min(x, y), max(x, y)
    return high if low == -inf else high + log1p(exp(low - high))


def _mean(g: Group, at: Mean, to: Mean) -> float:
    """Of paths through one group."""
    total = g.ready * (at.delay - to.delay) + to.link * g.send + g.decode
    if g.lane == GPU:
        return total + at.delay * g.encode
    return total + (1 - at.link - to.delay) * g.encode if g.lane == CPU else total


class Bounds:
    """Lower bounds on what is to come, of plans that cut at stops alone and end before a limit.

    Times add up and wait for one another, so a completion (groups and options of all tensors from
    a stop on) ends at a maximum of sums: of delay + c0, cpu + c1 and link + c2. Of all completions
    of a stop the front of their c is kept: the least of these maxima is the best time of plans
    that get there with given clocks. Fronts longer than `longest` are thinned, which lowers it;
    then `Paths` may have a higher bound.
    """

    def __init__(
        self, p: Problem, stops: Sequence[int], paths: Paths, limit: float, longest: int
    ) -> None:
        self.p, self.stops, self.paths = p, stops, paths
        self.limit, self.longest = limit, longest
        self.least_slack = self.slack = max(LEAST_SLACK * limit, sys.float_info.min)
        done = (p.ready[-1], 0.0, 0.0)  # the link ends last
        self.fronts: list[list[Tail]] = [[] for _ in stops[1:]] + [[done]]
        self.least: list[Tail] = [done for _ in stops]
        for stop in reversed(range(len(stops) - 1)):
            found = [y for _, y in sorted(self._tails(stop))]
            self.fronts[stop] = self._thin(found)
            self.least[stop] = _united((inf,) * 3, *self.fronts[stop])

    def __call__(self, c: Clocks, stop: int) -> float:
        """What a plan with these clocks takes at least; the limit or more: not less than it."""
        known = self.paths(c, stop)
        if known >= self.limit:
            return known
        ends = (max(c.delay + x[0], c.cpu + x[1], c.link + x[2]) for x in self.fronts[stop])
        return max(known, min(ends, default=inf))

    def _tails(self, stop: int) -> Iterator[tuple[float, Tail]]:
        """All completions of a stop that may end before the limit, but for many useless ones."""
        first, count = self.stops[stop], 0
        latest: list[Tail] = [(inf,) * 3] * LATEST  # many that follow are nowhere below one
        for following in range(stop + 1, len(self.stops)):
            if self.stops[following] - first > self.p.max_span:
                break
            for option in range(len(self.p.options)):
                group = self.p.group(first, self.stops[following], option)
                least = self.paths.after(_before(group, self.least[following]), stop)
                if least >= self.limit:
                    continue
                for x in self.fronts[following]:
                    y = _before(group, x)
                    end = self.paths.after(y, stop)
                    if end < self.limit and not any(at_most(z, y, 0.0) for z in latest):
                        latest[count % LATEST] = y
                        count += 1
                        yield end, y

    def _thin(self, found: Sequence[Tail]) -> list[Tail]:
        front = self._thinned(found, 0.0)
        if front is None:
            self.slack = max(self.slack / 2, self.least_slack)
            while (front := self._thinned(found, self.slack)) is None:
                self.slack *= 1.5
        return front

    def _thinned(self, found: Sequence[Tail], slack: float) -> list[Tail] | None:
        """What is above another by slack at most is united with it; None: too many are left."""
        front: list[Tail] = []
        for y in found:
            near = next((i for i, x in enumerate(front) if at_most(x, y, slack)), None)
            if near is not None:
                front[near] = _united(front[near], y)
            elif len(front) == self.longest:
                return None
            else:
                front.append(y)
        return front


def _before(g: Group, x: Tail) -> Tail:
    """A group before a completion."""
    delay, link = g.encode if g.lane == GPU else 0.0, g.send + x[2]
    cpu = g.encode + max(x[1], link) if g.lane == CPU else x[1]
    sent = g.ready + (cpu if g.lane == CPU else delay + link)
    return g.decode + max(delay + x[0], sent), g.decode + cpu, g.decode + link


def _united(*tails: Tail) -> Tail:
    a, b, c = map(min, zip(*tails))
    return a, b, c


def at_most(x: Sequence[float], y: Sequence[float], slack: float) -> bool:
    """Whether nothing in x is above what is in y by more than slack."""
    return all(a <= b + slack for a, b in zip(x, y))

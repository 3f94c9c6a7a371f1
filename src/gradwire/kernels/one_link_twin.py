"""The twin of csrc/planner: what `one_link.plan_link` does, in plain Python, to the same bits."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import add
from typing import NamedTuple, TypeAlias

from gradwire.kernels.lanes import CPU, GPU, Clocks, Group, Problem

INFINITY = float("inf")
ROUNDING = 1e-12  # gains below this part of the time are none
COARSE_STOPS, FEW = 48, 64  # stops of the first search among many tensors; so many need none
COARSE_LABELS, FIRST_WIDTH, WIDENING = 32, 8, 4
LEAST_FRONT, LONGEST_FRONT = 16, 256
LEAST_SLACK = 2e-5  # of the time
PARTS = 4  # shares of lanes in a mean are multiples of a quarter

Tail: TypeAlias = tuple[float, float, float, float]
Key: TypeAlias = tuple[float, ...]


class Bounds:
    """Lower bounds on what is to come, of plans that cut at stops alone and end before a limit.

    Times add up and wait for one another, so a completion (groups and options of all tensors from
    a stop on) ends at a maximum of sums: of delay + c0, link + c1, delay + cpu_debt + c2, and
    ready[-1] + delay + gpu_debt + c3, among others. Of all completions of a stop the front of
    their c is kept: the least of these maxima bounds the time of every plan that gets there with
    given clocks. Waits for the cpu worker and for other groups' decodes are left out, and fronts
    longer than `longest` are thinned: both only lower the bound.

    No lane ends after the plan, so the plan ends after any mean of theirs: for some weights of the
    lanes the least sum of weighted loads is a second bound, where work is shared between lanes.
    """

    def __init__(self, p: Problem, stops: Sequence[int], limit: float, longest: int) -> None:
        self.p, self.stops, self.limit, self.longest = p, stops, limit, longest
        self.least_slack = self.slack = max(LEAST_SLACK * limit, sys.float_info.min)
        self.shares = list(_shares_of(p))
        self.loads = [[INFINITY for _ in self.shares] for _ in stops[1:]]
        self.loads.append([0.0 for _ in self.shares])
        nothing = (p.ready[-1], 0.0, -INFINITY, 0.0)
        self.fronts: list[list[Tail]] = [[] for _ in stops[1:]] + [[nothing]]
        self.least: list[Tail] = [nothing for _ in stops]
        for stop in reversed(range(len(stops) - 1)):
            self.loads[stop] = self._loads(stop)
            found = sorted(self._tails(stop), key=_weight)
            self.fronts[stop] = self._thin(found)
            self.least[stop] = _united((INFINITY,) * 4, *self.fronts[stop])

    def __call__(self, c: Clocks, stop: int) -> float:
        """What a plan with these clocks takes at least; infinity: not less than the limit."""
        last, known = self.p.ready[-1], c.end(self.p.ready[-1])
        if stop + 1 == len(self.stops):
            return known
        link = max(c.link, self.p.ready[self.stops[stop]] + c.delay)
        debt, compute = c.delay + c.cpu_debt, last + c.delay + c.gpu_debt
        ends = (
            max(c.delay + x[0], link + x[1], debt + x[2], compute + x[3])
            for x in self.fronts[stop]
        )
        return max(known, min(ends, default=INFINITY), self._mean(c, stop))

    def _mean(self, c: Clocks, stop: int) -> float:
        """The mean of the lanes' ends, if nothing waits from here on."""
        begin = self.p.ready[self.stops[stop]] + c.delay
        link, compute = max(c.link, begin), self.p.ready[-1] + c.delay + c.gpu_debt
        cpu = max(c.cpu + c.cpu_debt, begin)
        means = zip(self.shares, self.loads[stop])
        ends = (a * link + b * compute + d * cpu + load for (a, b, d), load in means)
        return max(ends, default=0.0)

    def _loads(self, stop: int) -> list[float]:
        """The least load of a stop's completions, for every mean."""
        least = [INFINITY for _ in self.shares]
        for following, group in self._groups(stop):
            work, then = group.encode + group.decode, self.loads[following]
            gpu, cpu = (work if group.lane == lane else 0.0 for lane in (GPU, CPU))
            for i, (a, b, d) in enumerate(self.shares):
                least[i] = min(least[i], a * group.send + b * gpu + d * cpu + then[i])
        return least

    def _groups(self, stop: int) -> Iterator[tuple[int, Group]]:
        """All groups that begin at a stop, and the stops where they end."""
        for following in range(stop + 1, len(self.stops)):
            first, end = self.stops[stop], self.stops[following]
            if end - first > self.p.max_span:
                break
            for option in range(len(self.p.options)):
                yield following, self.p.group(first, end, option)

    def _tails(self, stop: int) -> Iterator[Tail]:
        """All completions of a stop that may end before the limit."""
        first, last = self.stops[stop], self.p.ready[-1]
        earliest = self.p.ready[first - 1] if first else 0.0

        def late(x: Tail) -> bool:
            return max(x[0], x[1] + earliest, x[2], x[3] + last) >= self.limit

        for following, group in self._groups(stop):
            if self.fronts[following] and not late(_before(group, self.least[following])):
                tails = (_before(group, x) for x in self.fronts[following])
                yield from (y for y in tails if not late(y))

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
            near = next((i for i, x in enumerate(front) if _at_most(x, y, slack)), None)
            if near is not None:
                front[near] = _united(front[near], y)
            elif len(front) == self.longest:
                return None
            else:
                front.append(y)
        return front


def _shares_of(p: Problem) -> Iterator[tuple[float, float, float]]:
    """All means of the lanes that options use, but for the link alone: fronts know it better."""
    gpu, cpu = (any(option.lane == lane for option in p.options) for lane in (GPU, CPU))
    for compute in range(PARTS + 1 if gpu else 1):
        for worker in range(compute == 0, PARTS - compute + 1 if cpu else 1):
            yield (PARTS - compute - worker) / PARTS, compute / PARTS, worker / PARTS


def _before(g: Group, x: Tail) -> Tail:
    """A group before a completion."""
    sent = g.send + max(x[1], g.decode)
    delay = g.encode if g.lane == GPU else 0.0
    debt, compute = x[2] + delay, x[3]
    if g.lane == GPU:
        compute += g.encode + g.decode
    if g.lane == CPU:
        debt = max(x[2] + g.decode, g.ready + g.encode + g.decode)
    return max(x[0] + delay, g.ready + g.encode + sent), sent, debt, compute


def _united(*tails: Tail) -> Tail:
    a, b, c, d = map(min, zip(*tails))
    return a, b, c, d


def _at_most(x: Sequence[float], y: Sequence[float], slack: float) -> bool:
    return all(a <= b + slack for a, b in zip(x, y))


def _weight(x: Tail) -> tuple[float, Tail]:
    return x[0] + x[1] + max(x[2], 0.0) + x[3], x


class Label(NamedTuple):
    """One way to do all tensors before a stop; key: what decides the rest, and their sum."""

    clocks: Clocks
    key: Key
    bound: float
    parent: int
    end: int
    option: int
    groups: int

    def replaces(self, other: Label, slack: float) -> bool:
        """Whether no clock is later than the other's by more than slack."""
        x, y = self.key, other.key
        return _at_most(x[:7], y[:7], slack) and x[7] <= y[7]


def _key_of(c: Clocks, following: float, last: float, groups: float) -> Key:
    """Clocks that no longer matter are raised to those that do."""
    begin = following + c.delay
    link, compute = max(c.link, begin), last + c.delay + c.gpu_debt
    gpu_done, cpu_done = max(c.gpu_done, link, compute), max(c.cpu_done, link)
    key = (c.delay, link, max(c.cpu, begin), compute, gpu_done, c.cpu_debt, cpu_done, groups)
    return (*key, reduce(add, key))  # sum() rounds otherwise from Python 3.12 on


@dataclass
class Search:
    """The search for one problem."""

    p: Problem
    tolerance: float
    seconds: float = INFINITY
    ends: tuple[int, ...] = ()
    options: tuple[int, ...] = ()
    count: int = 0
    slack: float = 0.0

    def solve(self, max_labels: int) -> float:
        """Finds a plan; the lower bound on every plan's time."""
        self._even_cuts()
        if self.p.n > FEW:
            self._widen(self._coarse_stops(), COARSE_LABELS)
        proved = self._widen(range(self.p.n + 1), max_labels)
        return proved if proved < self._goal() else self.seconds / (1 + self.tolerance)

    def _goal(self) -> float:
        """What a better plan takes at most."""
        return self.seconds / (1 + self.tolerance) * (1 - ROUNDING)

    def _even_cuts(self) -> None:
        """Few groups first, then twice as many; one option for all."""
        n, most = self.p.n, min(self.p.n, self.p.max_groups)
        groups = -(-n // self.p.max_span)
        while True:
            ends = tuple(g * n // groups for g in range(1, groups + 1))
            for option in range(len(self.p.options)):
                self._offer(ends, option)
            if groups == most:
                return
            groups = min(2 * groups, most)

    def _offer(self, ends: tuple[int, ...], option: int) -> None:
        clocks = Clocks()
        for first, end in zip((0, *ends), ends):
            clocks = clocks.after(self.p.group(first, end, option))
        seconds = clocks.end(self.p.ready[-1])
        if seconds < self.seconds:
            self.seconds, self.ends, self.options = seconds, ends, (option,) * len(ends)

    def _coarse_stops(self) -> list[int]:
        """Even in tensors, size and time together."""
        size, time = self.p.position[-1], self.p.ready[-1]
        stops, part = [0], 0
        for end in range(1, self.p.n):
            share = end / self.p.n
            share += self.p.position[end] / size if size > 0 else 0.0
            share += self.p.ready[end - 1] / time if time > 0 else 0.0
            reached = int(share * COARSE_STOPS / 3)
            if reached > part:
                stops.append(end)
            part = reached
        return [*stops, self.p.n]

    def _widen(self, stops: Sequence[int], max_labels: int) -> float:
        """Wider and wider sweeps until one drops nothing; a lower bound on what cuts at stops."""
        proved, width = 0.0, min(FIRST_WIDTH, max_labels)
        while True:
            longest = min(max(2 * width, LEAST_FRONT), LONGEST_FRONT)
            bounds = Bounds(self.p, stops, self._goal(), longest)
            proved = max(proved, bounds(Clocks(), 0))
            if proved >= self._goal():
                return proved
            proved = max(proved, self._sweep(stops, bounds, width))
            if proved >= self._goal() or width * WIDENING > max_labels:
                return proved
            width *= WIDENING

    def _sweep(self, stops: Sequence[int], bounds: Bounds, width: int) -> float:
        """Labels of stop after stop; the least bound of those dropped for want of room."""
        labels = [Label(Clocks(), (), 0.0, 0, 0, 0, 0)]
        first, earliest = [0, 1], [Clocks()]
        self.slack, dropped = 0.0, INFINITY
        for stop in range(1, len(stops)):
            fresh = list(self._extended(labels, first, earliest, stops, bounds, stop))
            if stop + 1 == len(stops):
                break
            kept, lost = self._keep(fresh, width)
            dropped = min(dropped, lost)
            labels += kept
            first.append(len(labels))
            clocks = zip(*(label.clocks for label in kept))
            earliest.append(Clocks(*map(min, clocks)) if kept else Clocks())
        self.count += len(labels)
        return dropped

    def _extended(
        self, labels: Sequence[Label], first: Sequence[int], earliest: Sequence[Clocks],
        stops: Sequence[int], bounds: Bounds, stop: int,
    ) -> Iterator[Label]:  # fmt: skip
        """Every label of an earlier stop, by every option, to this one; plans are finished."""
        end = stops[stop]
        for before in range(stop):
            if end - stops[before] > self.p.max_span or first[before] == first[before + 1]:
                continue
            for option in range(len(self.p.options)):
                group = self.p.group(stops[before], end, option)
                if bounds(earliest[before].after(group), stop) >= self._goal():
                    continue
                for parent in range(first[before], first[before + 1]):
                    label = self._next(labels, parent, group, end, option, bounds, stop)
                    if label is not None and end == self.p.n:
                        self._finish(labels, label)
                    elif label is not None:
                        yield label

    def _next(
        self, labels: Sequence[Label], parent: int, group: Group, end: int, option: int,
        bounds: Callable[[Clocks, int], float], stop: int,
    ) -> Label | None:  # fmt: skip
        """A label with one group more, if it may become a better plan."""
        n, before = self.p.n, labels[parent]
        groups = before.groups + 1
        if groups + (end < n) > self.p.max_groups:
            return None
        clocks = before.clocks.after(group)
        bound = max(before.bound, bounds(clocks, stop))
        if bound >= self._goal():
            return None
        following = self.p.ready[min(end, n - 1)]
        counted = groups if self.p.max_groups < n else 0
        key = _key_of(clocks, following, self.p.ready[-1], counted)
        return Label(clocks, key, bound, parent, end, option, groups)

    def _finish(self, labels: Sequence[Label], label: Label) -> None:
        seconds = label.clocks.end(self.p.ready[-1])
        if seconds >= self._goal():
            return
        self.seconds, chain = seconds, []
        while label.groups > 0:
            chain.append((label.end, label.option))
            label = labels[label.parent]
        self.ends, self.options = zip(*reversed(chain))

    def _keep(self, fresh: list[Label], width: int) -> tuple[list[Label], float]:
        """Those that no other replaces; with too many, those near another go too."""
        fresh.sort(key=lambda x: (x.bound, x.key[8], x.groups))
        found = _thinned(fresh, width, 0.0)
        if found is None:
            least = max(LEAST_SLACK * self.seconds, sys.float_info.min)
            self.slack = max(self.slack / 2, least)
            while (found := _thinned(fresh, width, self.slack)) is None:
                self.slack *= 2
        return found


def _thinned(fresh: Sequence[Label], width: int, slack: float) -> tuple[list[Label], float] | None:
    """Those kept, and the least bound of those that went for being near; None: too many."""
    kept: list[Label] = []
    dropped = INFINITY
    for label in fresh:
        by = next((x for x in kept if x.replaces(label, slack)), None)
        if by is None and len(kept) == width:
            return None
        if by is None:
            kept.append(label)
        elif not by.replaces(label, 0.0):
            dropped = min(dropped, label.bound)
    return kept, dropped


def plan_twin(
    problem: Problem, tolerance: float, max_labels: int
) -> tuple[list[int], list[int], float, float, int]:
    """`one_link.plan_link` in plain Python: ends, options, seconds, lower bound, labels."""
    search = Search(problem, tolerance)
    lower_bound = search.solve(max_labels)
    return [*search.ends], [*search.options], search.seconds, lower_bound, search.count

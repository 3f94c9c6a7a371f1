"""The twin of csrc/planner: what `one_link.plan_link` does, in plain Python, to the same bits."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from gradwire.kernels.lanes import Clocks, Group, Problem
from gradwire.kernels.link_bounds_twin import LEAST_SLACK, Bounds, Paths, at_most

INFINITY = float("inf")
ROUNDING = 1e-12  # gains below this part of the time are none
COARSE_STOPS, FEW = 48, 64  # stops of the first search among many tensors; so many need none
COARSE_LABELS, FIRST_WIDTH, WIDENING = 32, 8, 4
LEAST_FRONT, LONGEST_FRONT = 8, 256
EFFORT = 1 << 25  # rounds before a sweep, times stops squared: from
LEAST_ROUNDS, MOST_ROUNDS = 8, 80

Key: TypeAlias = tuple[float, float, float, float, float]


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
        """Whether no clock is later than the other's by more than slack, and no more groups are
        used up; with infinite slack always."""
        x, y = self.key, other.key
        return at_most(x[:3], y[:3], slack) and (x[3] <= y[3] or slack == INFINITY)


def _key_of(c: Clocks, following: float, groups: float) -> Key:
    """Clocks that no longer matter are raised to those that do."""
    begin = following + c.delay
    cpu, link = max(c.cpu, begin), max(c.link, begin)
    return c.delay, cpu, link, groups, c.delay + cpu + link + groups


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
        stops = range(self.p.n + 1)
        paths = Paths(self.p, stops)
        if self.p.n > FEW:
            some = self._coarse_stops()
            rough = Paths(self.p, some)
            self._widen(some, rough, COARSE_LABELS)
            paths.begin_like(rough)
        proved = self._widen(stops, paths, max_labels)
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
                self._offer(ends, (option,) * groups)
            if groups == most:
                return
            groups = min(2 * groups, most)

    def _offer(self, ends: tuple[int, ...], options: tuple[int, ...]) -> None:
        if len(ends) > self.p.max_groups:
            return
        clocks = Clocks()
        for first, end, option in zip((0, *ends), ends, options):
            clocks = clocks.after(self.p.group(first, end, option))
        if clocks.link < self.seconds * (1 - ROUNDING):
            self.seconds, self.ends, self.options = clocks.link, ends, options

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

    def _play(self, paths: Paths, stops: int) -> None:
        """Paths against plans, some of which are better than any before."""
        for _ in range(min(max(EFFORT // stops**2, LEAST_ROUNDS), MOST_ROUNDS)):
            if paths.bound >= self._goal():
                break
            ends, options = paths.play(self._goal())
            if ends:
                self._offer(ends, options)
        paths.look_back()

    def _widen(self, stops: Sequence[int], paths: Paths, max_labels: int) -> float:
        """Wider and wider sweeps until one drops nothing; a lower bound on what cuts at stops."""
        proved, width = 0.0, min(FIRST_WIDTH, max_labels)
        while True:
            self._play(paths, len(stops))
            proved = max(proved, paths.bound)
            if proved >= self._goal():
                return proved
            longest = min(max(2 * width, LEAST_FRONT), LONGEST_FRONT)
            bounds = Bounds(self.p, stops, paths, self._goal(), longest)
            proved = max(proved, bounds(Clocks(), 0))
            if proved >= self._goal():
                return proved
            proved = max(proved, self._sweep(stops, bounds, width))
            if proved >= self._goal() or width * WIDENING > max_labels:
                return proved
            width *= WIDENING

    def _sweep(self, stops: Sequence[int], bounds: Bounds, width: int) -> float:
        """Labels of stop after stop; the least bound of those dropped for want of room."""
        labels = [Label(Clocks(), (0.0,) * 5, 0.0, 0, 0, 0, 0)]
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
        key = _key_of(clocks, following, counted)
        return Label(clocks, key, bound, parent, end, option, groups)

    def _finish(self, labels: Sequence[Label], label: Label) -> None:
        seconds = label.clocks.link
        if seconds >= self._goal():
            return
        self.seconds, chain = seconds, []
        while label.groups > 0:
            chain.append((label.end, label.option))
            label = labels[label.parent]
        self.ends, self.options = zip(*reversed(chain))

    def _keep(self, fresh: list[Label], width: int) -> tuple[list[Label], float]:
        """Those that no other replaces; with too many, those near another go too."""
        fresh.sort(key=lambda x: (x.bound, x.key[4], x.groups))
        found = _thinned(fresh, width, 0.0)
        if found is None:
            least = max(LEAST_SLACK * self.seconds, sys.float_info.min)
            self.slack = max(self.slack / 2, least)
            while (found := _thinned(fresh, width, self.slack)) is None:
                # Clocks are nowhere further apart than the best time: the rest is groups.
                self.slack = 2 * self.slack if self.slack < self.seconds else INFINITY
            self.slack = min(self.slack, self.seconds)
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

"""Instances, and an independent evaluation of every plan, for the tests of the planner."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from itertools import accumulate, product

from gradwire.planner.joint import Option

Pair = tuple[float, float]
Group = tuple[int, int]
Schedule = tuple[list[float], list[float]]

READY, SIZES = [2.0, 4.0, 6.0, 8.0, 10.0], [8.0, 4.0, 4.0, 1.0, 1.0]
"""The hand instance of both problems."""

KINDS = ("uniform", "ties", "equal", "heavy", "at once", "free", "huge")


def partitions(n: int) -> Iterator[list[Group]]:
    """All ways to cut n tensors into groups of neighbours."""
    for marks in product((False, True), repeat=n - 1):
        ends = [j + 1 for j, cut in enumerate(marks) if cut] + [n]
        yield list(zip([0, *ends], ends))


def by_hand(
    groups: Sequence[Group], chosen: Sequence[int], schedule: Schedule, options: Sequence[Option]
) -> float:
    """The lane model as it is worded: all lanes until they end, then all decodes."""
    ready, sizes = schedule
    delay = worker = link = debt = 0.0
    for (first, end), number in zip(groups, chosen):
        by, size, at = options[number], sum(sizes[first:end]), ready[end - 1] + delay
        if by.lane == "gpu":
            delay += by.encode(size)
            at += by.encode(size)
        if by.lane == "cpu":
            worker = at = max(worker, at) + by.encode(size)
        link = max(link, at) + by.send(size)
        debt += by.decode(size)
    return max(ready[-1] + delay, worker, link) + debt


def brute_force(schedule: Schedule, options: Sequence[Option]) -> float:
    """The least time of all partitions with all options."""
    return min(
        by_hand(groups, chosen, schedule, options)
        for groups in partitions(len(schedule[0]))
        for chosen in product(range(len(options)), repeat=len(groups))
    )


def schedule_of(kind: str, n: int, dice: random.Random) -> Schedule:
    """Ready times and sizes of n tensors."""
    draw = {
        "ties": lambda: float(dice.randint(0, 2)),
        "equal": lambda: 2.0,
        "heavy": lambda: dice.paretovariate(0.8),
    }.get(kind, dice.random)
    gaps = [0.0 if kind == "at once" else draw() for _ in range(n)]
    return list(accumulate(gaps)), [draw() for _ in range(n)]


def pair(kind: str, dice: random.Random) -> Pair:
    """A cost; of some kinds without start-up or free, of others far above all ready times."""
    if kind in ("ties", "equal"):
        return float(dice.randint(0, 2)), dice.choice([0.0, 0.5, 1.0])
    if kind == "free":
        return dice.choice([(0.0, 0.0), (0.0, dice.random()), (dice.random(), 0.0)])
    factor = dice.choice([1.0, 1e6]) if kind == "huge" else 1.0
    return dice.random() * factor, dice.random() * factor


def options_of(kind: str, dice: random.Random) -> list[Option]:
    """One option of each lane."""
    return [
        Option("none", send=pair(kind, dice)),
        *(Option(lane, *(pair(kind, dice) for _ in range(3))) for lane in ("gpu", "cpu")),
    ]


def realistic(n: int, slow: float, dice: random.Random) -> tuple[Schedule, list[Option]]:
    """n tensors, a third of them large, in 0.1 s; all of them take slow times as long to send."""
    sizes = [2.0 ** dice.uniform(14, 21) if j % 3 == 0 else 256.0 for j in range(n)]
    total = sum(sizes)
    ready = list(accumulate(0.05 / n + 0.05 * x / total for x in sizes))
    alpha, beta = 0.01 / n, slow * 0.1 / total
    return (ready, sizes), [
        Option(send=(alpha, beta)),
        Option("gpu", (2e-4, 0.02 / total), (alpha, beta / 10), (1e-4, 0.01 / total)),
        Option("cpu", (5e-4, 0.08 / total), (alpha, beta / 10), (2e-4, 0.03 / total)),
    ]

"""Fair shares the slow obvious way: link after link is filled, event after event."""

from __future__ import annotations

import numpy as np

from gradwire.network.arrays import Ints, Reals
from gradwire.network.engines.transfers import Transfers


def rates_twin(transfers: Transfers, active: Ints) -> Reals:
    """Bytes per second of the active ones; 0 of others."""
    left = transfers.rate.copy()
    rate = np.zeros(len(transfers))
    usage = np.zeros((len(transfers), len(left)))
    for one in active.tolist():
        used = slice(transfers.uses.start[one], transfers.uses.start[one + 1])
        np.add.at(usage[one], transfers.uses.value[used], transfers.part[used])
        usage[one] *= transfers.many[one]
    undecided = set(active.tolist())
    while undecided:
        weight = usage[sorted(undecided)].sum(0)
        share = np.full(len(left), np.inf)
        np.divide(left, weight, out=share, where=weight > 1e-12)
        full = int(share.argmin())
        if np.isinf(share[full]):
            break
        for one in [one for one in undecided if usage[one, full] > 0]:
            rate[one] = share[full]
            left = np.maximum(left - usage[one] * rate[one], 0)
            undecided.discard(one)
    return rate


def run_twin(transfers: Transfers, tolerance: float) -> tuple[Reals, Reals, int]:
    """When each begins and ends, and how often rates were found."""
    n = len(transfers)
    begin, end = np.full(n, np.inf), np.full(n, np.inf)
    left, now, rounds = transfers.bytes.copy(), 0.0, 0
    before: list[set[int]] = [set() for _ in range(n)]
    for one in range(n):
        for other in transfers.next.of_row(one).tolist():
            before[other].add(one)
    while True:
        _begin(transfers, before, begin, end, now)
        active = np.flatnonzero((begin <= now) & np.isinf(end))
        later = begin[(begin > now) & (begin < np.inf)]
        if not len(active):
            if not len(later):
                return begin, end, rounds
            now = float(later.min())
            continue
        rate = rates_twin(transfers, active)
        rounds += 1
        with np.errstate(divide="ignore"):
            ends = now + left[active] / rate[active]
        first = int(ends.argmin())
        if np.isinf(ends[first]):
            return begin, end, rounds
        until = min(float(ends[first]), float(later.min(initial=np.inf)))
        until += tolerance * float(ends[first] - begin[active[first]])
        for one, its_end in zip(active.tolist(), ends.tolist()):
            if its_end <= until * (1 + 1e-12):
                end[one] = its_end
            else:
                left[one] -= rate[one] * (until - now)
        now = until


def _begin(
    transfers: Transfers, before: list[set[int]], begin: Reals, end: Reals, now: float
) -> None:
    """Says when those begin whose last one before them has ended; what only waits ends then."""
    changed = True
    while changed:
        changed = False
        for one in np.flatnonzero(np.isinf(begin)).tolist():
            ends = [float(end[other]) for other in before[one]]
            if all(e < np.inf for e in ends):
                begin[one] = max(ends, default=0.0) + transfers.delay[one]
                changed = True
        for one in np.flatnonzero(
            (begin <= now) & np.isinf(end) & (transfers.bytes == 0)
        ).tolist():
            end[one] = begin[one]
            changed = True

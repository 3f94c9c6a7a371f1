"""Fair shares of links, event by event.

At every moment no transfer could be faster without a slower one, or one as slow, getting slower
(max-min fairness: Bertsekas and Gallager, Data Networks, section 6.5). It is what congestion
control is after, and what flow-level simulators compute.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gradwire.errors import NetworkError
from gradwire.network.arrays import Ints, Reals
from gradwire.network.engines.transfers import Transfers
from gradwire.network.native import FlowSet, core


class Times(NamedTuple):
    """Seconds at which each transfer begins and ends; rounds: how often rates were found."""

    begin: Reals
    end: Reals
    rounds: int


def run(transfers: Transfers, tolerance: float = 0.0) -> Times:
    """All of them, from second 0 on.

    tolerance: what ends within so much of a transfer's own duration after it, as a part of it,
    does not yet see it gone: fewer rounds; times are too long by about as much. NetworkError if
    some never end: they wait for each other, or use links of rate 0.
    """
    if not 0 <= tolerance < 1:
        raise NetworkError(f"tolerance is a part, 0 to below 1; got {tolerance}. Use 0.01.")
    native = core()
    if native is None:
        times = Times(*run_twin(transfers, tolerance))
    else:
        begin, end = np.zeros(len(transfers)), np.zeros(len(transfers))
        rounds = native.share_links(
            _given(transfers), len(transfers.rate), transfers.rate.ctypes.data, tolerance,
            begin.ctypes.data, end.ctypes.data,
        )  # fmt: skip
        times = Times(begin, end, rounds)
    never = np.flatnonzero(np.isinf(times.end))
    if len(never):
        raise NetworkError(
            f"every transfer ends; {len(never)} of {len(transfers)} never do, the first is "
            f"{never[0]}. Leave out links of rate 0, and circles of transfers that wait."
        )
    return times


def rates(transfers: Transfers) -> Reals:
    """Bytes per second of each, if all are under way at once."""
    native = core()
    if native is None:
        return rates_twin(transfers, np.arange(len(transfers)))
    found = np.zeros(len(transfers))
    native.fair_rates(
        _given(transfers), len(transfers.rate), transfers.rate.ctypes.data, found.ctypes.data
    )
    return found


def _given(transfers: Transfers) -> FlowSet:
    """Addresses: of arrays that Transfers keeps."""
    uses, after = (
        (rows.start.ctypes.data, rows.value.ctypes.data)
        for rows in (transfers.uses, transfers.next)
    )
    part, bytes, many, delay = (
        column.ctypes.data
        for column in (transfers.part, transfers.bytes, transfers.many, transfers.delay)
    )
    return len(transfers), uses, part, bytes, many, after, delay


# -- the slow obvious way: link after link is filled, event after event ------------------------


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

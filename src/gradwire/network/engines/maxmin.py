"""Computes fair shares of links, event by event.

At every moment no transfer could be faster without a slower one, or one as slow, getting slower
(max-min fairness: Bertsekas and Gallager, Data Networks, section 6.5). Congestion control aims at
this, and flow-level simulators compute it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from gradwire.errors import NetworkError
from gradwire.network.checked import Ints, Reals, real, same_length, whole
from gradwire.network.native import FlowSet, core

_MOST = 1 << 32  # the extension's limit for transfers, links and uses


class Rows(NamedTuple):
    """Rows of different lengths: row i is value[start[i] : start[i + 1]]."""

    start: Ints
    value: Ints

    @staticmethod
    def of(row: Ints, value: Ints, rows: int) -> Rows:
        """Makes rows from values and the row of each, which does not fall."""
        start = np.zeros(rows + 1, np.int64)
        np.cumsum(np.bincount(row, minlength=rows), out=start[1:])
        return Rows(start, np.ascontiguousarray(value, np.int64))

    def checked(self, name: str, rows: int, end: int) -> Rows:
        """Returns the rows, checked. Raises NetworkError unless they are `rows` rows of numbers
        from 0 to below `end`."""
        start, value = whole(f"begins of {name}", self.start), whole(name, self.value, end)
        is_fit = len(start) == rows + 1 and start[0] == 0 and start[-1] == len(value)
        if not is_fit or (np.diff(start) < 0).any():
            raise NetworkError(
                f"{name} must be {rows} rows, each from its begin to the next one's; got "
                f"{len(start)} begins for {len(value)} numbers. Make them with Rows.of."
            )
        return Rows(start, value)

    def of_row(self, row: int) -> Ints:
        """Returns the values of one row."""
        return self.value[self.start[row] : self.start[row + 1]]


class Change(NamedTuple):
    """The links that transfers use, with which part of their rates, and the rates of links, from
    some second on: as in `Transfers`."""

    seconds: float
    uses: Rows
    part: Reals
    rate: Reals


@dataclass(frozen=True, eq=False)
class Transfers:
    """Columns, a row for each transfer; one may stand for `many` equal ones.

    uses: the links of each, by numbers below len(rate), and `part`, for each use, of the
    transfer's rate; bytes: 0 for one that only waits. next: the transfers that wait for each; they
    begin `delay` seconds after the last that they wait for. rate: of links, bytes per second.
    changes: in order of time. Raises NetworkError for columns that do not fit together, and
    numbers that are negative, not finite, or beyond 10^20.
    """

    uses: Rows
    part: Reals
    bytes: Reals
    many: Reals
    next: Rows
    delay: Reals
    rate: Reals
    changes: tuple[Change, ...] = ()

    def __post_init__(self) -> None:
        for name in ("part", "bytes", "many", "delay", "rate"):
            object.__setattr__(self, name, real(f"{name} of transfers", getattr(self, name)))
        same_length(bytes=self.bytes, many=self.many, delay=self.delay)
        n, links = len(self), len(self.rate)
        for name, end in (("uses", links), ("next", n)):
            object.__setattr__(self, name, getattr(self, name).checked(name, n, end))
        same_length(uses=self.uses.value, part=self.part)
        checked = [self._checked(change) for change in self.changes]
        object.__setattr__(self, "changes", tuple(checked))
        if max(n, links, len(self.part)) >= _MOST:
            raise NetworkError(
                f"there must be fewer than 2^32 transfers, links and uses each; got {n}, {links} "
                f"and {len(self.part)}. Simulate fewer steps at a time."
            )

    def _checked(self, change: Change) -> Change:
        """Returns a change whose columns are checked as these are."""
        seconds, part, rate = (
            real(f"{name} of a change", getattr(change, name))
            for name in ("seconds", "part", "rate")
        )
        uses = change.uses.checked("uses", len(self), len(self.rate))
        same_length(uses=uses.value, part=part)
        same_length(rate=self.rate, rates_of_a_change=rate)
        return Change(float(seconds[0]), uses, part, rate)

    def changed(self, change: Change) -> Transfers:
        """Returns the transfers as they are after a change."""
        return replace(self, uses=change.uses, part=change.part, rate=change.rate, changes=())

    def __len__(self) -> int:
        return len(self.bytes)


class Times(NamedTuple):
    """The seconds when each transfer begins and ends; rounds: how often rates were computed."""

    begin: Reals
    end: Reals
    rounds: int


def run(transfers: Transfers, tolerance: float = 0.0) -> Times:
    """Runs all transfers, from second 0 on.

    tolerance: a part of a transfer's duration; transfers that end within so much after it keep
    their rates until the last of them has ended: fewer rounds; times are too long by at most
    about as much. Raises NetworkError if some never end: they wait for each other, or use links
    of rate 0.
    """
    if not 0 <= tolerance < 1:
        raise NetworkError(
            f"tolerance must be a fraction, from 0 to below 1; got {tolerance}. Use 0.01."
        )
    native = core()
    if native is None:
        times = run_twin(transfers, tolerance)
    else:
        begin, end = np.zeros(len(transfers)), np.zeros(len(transfers))
        rounds = native.share_links(
            _given(transfers), len(transfers.rate), transfers.rate.ctypes.data, tolerance,
            [
                (own.seconds, (own.uses.start.ctypes.data, own.uses.value.ctypes.data),
                 own.part.ctypes.data, own.rate.ctypes.data)
                for own in transfers.changes
            ],
            begin.ctypes.data, end.ctypes.data,
        )  # fmt: skip
        times = Times(begin, end, rounds)
    never = np.flatnonzero(np.isinf(times.end))
    if len(never):
        raise NetworkError(
            f"every transfer must end; {len(never)} of {len(transfers)} never do, the first is "
            f"number {never[0]}. Leave out links of rate 0, and transfers that wait for each "
            "other in a circle."
        )
    return times


def rates(transfers: Transfers) -> Reals:
    """Returns the bytes per second of each, if all are under way at once."""
    native = core()
    if native is None:
        return rates_twin(transfers, np.arange(len(transfers)))
    found = np.zeros(len(transfers))
    native.fair_rates(
        _given(transfers), len(transfers.rate), transfers.rate.ctypes.data, found.ctypes.data
    )
    return found


def _given(transfers: Transfers) -> FlowSet:
    """Returns addresses of arrays that Transfers keeps."""
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
    """Returns the bytes per second of the active transfers, and 0 for others."""
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


def run_twin(transfers: Transfers, tolerance: float) -> Times:
    """Does what `run` does; a transfer that never ends has the end inf."""
    n = len(transfers)
    begin, end = np.full(n, np.inf), np.full(n, np.inf)
    left, now, rounds = transfers.bytes.copy(), 0.0, 0
    changes, shared = list(transfers.changes), transfers
    before: list[set[int]] = [set() for _ in range(n)]
    for one in range(n):
        for other in transfers.next.of_row(one).tolist():
            before[other].add(one)
    while True:
        while changes and changes[0].seconds <= now:
            shared = transfers.changed(changes.pop(0))
        _begin(transfers, before, begin, end, now)
        active = np.flatnonzero((begin <= now) & np.isinf(end))
        later = begin[(begin > now) & (begin < np.inf)]
        if not len(active):
            if not len(later):
                return Times(begin, end, rounds)
            now = float(later.min())
            continue
        rate = rates_twin(shared, active)
        rounds += 1
        with np.errstate(divide="ignore"):
            ends = now + left[active] / rate[active]
        first = int(ends.argmin())
        next_change = changes[0].seconds if changes else np.inf
        until = min(float(ends[first]), float(later.min(initial=np.inf)))
        if np.isfinite(ends[first]):
            until += tolerance * float(ends[first] - begin[active[first]])
        until = min(until, next_change)
        if np.isinf(until):
            return Times(begin, end, rounds)
        is_over = ends <= until * (1 + 1e-12)
        end[active[is_over]] = ends[is_over]
        if is_over.any():
            until = min(until, float(ends[is_over].max()))  # the others need not wait
        left[active[~is_over]] -= rate[active[~is_over]] * (until - now)
        now = until


def _begin(
    transfers: Transfers, before: list[set[int]], begin: Reals, end: Reals, now: float
) -> None:
    """Sets the begin of transfers if all that they wait for have ended, and the end of those that
    only wait."""
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

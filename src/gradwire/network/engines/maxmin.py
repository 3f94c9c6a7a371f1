"""Fair shares of links, event by event.

At every moment no transfer could be faster without a slower one, or one as slow, getting slower
(max-min fairness: Bertsekas and Gallager, Data Networks, section 6.5). It is what congestion
control is after, and what flow-level simulators compute.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gradwire.errors import NetworkError
from gradwire.network.arrays import Reals
from gradwire.network.engines.maxmin_twin import rates_twin, run_twin
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

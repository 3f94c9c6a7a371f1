"""Routes by the best shares for links that failed or are unequal, with few cuts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from gradwire.network.checked import Ints
from gradwire.network.optimum import best_shares
from gradwire.network.routing.scheme import Crossing
from gradwire.network.routing.wrap import Wrap

_PARTS = 1 << 20  # shares are rounded to as many parts


@dataclass(frozen=True)
class Optimal(Wrap):
    """Routes like 'wrap', by the shares of a linear program: no routing of any kind takes less on
    the links between switches, but for the rounding of shares to a millionth of a pair's bytes,
    which may cost more than a millionth of the time. The program knows no ports of hosts: with
    several planes another scheme may end sooner. It needs scipy. least: no piece has fewer
    bytes."""

    name: ClassVar[str] = "optimal"
    is_compared: ClassVar[bool] = False

    def shares(self, crossing: Crossing) -> Ints:
        part = best_shares(crossing.flows[crossing.which], crossing.fabric).part
        parts = np.floor(part * _PARTS).astype(np.int64)
        left = _PARTS - parts.sum(1)  # one each for the largest: a slow link must not get more
        rank = np.argsort(np.argsort(-part, axis=1, kind="stable"), axis=1)
        parts += rank < left[:, None]
        return parts

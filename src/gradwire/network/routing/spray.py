"""Every packet takes another path: the load that pinned paths are compared with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

import numpy as np

from gradwire.errors import NetworkError
from gradwire.network.checked import Ints
from gradwire.network.fabric import EVERY, Fabric, count
from gradwire.network.flows import Flows
from gradwire.network.routes import Routes
from gradwire.network.routing.scheme import Crossing, Scheme

Order = Literal["ideal", "random", "rotating"]
_LARGEST = 1 << 53  # bytes: as of the packet engine's


@dataclass(frozen=True)
class Spray(Scheme):
    """Spreads packets over all usable paths.

    order: ideal, in proportion to the paths' rates; random, each packet on any; rotating, each
    packet of a flow on the next, from a random one on. packet: the bytes of one.
    """

    order: Order = "ideal"
    packet: int = 4096
    name: ClassVar[str] = "spray"
    examples: ClassVar[tuple[str, ...]] = ('spray("random")', 'spray("rotating")')
    seeds: ClassVar[int] = 20

    def __post_init__(self) -> None:
        if self.order not in get_args(Order):
            known = ", ".join(f"'{order}'" for order in get_args(Order))
            raise NetworkError(
                f"the order of spraying must be one of {known}; got {self.order!r}. Use 'ideal'."
            )
        count("packet", self.packet, most=_LARGEST)

    def route(self, fabric: Fabric, flows: Flows, seed: int) -> Routes:
        crossing = Crossing(fabric, flows)
        if self.order == "ideal" or not len(crossing.which):
            return crossing.pinned(np.full(len(crossing.which), EVERY, np.int64))
        deal = {"random": _random, "rotating": _rotating}[self.order]
        packets = -(-crossing.sizes // self.packet)
        dealt = deal(packets, crossing.usable.counts, np.random.default_rng(seed))
        one, number = np.nonzero(dealt)
        amount = dealt[one, number] * self.packet
        first = np.append(True, one[1:] != one[:-1])[: len(one)]
        amount[first] -= (packets * self.packet - crossing.sizes)[one[first]]  # the short packet
        return crossing.cut(one, crossing.usable.path(one, number), amount, 1)


def _random(packets: Ints, paths: Ints, dice: np.random.Generator) -> Ints:
    """Returns the packets on each path, [flows, paths]."""
    chances = (np.arange(paths.max(initial=0)) < paths[:, None]) / paths[:, None]
    return dice.multinomial(packets, chances)


def _rotating(packets: Ints, paths: Ints, dice: np.random.Generator) -> Ints:
    """Returns the packets on each path, [flows, paths]."""
    number = np.arange(paths.max(initial=0))
    place = (number - dice.integers(0, paths)[:, None]) % paths[:, None]
    dealt = (packets[:, None] - place + paths[:, None] - 1) // paths[:, None]
    return np.where(number < paths[:, None], np.maximum(dealt, 0), 0)

"""The host and the machine that every rank is on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from gradwire.errors import NetworkError
from gradwire.network.checked import Ints
from gradwire.network.fabric import count
from gradwire.network.flows import Flows


@dataclass(frozen=True)
class Placement:
    """Where ranks are. host: the host of each rank, its card on the network. machine: the machine
    of each rank; ranks of one machine reach each other without the network. None: every host is a
    machine.

    Raises NetworkError for hosts below 0, or not as many machines as hosts.
    """

    host: tuple[int, ...]
    machine: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        if min(self.host, default=0) < 0:
            raise NetworkError(
                f"hosts must be numbered from 0; got {min(self.host)}. Name a host of the "
                "topology."
            )
        if self.machine is not None and len(self.machine) != len(self.host):
            raise NetworkError(
                f"every rank needs a host and a machine; got {len(self.host)} hosts and "
                f"{len(self.machine)} machines. Give one of each for every rank."
            )

    @staticmethod
    def in_order(ranks: int, per_machine: int = 1) -> Placement:
        """Places rank r on host r, with `per_machine` ranks to a machine."""
        count("ranks of a machine", per_machine)
        return Placement(tuple(range(ranks)), tuple(r // per_machine for r in range(ranks)))

    @staticmethod
    def shuffled(ranks: int, seed: int, per_machine: int = 1) -> Placement:
        """Places ranks as a scheduler may hand out machines: in random order, ranks of a machine
        together."""
        count("seed", seed, 0)
        count("ranks of a machine", per_machine)
        machines = -(-ranks // per_machine)
        order = np.random.default_rng(seed).permutation(machines).tolist()
        host = [order[r // per_machine] * per_machine + r % per_machine for r in range(ranks)]
        return Placement(tuple(host), tuple(h // per_machine for h in host))

    @property
    def ranks(self) -> int:
        """The number of ranks."""
        return len(self.host)

    def of(self, ranks: Sequence[int]) -> Placement:
        """Returns the placement of some ranks, which are then 0, 1, … Raises NetworkError for an
        unknown rank."""
        unknown = [r for r in ranks if not 0 <= r < self.ranks]
        if unknown:
            raise NetworkError(
                f"ranks must be from 0 to {self.ranks - 1}; got {unknown[0]}. Place it first."
            )
        machine = None if self.machine is None else tuple(self.machine[r] for r in ranks)
        return Placement(tuple(self.host[r] for r in ranks), machine)

    def placed(self, flows: Flows) -> Flows:
        """Maps flows between ranks to flows between hosts, without those in a machine or host."""
        host, own = self._columns[0], flows[self.leaves_machine(flows)]
        return Flows(host[own.src], host[own.dst], own.bytes, own.step, own.start_ns)

    def leaves_machine(self, flows: Flows) -> NDArray[np.bool_]:
        """Whether each flow uses the network. Raises NetworkError for unknown ranks."""
        flows.refuse_beyond(self.ranks, "rank")
        host, machine = self._columns
        far: NDArray[np.bool_] = machine[flows.src] != machine[flows.dst]
        far &= host[flows.src] != host[flows.dst]
        return far

    @cached_property
    def _columns(self) -> tuple[Ints, Ints]:
        host = np.array(self.host, np.int64)
        return host, host if self.machine is None else np.array(self.machine, np.int64)

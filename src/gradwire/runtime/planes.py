"""Moves over several planes: every message takes the path that a network plan pins it to.

    rank 0 ── plane 0 ─ 10.128.0.1 ──── spine0 ──── 10.128.2.3 ── rank 5
           ╲─ plane 1 ─ 10.129.0.1 ──── spine1 ──── 10.129.2.3 ──╱

A host has an address on every plane, and the network carries traffic to such an address over that
plane. Each plane has a Gloo group of its own, whose sockets are bound to these addresses.
"""

from __future__ import annotations

import hashlib
import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from itertools import permutations
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import PrefixStore

from gradwire.errors import PlanError, UsageError
from gradwire.groups import Group
from gradwire.moves import AllToAll
from gradwire.pins import Pins
from gradwire.runtime.host_copies import CPU
from gradwire.runtime.process_groups import attaching, exchange_text, wait_for_all
from gradwire.runtime.torch_dist import Performer, backend_of
from gradwire.runtime.waits import Part

HOST, ADDRESSES = "GRADWIRE_HOST", "GRADWIRE_PLANES"
"""A rank's environment variables: its host's number in the plan's topology, and its addresses,
separated by commas."""


@dataclass(frozen=True)
class Planes:
    """The planes of one lane. groups: one for each plane. hosts: the host of each rank in the
    groups. ranks: the number in the groups of each of a performer's ranks."""

    pins: Pins
    hosts: Sequence[int]
    groups: list[Any]
    ranks: Sequence[int]

    def host(self, rank: int) -> int:
        """Returns the host of a performer's rank."""
        return self.hosts[self.ranks[rank]]


def agreed_pins(
    given: Pins | str | Path, group: dist.ProcessGroup, device: torch.device
) -> tuple[Pins, list[int]]:
    """Returns the pins, and the host of every rank. Collective, and so are its errors.

    Raises:
        PlanError: pins cannot be read, differ between ranks, or are for other hosts, or a rank
            does not say where it is, or has too few addresses, or other hosts' (on all ranks).
        UsageError: the backend is not Gloo, or `given` is no pins.
    """
    backend = backend_of(group, device)
    if backend != "gloo":
        raise UsageError(
            "planes need the backend Gloo, whose sockets can be bound to addresses; got "
            f"{backend}. Leave out planes, or train on CPUs."
        )
    if not isinstance(given, Pins | str | Path):
        raise UsageError(
            f"planes must be pins, or the path of a file of pins; got {type(given).__name__}. "
            "Make pins of routes with gradwire.network.exports.pins_of."
        )
    pins, problem = None, None
    try:
        pins = given if isinstance(given, Pins) else Pins.load(given)
        _check_own(_addresses()[: pins.paths])
    except PlanError as error:  # the others must not wait for us
        problem = error
    digest = "none"
    if pins is not None and problem is None:
        digest = hashlib.sha256(pins.to_json().encode()).hexdigest()[:16]
    host = os.environ.get(HOST, "").replace(";", "")
    says = [digest, host, str(len(_addresses())), str(problem or "")]
    said = [text.split(";", 3) for text in exchange_text(";".join(says), group, device)]
    if problem is not None:
        raise problem
    assert pins is not None
    _check(pins, said, dist.get_rank(group))
    return pins, [int(host) for _, host, *_ in said]


def _check(pins: Pins, said: Sequence[Sequence[str]], me: int) -> None:
    """Checks what ranks said of their pins, hosts and addresses. Raises PlanError."""
    for rank, (digest, host, addresses, problem) in enumerate(said):
        if problem:
            raise PlanError(
                f"every rank must be able to use its pins; rank {rank} cannot: {problem}"
            )
        if digest != said[me][0]:
            raise PlanError(
                f"every rank must pin by the same paths; rank {rank} has others than rank {me}: "
                f"{digest}. Give all ranks the same file."
            )
        if not host.isdecimal() or int(host) >= pins.hosts:
            raise PlanError(
                f"pinned paths need to know where ranks run: every rank must set {HOST} to the "
                f"number of its host, 0 to {pins.hosts - 1}; rank {rank} has {host!r}. Set this "
                "environment variable on every machine, and plan for the topology that the job "
                "runs on."
            )
        if int(addresses) < pins.paths:
            raise PlanError(
                f"every rank must set {ADDRESSES} to addresses of its host, separated by commas, "
                f"one on each of the {pins.paths} planes that the plan uses; rank {rank} has "
                f"{addresses}. Set this environment variable on every machine."
            )


def _check_own(addresses: Sequence[str]) -> None:
    """Raises PlanError unless these are this host's addresses: Gloo would fail later, other ranks
    by timeout."""
    for address in addresses:
        try:
            socket.create_server((address, 0)).close()
        except (OSError, TypeError) as error:  # the latter of a name that has no encoding
            why = getattr(error, "strerror", None) or error
            raise PlanError(
                f"{ADDRESSES} must list addresses of the rank's own host; {address!r} is not one "
                f"({why}). Correct this environment variable."
            ) from None


def join_planes(
    pins: Pins, hosts: Sequence[int], group: dist.ProcessGroup, timeout_seconds: float
) -> Planes:
    """Makes a lane's groups. Collective."""
    rank, world = dist.get_rank(group), dist.get_world_size(group)
    store = dist.distributed_c10d._get_process_group_store(group)
    groups = []
    with attaching(group):
        for plane, address in enumerate(_addresses()[: pins.paths]):
            options = dist.ProcessGroupGloo._Options()  # type: ignore[attr-defined]
            options._devices = [dist.ProcessGroupGloo.create_device(hostname=address)]
            options._timeout = timedelta(seconds=timeout_seconds)
            own = PrefixStore(f"gradwire/plane{plane}", store)
            groups.append(dist.ProcessGroupGloo(own, rank, world, options))
            wait_for_all(groups[-1])
    return Planes(pins, hosts, groups, range(world))


def _addresses() -> list[str]:
    return [one for text in os.environ.get(ADDRESSES, "").split(",") if (one := text.strip())]


TURN_BYTES = 2 * 2**20
"""Messages of at least this size go in the plan's turns, with a barrier between any two; smaller
ones go all at once. 16 hosts, 200 Mbit/s, all to all: 4 MB take 1.14 × ideal in turns and 1.17 at
once; 1 MB takes 1.22 to 1.45 and 1.24 (benchmarks/network)."""


class PlanePerformer(Performer):
    """Performs moves as `Performer` does, but messages between pairs take the pinned paths. An
    all-reduce is made of such messages:

        all-reduce = parts to their owners ──► sums there ──► sums back to all

    Large messages of equal size go in the plan's turns. A barrier ends each turn, as a late
    message would share links with those of the next.
    Moves with a root (reduce, gather, broadcast) use the hosts' own addresses. Over Gloo.
    """

    def __init__(
        self, group: dist.ProcessGroup, planes: Planes,
        parts: Mapping[Group, dist.ProcessGroup] | None = None,
        device: torch.device = CPU,
    ) -> None:  # fmt: skip
        super().__init__(group, None, device)
        self._planes = planes
        self._parts = {
            name: PlanePerformer(part, replace(planes, ranks=name.ranks), None, device)
            for name, part in (parts or {}).items()
        }
        hosts = [planes.host(rank) for rank in range(self.world)]
        # A message inside a host has a turn, too, though it takes no path.
        self._turns = sorted({planes.pins.turn(a, b) for a, b in permutations(hosts, 2)})

    def close(self) -> None:
        super().close()
        if self._process == os.getpid():  # a fork has none of the groups' threads, and would hang
            self._planes.groups.clear()  # its parts share the list

    def _send(self, part: Part) -> Any:
        if part.plane is None:
            return super()._send(part)
        return self._planes.groups[part.plane].send([part.data], self._planes.ranks[part.rank], 0)

    def _receive(self, part: Part) -> Any:
        if part.plane is None:
            return super()._receive(part)
        return self._planes.groups[part.plane].recv([part.data], self._planes.ranks[part.rank], 0)

    def _by_distance(self, parts: Mapping[int, Tensor], way: int) -> list[Part]:
        """Sorts messages, and cuts them as the plan says."""
        found = list[Part]()
        for part in super()._by_distance(parts, way):
            cuts = self._planes.pins.parts(*self._ends(part.rank, way), part.data.numel())
            found += (
                part._replace(data=part.data[start:end], plane=path) for path, start, end in cuts
            )
        return found

    def _ends(self, rank: int, way: int) -> tuple[int, int]:
        """Returns the source and target host of a message to a rank (1), or from it (-1)."""
        own, other = self._planes.host(self.rank), self._planes.host(rank)
        return (own, other) if way > 0 else (other, own)

    def _ahead(self, receives: Sequence[Part], sends: Sequence[Part]) -> int:
        """Does not pace sends, as the distance between ranks orders no paths (1.24 × ideal at
        once, 1.6 paced)."""
        return self.world

    def _is_paired(self, most: int) -> bool:
        return True

    def _all_to_all(self, move: AllToAll) -> Tensor:
        arrived = self._buffer(move.data, (sum(move.arriving),))
        sends = torch.split(move.data, list(move.sizes))
        receives = torch.split(arrived, list(move.arriving))
        receives[self.rank].copy_(sends[self.rank])
        each = min(move.sizes) * move.data.element_size() if move.alike else 0
        self._between_all(sends, receives, each)
        return arrived

    def _has_owners(self, data: Tensor) -> bool:
        return self.world > 1

    def _take_turns(
        self, coming: Mapping[int, Tensor], going: Mapping[int, Tensor], least: int
    ) -> None:
        """Performs these receives and sends; large ones in the plan's turns."""
        if least < TURN_BYTES or len(self._turns) <= 1:
            super()._take_turns(coming, going, least)
            return
        for number, turn in enumerate(self._turns):
            if number:
                dist.barrier(self.group)
            now_from, now_to = (
                {r: data for r, data in own.items()
                 if self._planes.pins.turn(*self._ends(r, way)) == turn}
                for own, way in ((coming, -1), (going, 1))
            )  # fmt: skip
            self._between_pairs(self._by_distance(now_from, -1), self._by_distance(now_to, 1))

"""The emulated cluster, as its users see it."""

from __future__ import annotations

import itertools
import json
import socket
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from gradwire.errors import LabError
from gradwire.lab.addresses import (
    INTERFACE,
    LARGEST_CLUSTER,
    LOOPBACK_ADDRESS,
    LOOPBACK_INTERFACE,
    host_name,
)
from gradwire.lab.availability import available, refused
from gradwire.lab.distance import Distance
from gradwire.lab.environment import Layout, check_environment, rank_environment
from gradwire.lab.forwarding import Forwarded
from gradwire.lab.guarded import GuardConnection
from gradwire.lab.job import Job, LabTimeoutError, LineHandler, print_prefixed
from gradwire.lab.outages import Outage, Turn, turns
from gradwire.lab.rates import parse_rate
from gradwire.lab.wiring import Wiring, one_switch

if TYPE_CHECKING:
    from gradwire.network.fabric import Fabric, Link

__all__ = ["Cluster", "Connection", "LabTimeoutError"]

_FIRST_PORT = 29500
_LARGEST_SEED = 2**32 - 1
_LOOKUPS = 1000  # the most in one message


class Connection(NamedTuple):
    """A TCP connection: the numbers of its hosts, and its ports."""

    source: int
    target: int
    source_port: int
    target_port: int


class Cluster:
    """Hosts on one switch, every link shaped to `rate` in both directions.

    With a `topology` (`gradwire.network.leaf_spine(…)`, or its text) hosts are below leaves, and
    the kernel routes: a host's own address is hashed over spines, its address on a plane goes by
    that plane's spine (see `leaf_spine`). `rate` is then that of the fastest host's link.

    Processes of one host talk unshaped, over that host's own loopback. With `loopback=True` there
    are no namespaces: the same processes on 127.0.0.1, unshaped.

    Use it as a context manager; leaving it ends every process and removes the network, also
    after an exception. If this process is killed, the kernel removes them.
    """

    def __init__(
        self, hosts: int | None = None, rate: str = "1gbit", *, procs_per_host: int = 1,
        loopback: bool = False, topology: Fabric | str | None = None, hash_seed: int = 1,
        order: Sequence[int] | None = None, delay: str = "0s", jitter: str = "0s",
        loss: str = "0%",
    ) -> None:  # fmt: skip
        """Check the numbers; nothing is built yet.

        Args:
            hosts: the number of hosts; not with a topology, which has its own.
            rate: the rate of links, such as "200mbit", as `parse_rate` reads it.
            procs_per_host: the number of ranks on a host.
            loopback: whether to do without namespaces.
            topology: leaves and spines instead of one switch.
            hash_seed: that of its leaves, 1 or more: the same gives the same paths again.
            order: the hosts, in the order in which ranks fill them; by number if None.
                `Placement.shuffled(hosts, seed).host` is one at random.
            delay: how much later every frame arrives at another host, such as "40ms".
            jitter: by how much the delay varies, evenly, either way; frames stay in order.
            loss: the share of frames that are lost, such as "0.1%".

        Raises:
            LabError: values out of range. NetworkError: the text is no topology.
        """
        self.topology = _topology(topology, hosts, loopback)
        asked = self.topology.hosts if self.topology else hosts
        self.hosts = _count("hosts", asked, LARGEST_CLUSTER)
        self.procs_per_host = _count("procs_per_host", procs_per_host, LARGEST_CLUSTER)
        _count("hash_seed", hash_seed, _LARGEST_SEED)
        self.order = tuple(range(self.hosts) if order is None else order)
        _check_order(self.order, self.hosts)
        self.loopback = loopback
        self.bits_per_second = parse_rate(rate)
        self.distance = Distance.of(delay, jitter, loss)
        if self.distance and (self.topology is not None or loopback):
            raise LabError(
                "delay, jitter and loss are those of hosts on one switch; got them beside "
                f"{'loopback' if loopback else 'a topology'}. Leave out one of the two."
            )
        self._wiring = self._wire(hash_seed)
        self._ports = itertools.count(_FIRST_PORT)
        self._guard: GuardConnection | None = None

    @property
    def ranks(self) -> int:
        """The number of processes a command is started as."""
        return self.hosts * self.procs_per_host

    def __enter__(self) -> Cluster:
        """Build the network. Raises `LabError` where that is impossible, with the reason."""
        if self._guard is not None:
            raise LabError(
                "a cluster can be entered only once at a time; this one is running already. Use "
                "it as it is, or make a second Cluster."
            )
        mode = "none" if self.loopback else available().mode
        if mode == "none" and not self.loopback:
            raise refused(available(), "loopback=True")
        self._guard = GuardConnection(mode, self._wiring)
        return self

    def __exit__(self, *_: object) -> None:
        if self._guard is not None:
            self._guard.close()
            self._guard = None

    def run(
        self, command: Sequence[str], *, env: Mapping[str, str] | None = None,
        on_line: LineHandler | None = None, timeout_seconds: float | None = None,
        outages: Sequence[Outage] = (),
    ) -> int:  # fmt: skip
        """Start the command once per rank and wait; return the first failure's exit code, or 0.

        After the first failure the other ranks get a short grace, then SIGTERM, then SIGKILL.
        A rank ended by signal n counts as exit code 128 + n. May be called again.

        Args:
            command: the program and its arguments, looked up on PATH.
            env: variables to add to this process's own.
            on_line: called with rank, "stdout" or "stderr", and the line; prints by default.
            timeout_seconds: the time after which all ranks are ended and `LabTimeoutError` raised.
            outages: links that go down meanwhile; all are up again when the command has ended.

        Raises:
            LabError: the command is empty or cannot be started, a variable is no text, the cluster
                is not entered, or an outage is of an unknown link, or in loopback mode.
        """
        guard = self._entered()
        _check_command(command)
        check_environment(env)
        going = self._turns(outages)
        layout = self._layout()
        port = self._next_port()
        with Job(guard, on_line or print_prefixed, going) as job:
            for rank in range(layout.ranks):
                environment = rank_environment(layout, rank, port, env)
                job.start(rank, layout.host_of(rank), command, environment)
            return job.wait(timeout_seconds)

    def link_bytes(self) -> dict[Link, int]:
        """Return the bytes that each link has carried since the network was built, each way.

        Links are named as `Routes.link_bytes()` names them, those of hosts ("host0", "leaf0") too.
        Headers are counted once per super-packet of up to 64 KiB: about 0.1 % more than payload.
        Call it between runs. Raises `LabError` in loopback mode and outside the with block.
        """
        from gradwire.network.fabric import Link

        sent = self._entered().look({})["sent"]
        ends = [way for c in self._wiring.cables for way in ((c.near, c.far), (c.far, c.near))]
        return {Link(a.machine, b.machine): sent[a.machine][a.interface] for a, b in ends}

    def forwarded(self) -> Forwarded | None:
        """Return what the switch has done since the network was built: frames, those it lost, and
        the processor's time; None if there is no delay, jitter or loss, as the kernel forwards
        then. Call it between runs. Raises `LabError` outside the with block."""
        if not self.distance:
            return None
        return Forwarded(*self._entered().look({})["forwarded"])

    def paths(self, connections: Sequence[Connection]) -> list[int]:
        """Return the uplink that its leaf hashes each connection's packets to; -1 below a leaf.

        It asks the kernel of each leaf; nothing is sent. Answers hold for packets from `source` to
        `target`, both by their own addresses; packets back have their own path.
        Call it between runs. Raises `LabError` without a topology, and outside the with block.
        """
        guard = self._entered()
        if self.topology is None:
            raise LabError(
                "paths() needs a topology with several paths; this cluster has one switch. Pass a "
                'topology, such as "leaf_spine(leaves=4, hosts=4, spines=4)".'
            )
        asked: dict[str, dict[int, str]] = {}
        leaf_of, uplinks = self.topology.leaf_of, [name for name, _ in self.topology.uplinks]
        for i, (source, target, source_port, target_port) in enumerate(connections):
            asked.setdefault(f"leaf{leaf_of[source]}", {})[i] = (
                f"route get {self.address(target)} from {self.address(source)} "
                f"iif {host_name(source)} ipproto tcp sport {source_port} dport {target_port}"
            )
        found = dict[int, int]()
        for leaf, own in asked.items():
            rows, lines = list(own), list(own.values())
            for first in range(0, len(lines), _LOOKUPS):
                seen = guard.look({leaf: lines[first : first + _LOOKUPS]})["answers"][leaf]
                for i, answer in zip(rows[first:], seen.splitlines()):
                    device = json.loads(answer)[0]["dev"]
                    found[i] = uplinks.index(device) if device in uplinks else -1
        return [found[i] for i in range(len(connections))]

    def address(self, host: int, plane: int | None = None) -> str:
        """Return a host's own address, or the one on a plane. Raises `LabError` if unknown."""
        wiring, planes = self._wiring, len(self.topology.uplinks) if self.topology else 0
        if not 0 <= host < self.hosts or not (plane is None or 0 <= plane < planes):
            raise LabError(
                f"hosts are numbered from 0 to {self.hosts - 1}, and planes as their topology's "
                f"uplinks; got host {host}, plane {plane}. Choose existing ones."
            )
        return wiring.addresses[host] if plane is None else wiring.planes[host][plane]

    def _entered(self) -> GuardConnection:
        if self._guard is None or self._guard.closed:
            raise LabError(
                "a cluster runs commands only inside its with block; this one is not entered, or "
                "was given up after a second interruption. Write: with Cluster(...) as cluster: "
                "cluster.run(...)"
            )
        return self._guard

    def _turns(self, outages: Sequence[Outage]) -> list[Turn]:
        if outages and self.loopback:
            raise LabError(
                "outages need links, which loopback does not have. Leave out one of the two."
            )
        return turns(outages, self._wiring)

    def _wire(self, hash_seed: int) -> Wiring:
        if self.topology is None:
            return one_switch(self.hosts, self.bits_per_second, self.distance)
        from gradwire.lab.leaf_spine import leaf_spine

        return leaf_spine(self.topology, self.bits_per_second, hash_seed)

    def _layout(self) -> Layout:
        if self.loopback:
            addresses = [LOOPBACK_ADDRESS] * self.hosts
            return Layout(self.order, self.procs_per_host, LOOPBACK_INTERFACE, addresses)
        wiring = self._wiring
        return Layout(self.order, self.procs_per_host, INTERFACE, wiring.addresses, wiring.planes)

    def _next_port(self) -> int:
        """Return a fresh port: an old one may still be closing."""
        if not self.loopback:
            return next(self._ports)
        with socket.socket() as probe:  # on the machine's own loopback others may hold any port
            probe.bind((LOOPBACK_ADDRESS, 0))
            return int(probe.getsockname()[1])


def _topology(given: Fabric | str | None, hosts: int | None, loopback: bool) -> Fabric | None:
    if (given is None) == (hosts is None):
        raise LabError(
            "a cluster needs either a number of hosts, on one switch, or a topology; got "
            f"{'both' if hosts is not None else 'neither'}. Give one of the two."
        )
    if given is not None and loopback:
        raise LabError(
            "a topology needs network namespaces, which loopback does not use. Leave out one of "
            "the two."
        )
    if isinstance(given, str):
        from gradwire.network.topologies import topology_of

        return topology_of(given)
    return given


def _check_order(order: Sequence[int], hosts: int) -> None:
    if sorted(order) != list(range(hosts)):
        raise LabError(
            f"an order must name each host from 0 to {hosts - 1} once; got {list(order)!r:.80}. "
            "Leave it out, or shuffle all numbers."
        )


def _count(name: str, value: object, largest: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= largest:
        raise LabError(
            f"{name} must be a whole number from 1 to {largest}; got {value!r}. Choose one in "
            "between."
        )
    return value


def _check_command(command: Sequence[str]) -> None:
    if isinstance(command, str) or not command or not all(isinstance(w, str) for w in command):
        raise LabError(
            f"a command must be a list of strings, the program first; got {command!r}. Write for "
            'example ["python", "train.py"] (after -- on the command line).'
        )

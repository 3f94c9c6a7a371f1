"""The emulated cluster, as its users see it."""

import itertools
import socket
from collections.abc import Mapping, Sequence
from types import TracebackType

from gradwire.errors import LabError
from gradwire.lab.addresses import (
    INTERFACE,
    LARGEST_CLUSTER,
    LOOPBACK_ADDRESS,
    LOOPBACK_INTERFACE,
    host_address,
)
from gradwire.lab.availability import Mode, available
from gradwire.lab.environment import Layout, rank_environment
from gradwire.lab.guarded import GuardConnection
from gradwire.lab.job import Job, LabTimeoutError
from gradwire.lab.lines import LineHandler, print_prefixed
from gradwire.lab.rates import parse_rate

__all__ = ["Cluster", "LabTimeoutError"]

_FIRST_PORT = 29500


class Cluster:
    """Hosts on one switch, every link shaped to `rate` in both directions.

    Processes of one host talk unshaped, over that host's own loopback. With `loopback=True` there
    are no namespaces: the same processes on 127.0.0.1, unshaped.

    Use it as a context manager; leaving it ends every process and removes the network, also
    after an exception. If this process is killed, the kernel removes them.
    """

    def __init__(
        self, hosts: int, rate: str, *, procs_per_host: int = 1, loopback: bool = False
    ) -> None:
        """Check the numbers; nothing is built yet. Raises `LabError` for wrong ones."""
        _check_count("hosts", hosts, LARGEST_CLUSTER)
        _check_count("procs_per_host", procs_per_host, LARGEST_CLUSTER)
        self.hosts = hosts
        self.procs_per_host = procs_per_host
        self.loopback = loopback
        self.bits_per_second = parse_rate(rate)
        self._ports = itertools.count(_FIRST_PORT)
        self._guard: GuardConnection | None = None

    @property
    def ranks(self) -> int:
        """The number of processes a command is started as."""
        return self.hosts * self.procs_per_host

    def __enter__(self) -> "Cluster":
        """Build the network. Raises `LabError` where that is impossible, with the reason."""
        if self._guard is not None:
            raise LabError(
                "a cluster is entered once at a time; this one already stands; use it as it is, "
                "or make a second Cluster"
            )
        self._guard = GuardConnection(self._mode(), self.hosts, self.bits_per_second)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._guard is not None:
            self._guard.close()
            self._guard = None

    def _mode(self) -> Mode:
        if self.loopback:
            return "none"
        found = available()
        if found.mode == "none":
            raise LabError(
                "a shaped cluster needs network namespaces; this machine refuses them "
                f"({found.reason}); use loopback=True (--loopback): the same processes on "
                "127.0.0.1, but unshaped"
            )
        return found.mode

    def run(
        self,
        command: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        on_line: LineHandler | None = None,
        timeout_seconds: float | None = None,
    ) -> int:
        """Start the command once per rank and wait; return the first failure's exit code, or 0.

        After the first failure the other ranks get a short grace, then SIGTERM, then SIGKILL.
        A rank ended by signal n counts as exit code 128 + n. May be called again.

        Args:
            command: the program and its arguments, looked up on PATH.
            env: variables to add to this process's own.
            on_line: called with rank, "stdout" or "stderr", and the line; prints by default.
            timeout_seconds: after so long all ranks are ended and `LabTimeoutError` raised.

        Raises:
            LabError: the command is empty or cannot be started, or the cluster is not entered.
        """
        if self._guard is None or self._guard.closed:
            raise LabError(
                "a cluster runs commands between entering and leaving it; this one is not "
                "entered, or was given up after a second interruption; write: "
                "with Cluster(...) as cluster: cluster.run(...)"
            )
        _check_command(command)
        layout = self._layout()
        port = self._next_port()
        with Job(self._guard, on_line or print_prefixed) as job:
            for rank in range(layout.ranks):
                environment = rank_environment(layout, rank, port, env)
                job.start(rank, layout.host_of(rank), command, environment)
            return job.wait(timeout_seconds)

    def _layout(self) -> Layout:
        address = LOOPBACK_ADDRESS if self.loopback else host_address(0)
        interface = LOOPBACK_INTERFACE if self.loopback else INTERFACE
        return Layout(self.hosts, self.procs_per_host, address, interface)

    def _next_port(self) -> int:
        """Return a fresh port: an old one may still be closing."""
        if not self.loopback:
            return next(self._ports)
        with socket.socket() as probe:  # on the machine's own loopback others may hold any port
            probe.bind((LOOPBACK_ADDRESS, 0))
            return int(probe.getsockname()[1])


def _check_count(name: str, value: int, largest: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= largest:
        raise LabError(
            f"{name} is a whole number from 1 to {largest}; got {value!r}; choose one in between"
        )


def _check_command(command: Sequence[str]) -> None:
    if isinstance(command, str) or not command or not all(isinstance(w, str) for w in command):
        raise LabError(
            "a command is a list of words, the program first; got "
            f'{command!r}; write for example ["python", "train.py"] (after -- on the command line)'
        )

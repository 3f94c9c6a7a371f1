"""Builds a wiring: a network namespace for each machine, a shaped veth pair for each cable.

Runs inside the guard, whose only other thread never needs a namespace: it may walk between them.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from gradwire.errors import LabError
from gradwire.lab import syscalls
from gradwire.lab.addresses import host_name
from gradwire.lab.counters import interface_bytes
from gradwire.lab.forwarding import Forwarded, Forwarding
from gradwire.lab.wiring import SWITCH, Machine, Wiring

_HOSTS_FILE = Path("/etc/hosts")
_SETTINGS = Path("/proc/sys/net/ipv4")


@dataclass(frozen=True)
class Namespaces:
    """Open handles on the namespaces of one machine, which exist as long as these are open."""

    network_fd: int
    name_fd: int

    def enter(self) -> None:
        """Move the calling process onto this machine."""
        syscalls.enter(self.network_fd, syscalls.NEW_NETWORK)
        syscalls.enter(self.name_fd, syscalls.NEW_HOST_NAME)


class Network:
    """All machines of a wiring, built."""

    def __init__(self, wiring: Wiring) -> None:
        self._wiring = wiring
        _name_hosts(wiring.addresses)
        self._home = Namespaces(_open("net"), _open("uts"))
        self._machines = {machine.name: self._fresh(machine.name) for machine in wiring.machines}
        for machine in wiring.machines:
            with self._on(machine.name):
                self._set_up(machine)
        self._forwarding = self._forward() if wiring.distance else None

    def enter(self, host: int) -> None:
        """Move the calling process onto a host."""
        self._machines[host_name(host)].enter()

    def ask(self, machine: str, lines: Sequence[str]) -> str:
        """Return what `ip -json` answers on a machine."""
        with self._on(machine):
            return _batch("ip", lines, options=["-json"])

    def turn(self, machine: str, interface: str, *, up: bool) -> None:
        """Set an interface of a machine up or down. The kernel forgets the routes over one that is
        down, so they are set again when it comes up."""
        own = next(each for each in self._wiring.machines if each.name == machine)
        lost = [line.replace("route add", "route replace", 1) for line in own.lines
                if line.startswith("route add") and interface in line.split()]  # fmt: skip
        with self._on(machine):
            _batch("ip", [f"link set {interface} {'up' if up else 'down'}", *(lost if up else ())])

    def bytes_sent(self) -> dict[str, dict[str, int]]:
        """Count what every machine's interface has sent since it came up; headers are counted once
        for each super-packet of up to 64 KiB."""
        sent = {}
        for name in self._machines:
            with self._on(name):
                sent[name] = interface_bytes()
        return sent

    def close(self) -> None:
        """End the forwarder; the kernel ends all else with the guard."""
        if self._forwarding is not None:
            self._forwarding.close()

    def forwarded(self) -> Forwarded | None:
        """Return what the forwarder has done; None where hosts are on a bridge."""
        return self._forwarding.counts() if self._forwarding else None

    def _forward(self) -> Forwarding:
        ends = [end for cable in self._wiring.cables for end in (cable.near, cable.far)]
        with self._on(SWITCH):
            ports = [end.interface for end in ends if end.machine == SWITCH]
            return Forwarding(ports, self._wiring.distance)

    @contextlib.contextmanager
    def _on(self, machine: str) -> Iterator[None]:
        self._machines[machine].enter()
        try:
            yield
        finally:
            self._home.enter()

    def _fresh(self, name: str) -> Namespaces:
        syscalls.unshare(syscalls.NEW_NETWORK | syscalls.NEW_HOST_NAME)
        socket.sethostname(name)
        made = Namespaces(_open("net"), _open("uts"))
        self._home.enter()
        return made

    def _set_up(self, machine: Machine) -> None:
        """Make a machine's cables to later machines, and set up its own end of all its cables."""
        _use_reno()
        for name, value in machine.settings.items():
            _set(name, value)
        cables = self._wiring.cables
        ends = [e for c in cables for e in (c.near, c.far) if e.machine == machine.name]
        far = {
            c.near.interface: (c.far.interface, self._machines[c.far.machine].network_fd)
            for c in cables
            if c.near.machine == machine.name
        }
        made = [
            f"link add {own} type veth peer name {other} netns /proc/self/fd/{fd}"
            for own, (other, fd) in far.items()
        ]
        up = [
            f"link set {end.interface} {how}" for end in ends for how in ("addrgenmode none", "up")
        ]
        lines = ["link set lo up", *made, *up, *machine.lines]
        _batch("ip", lines, keep_fds=[fd for _, fd in far.values()])
        shaped = [f"qdisc add dev {e.interface} root {e.shaping.arguments()}" for e in ends]
        _batch("tc", shaped)


def _set(name: str, value: str) -> None:
    try:
        (_SETTINGS / name).write_text(value)
    except OSError as error:
        raise LabError(
            f"this network needs net.ipv4.{name} = {value}; it could not be set "
            f"({error.strerror}). Use a kernel from 6.11 on with a writable /proc/sys, or leave "
            "out the topology and the delay."
        ) from error


def _use_reno() -> None:
    """Use the congestion control that every kernel has, whatever this machine prefers.

    Runs on different machines then compare. On links without any delay it also did best here:
    10 mbit/s all-reduce 92 % with reno, 84 % with cubic, 85 % with bbr. Where /proc/sys is
    read-only, the machine's own stays.
    """
    with contextlib.suppress(OSError):
        (_SETTINGS / "tcp_congestion_control").write_text("reno")


def _name_hosts(addresses: Sequence[str]) -> None:
    """Let the hosts' names and addresses resolve: torch looks them up for its messages."""
    lines = [""]
    for number, address in enumerate(addresses):
        name = host_name(number)
        # torch listens on IPv6 and so sees the address in its mapped form; looking up the name
        # must still give the plain one, hence two names.
        lines += [f"{address} {name}", f"::ffff:{address} {name}.mapped"]
    with contextlib.suppress(OSError):  # there may be no such file
        own = "\n".join([*lines, ""]).encode()  # what stands before it may be in any encoding
        syscalls.cover_file(_HOSTS_FILE, _HOSTS_FILE.read_bytes() + own)


def _open(kind: str) -> int:
    try:
        return os.open(f"/proc/self/ns/{kind}", os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise LabError(
            "each host and switch of a network needs two open files; one cannot be opened: "
            f"{error.strerror}. Use fewer hosts, or allow more files by ulimit -n."
        ) from error


def which(tool: str) -> str | None:
    """Return the path of one of iproute2's tools, also where /sbin is not on PATH; or None."""
    return shutil.which(tool, path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")


def find_tool(name: str) -> str:
    """Return the path of one of iproute2's tools, as `which` does; raise LabError without it."""
    found = which(name)
    if found is None:
        raise LabError(
            f"the lab builds its network with iproute2's ip and tc; {name!r} was not found. "
            "Install the package iproute2, or run with loopback (--loopback)."
        )
    return found


def _batch(
    tool: str, commands: Sequence[str], keep_fds: Sequence[int] = (), options: Sequence[str] = ()
) -> str:
    """Give all commands to one process of the tool: starting it costs more than the work."""
    done = subprocess.run(
        [find_tool(tool), *options, "-batch", "-"],
        input="\n".join(commands) + "\n",
        capture_output=True,
        text=True,
        pass_fds=tuple(keep_fds),
        check=False,
    )
    if done.returncode != 0:
        words = " ".join(done.stderr.split()) or f"exit code {done.returncode}"
        raise LabError(
            f"the network could not be built; {tool!r} said: {words} (commands: "
            f"{'; '.join(commands)}). Check the kernel's modules veth, bridge and sch_tbf."
        )
    return done.stdout

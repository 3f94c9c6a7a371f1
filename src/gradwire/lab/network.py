"""Builds the emulated network: a bridge in one namespace, a host in each of the others.

Runs inside the guard, which is single-threaded and may therefore walk between namespaces.
"""

import contextlib
import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from gradwire.errors import LabError
from gradwire.lab import syscalls
from gradwire.lab.addresses import INTERFACE, PREFIX_LENGTH, host_address, host_name
from gradwire.lab.rates import shape_host, shape_port

_HOSTS_FILE = Path("/etc/hosts")
_CONGESTION_CONTROL = Path("/proc/sys/net/ipv4/tcp_congestion_control")


@dataclass(frozen=True)
class Host:
    """Open handles on the namespaces of one emulated host; they live as long as these are open."""

    network_fd: int
    name_fd: int

    def enter(self) -> None:
        """Move the calling process onto this host."""
        syscalls.enter(self.network_fd, syscalls.NEW_NETWORK)
        syscalls.enter(self.name_fd, syscalls.NEW_HOST_NAME)


def build(hosts: int, bits_per_second: int) -> list[Host]:
    """Make the bridge in the current network namespace, and `hosts` hosts linked to it."""
    _name_hosts(hosts)
    # The bridge only forwards; learning which host is where takes it one packet.
    _ip(["link add name switch type bridge stp_state 0 forward_delay 0 mcast_snooping 0"])
    _ip(["link set switch addrgenmode none", "link set switch up"])
    with _open_namespace("net") as switch_fd:
        built = [_build_host(number, switch_fd, bits_per_second) for number in range(hosts)]
    for number in range(hosts):
        _join_switch(f"port{number}", bits_per_second)
    return built


def _build_host(number: int, switch_fd: int, bits_per_second: int) -> Host:
    with _open_namespace("uts") as own_name_fd:
        syscalls.unshare(syscalls.NEW_NETWORK | syscalls.NEW_HOST_NAME)
        socket.sethostname(host_name(number))
        _use_reno()
        _ip(
            [
                "link set lo up",
                f"link add {INTERFACE} type veth "
                f"peer name port{number} netns /proc/self/fd/{switch_fd}",
                f"link set {INTERFACE} addrgenmode none",
                f"addr add {host_address(number)}/{PREFIX_LENGTH} dev {INTERFACE}",
                f"link set {INTERFACE} up",
            ],
            keep_fd=switch_fd,
        )
        _tc([f"qdisc add dev {INTERFACE} root {shape_host(bits_per_second).arguments()}"])
        host = Host(_open("net"), _open("uts"))
        syscalls.enter(switch_fd, syscalls.NEW_NETWORK)
        syscalls.enter(own_name_fd, syscalls.NEW_HOST_NAME)
    return host


def _join_switch(port: str, bits_per_second: int) -> None:
    _ip([f"link set {port} addrgenmode none", f"link set {port} master switch up"])
    _tc([f"qdisc add dev {port} root {shape_port(bits_per_second).arguments()}"])


def _use_reno() -> None:
    """Use the congestion control that every kernel has, whatever this machine prefers.

    Runs on different machines then compare. On links without any delay it also did best here:
    10 mbit/s all-reduce 92 % with reno, 84 % with cubic, 85 % with bbr. Where /proc/sys is
    read-only, the machine's own stays.
    """
    with contextlib.suppress(OSError):
        _CONGESTION_CONTROL.write_text("reno")


def _name_hosts(hosts: int) -> None:
    """Let names and addresses of the hosts resolve, which torch tries for its messages."""
    if not _HOSTS_FILE.exists():
        return
    lines = [line for number in range(hosts) for line in _naming_lines(number)]
    with contextlib.suppress(OSError):
        syscalls.cover_file(_HOSTS_FILE, _HOSTS_FILE.read_text() + "\n".join(["", *lines, ""]))


def _naming_lines(number: int) -> list[str]:
    address, name = host_address(number), host_name(number)
    # torch listens on IPv6 and so meets the address in its mapped form; asking for the name must
    # still give the plain one, hence two names.
    return [f"{address} {name}", f"::ffff:{address} {name}.mapped"]


def _open(kind: str) -> int:
    return os.open(f"/proc/self/ns/{kind}", os.O_RDONLY | os.O_CLOEXEC)


@contextlib.contextmanager
def _open_namespace(kind: str) -> Iterator[int]:
    descriptor = _open(kind)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _ip(commands: list[str], keep_fd: int | None = None) -> None:
    _batch("ip", commands, () if keep_fd is None else (keep_fd,))


def _tc(commands: list[str]) -> None:
    _batch("tc", commands, ())


def find_tool(name: str) -> str:
    """Return the path of one of iproute2's tools, also where /sbin is not on PATH."""
    found = shutil.which(name, path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")
    if found is None:
        raise LabError(
            f"the lab builds its network with iproute2's ip and tc; {name!r} was not found; "
            "install the package iproute2, or run with loopback (--loopback)"
        )
    return found


def _batch(tool: str, commands: list[str], keep_fds: tuple[int, ...]) -> None:
    """Give all commands to one process of the tool: starting it costs more than the work."""
    done = subprocess.run(
        [find_tool(tool), "-batch", "-"],
        input="\n".join(commands) + "\n",
        capture_output=True,
        text=True,
        pass_fds=keep_fds,
        check=False,
    )
    if done.returncode != 0:
        words = " ".join(done.stderr.split()) or f"exit code {done.returncode}"
        raise LabError(
            f"every step of building the network must succeed; {tool!r} said: {words} (asked for: "
            f"{'; '.join(commands)}); check the kernel's veth, bridge and sch_tbf modules"
        )

"""The guard: the process that starts all others of a lab, and ends them with itself.

    lab (your process) ──socket──► guard ──► rank 0, rank 1, …

With namespaces the guard is process 1 of its own process namespace. When it ends, for whatever
reason, the kernel kills every process in that namespace and then frees the network, bridge and
links: there is nothing to clean up later. It ends when the lab closes the socket or ends.
In loopback mode it has no namespaces: it adopts the ranks' orphans and kills all of them itself.
"""

import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
from pathlib import Path

from gradwire.errors import LabError
from gradwire.lab import syscalls
from gradwire.lab.network import Network
from gradwire.lab.wire import Message, receive, send
from gradwire.lab.wiring import Wiring


def main() -> None:
    """Serve the lab at the other end of the inherited socket given as first argument. If the lab
    is gone, as after Ctrl-C while the network is built, nobody is left to tell."""
    channel = socket.socket(fileno=int(sys.argv[1]))
    with channel, contextlib.suppress(ConnectionError):
        settings, lab_process = receive(channel)
        try:
            built = _settle(settings)
        except (LabError, OSError) as error:
            send(channel, {"event": "failed", "reason": str(error)})
            return
        guard = _Guard(channel, built, lab_process)
        send(channel, {"event": "ready"})
        try:
            guard.serve()
        finally:
            guard.kill_all()
            if built is not None:
                built.close()


def _settle(settings: Message) -> Network | None:
    """Isolate this process by its mode, and return the network; None without namespaces."""
    if settings["mode"] == "none":
        syscalls.adopt_orphans()
        return None
    _isolate(rootless=settings["mode"] == "rootless")
    return Network(Wiring.from_json(settings["wiring"]))


def _isolate(*, rootless: bool) -> None:
    """Return in a child that is process 1 of fresh namespaces; the caller waits for its end."""
    kinds = syscalls.NEW_NETWORK | syscalls.NEW_HOST_NAME
    kinds |= syscalls.NEW_MOUNTS | syscalls.NEW_PROCESSES
    user, group = os.geteuid(), os.getegid()
    syscalls.unshare(kinds | (syscalls.NEW_USER if rootless else 0))
    if rootless:
        _become_root(user, group)
    child = os.fork()
    if child:
        _, status = os.waitpid(child, 0)
        os._exit(os.waitstatus_to_exitcode(status) & 0xFF)
    syscalls.die_with_parent()
    # Our /proc must show our own process numbers; some containers forbid it, and then psutil and
    # the like see the outer ones: training does not mind.
    syscalls.keep_mounts_private()
    with contextlib.suppress(OSError):
        syscalls.mount_proc()


def _become_root(user: int, group: int) -> None:
    """Map the caller to root of its own user namespace (root only over what it makes there)."""
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"0 {user} 1")
    Path("/proc/self/gid_map").write_text(f"0 {group} 1")


class _Guard:
    """Starts ranks, signals them, and reports their ends to the lab."""

    def __init__(
        self, channel: socket.socket, network: Network | None, lab_process: list[int]
    ) -> None:
        self._channel = channel
        self._network = network
        self._lab_process = lab_process
        self._ranks: dict[int, tuple[int, subprocess.Popen[bytes]]] = {}
        self._is_process_one = os.getpid() == 1
        # A child's end must wake select(): Python writes a byte here when SIGCHLD arrives.
        self._wake, wake_end = os.pipe()
        os.set_blocking(self._wake, False)
        os.set_blocking(wake_end, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wake_end, warn_on_full_buffer=False)

    def serve(self) -> None:
        """Carry out the lab's orders until it closes the socket or ends."""
        watched = [self._channel.fileno(), self._wake, *self._lab_process]
        while True:
            ready, _, _ = select.select(watched, [], [])
            if self._wake in ready:
                os.read(self._wake, 4096)
                self._report_ends()
            if any(file in ready for file in self._lab_process):
                return
            if self._channel.fileno() in ready:
                message, descriptors = receive(self._channel)
                if not message:
                    return
                self._obey(message, descriptors)

    def _obey(self, message: Message, descriptors: list[int]) -> None:
        if message["order"] == "start":
            self._start(message, descriptors)
        elif message["order"] == "signal":
            self._signal(message["signal"])
        elif message["order"] == "look":
            send(self._channel, self._look(message))
        elif message["order"] == "turn":
            self._turn(message)
        else:
            self.kill_all()
            self._report_ends()
            send(self._channel, {"event": "cleared"})

    def _look(self, message: Message) -> Message:
        """Return counters of all machines, and answers of `ip` on those that are named."""
        if self._network is None:
            return {
                "event": "failed",
                "reason": "without namespaces there are no interfaces and routes to read",
            }
        try:
            answers = {name: self._network.ask(name, own) for name, own in message["ask"].items()}
            sent, forwarded = self._network.bytes_sent(), self._network.forwarded()
            return {"event": "seen", "sent": sent, "answers": answers, "forwarded": forwarded}
        except (LabError, OSError) as error:
            return {"event": "failed", "reason": str(error)}

    def _turn(self, message: Message) -> None:
        """Set a link up or down; the lab gets an answer only if that fails."""
        try:
            if self._network is None:
                raise LabError("without namespaces there is no link that could go down")
            self._network.turn(message["machine"], message["interface"], up=message["up"])
        except (LabError, OSError) as error:
            send(self._channel, {"event": "failed", "reason": str(error)})

    def _start(self, message: Message, descriptors: list[int]) -> None:
        stdout, stderr = descriptors
        try:
            process = subprocess.Popen(
                message["command"], env=message["env"], cwd=message["directory"],
                stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr,
                start_new_session=True, preexec_fn=lambda: self._enter(message["host"]),
            )  # fmt: skip
        except (OSError, subprocess.SubprocessError, ValueError) as error:
            program = message["command"][0]
            instead = "Check the name and PATH."
            if program.endswith(".py"):
                instead = f"Put Python before it: python {program}."
            reason = (
                f"a command must be a program that can be started; {program!r} cannot ({error}). "
                f"{instead}"
            )
            told = {"event": "refused", "rank": message["rank"], "reason": reason}
            send(self._channel, told)
        else:
            # Kept, or Popen's own bookkeeping would take the exit status before we see it.
            self._ranks[process.pid] = (message["rank"], process)
        finally:
            os.close(stdout)
            os.close(stderr)

    def _enter(self, host: int) -> None:
        syscalls.die_with_parent()
        if self._network:
            self._network.enter(host)

    def _report_ends(self) -> None:
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    return
                self._report_end(pid, os.waitstatus_to_exitcode(status))

    def _report_end(self, pid: int, code: int) -> None:
        rank, process = self._ranks.pop(pid, (None, None))
        if process is None:
            return  # an orphan that became ours
        process.returncode = code
        # As shells do: 128 + the signal that ended it.
        shell_code = code if code >= 0 else 128 - code
        with contextlib.suppress(ConnectionError):
            send(self._channel, {"event": "ended", "rank": rank, "code": shell_code})

    def _signal(self, number: int) -> None:
        # A rank leads its own process group, and its number stays its own until we reap it.
        for pid in self._ranks:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, number)

    def kill_all(self) -> None:
        """Kill every process that any rank started, detached ones too, and wait for their ends."""
        with contextlib.suppress(ChildProcessError):
            while True:
                self._kill_visible()
                pid, status = os.waitpid(-1, 0)
                self._report_end(pid, os.waitstatus_to_exitcode(status))

    def _kill_visible(self) -> None:
        # Process 1 may kill all in its namespace at once. Otherwise only our children surely are
        # ours; when they die, theirs become ours, and the caller calls again.
        for pid in [-1] if self._is_process_one else _children():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)


def _children() -> list[int]:
    """Return the processes whose parent we are, ended but unreaped ones included."""
    return [int(entry) for entry in os.listdir("/proc") if _parent_of(entry) == os.getpid()]


def _parent_of(entry: str) -> int | None:
    if not entry.isdecimal():
        return None
    try:
        stat = Path("/proc", entry, "stat").read_text()
    except OSError:
        return None  # it ended meanwhile
    # The program's name stands in brackets and may hold anything, brackets too.
    return int(stat.rpartition(")")[2].split()[1])


if __name__ == "__main__":
    main()
